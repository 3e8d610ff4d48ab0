"""A shop for model railways: its tables, its rows and what one may ask about them."""

from __future__ import annotations

import random
from collections.abc import Sequence

NAME = "railway_shop"

TABLES = """
CREATE TABLE maker (maker_id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT, founded INTEGER);
CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT NOT NULL, maker_id INTEGER REFERENCES maker,
  kind TEXT, scale TEXT, price INTEGER, stock INTEGER);
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT);
CREATE TABLE purchase (purchase_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customer, bought_on TEXT);
CREATE TABLE purchase_line (purchase_id INTEGER REFERENCES purchase, product_id INTEGER REFERENCES product,
  quantity INTEGER, PRIMARY KEY (purchase_id, product_id));
"""

MAKERS = [
    ("Ironbridge", "England", 1921), ("Feldbahn", "Germany", 1948), ("Locarno", "Switzerland", 1962),
    ("Tramway & Co", "England", 1975), ("Voie Libre", "France", 1983), ("Nordspor", "Norway", 1996),
]  # fmt: skip
KINDS = ["locomotive", "carriage", "wagon", "track", "building"]
SCALES = ["H0", "N", "0"]
CUSTOMERS = [
    "Anders",
    "Birgit",
    "Colin",
    "Daphne",
    "Enzo",
    "Freya",
    "Gilles",
    "Hanna",
    "Ivor",
    "Julie",
    "Klaus",
    "Lotte",
]
COUNTRIES = ["England", "Germany", "France", "Norway"]


def rows(rng: random.Random) -> dict[str, Sequence[tuple[object, ...]]]:
    """The rows of each table."""
    makers = [(i, *maker) for i, maker in enumerate(MAKERS, 1)]
    names = [f"{kind.capitalize()} {100 + 7 * n}" for kind in KINDS for n in range(1, 8)]
    prices = rng.sample(range(8, 400), len(names))
    products = [
        (
            i,
            name,
            rng.randrange(1, 6),
            KINDS[(i - 1) // 7],
            rng.choice(SCALES),
            prices[i - 1],
            rng.choice((0, 1, 2, 5, 8, 12, 20)),
        )
        for i, name in enumerate(names, 1)
    ]
    customers = [(i, name, COUNTRIES[i % 4]) for i, name in enumerate(CUSTOMERS, 1)]
    purchases = [
        (i, rng.randrange(1, 12), f"2024-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}")
        for i in range(1, 51)
    ]
    lines = [
        (i, product, rng.randrange(1, 5))
        for i in range(1, 51)
        for product in sorted(rng.sample(range(1, 34), rng.randrange(1, 4)))
    ]
    return {
        "maker": makers,
        "product": products,
        "customer": customers,
        "purchase": purchases,
        "purchase_line": lines,
    }


QUESTIONS = [
    ("easy", "How many products does the shop list?", "SELECT count(*) FROM product"),
    ("easy", "List the names of the makers from England.", "SELECT name FROM maker WHERE country = 'England'"),
    ("easy", "In which year was Locarno founded?", "SELECT founded FROM maker WHERE name = 'Locarno'"),
    ("easy", "Which products are out of stock? Give their names.", "SELECT name FROM product WHERE stock = 0"),
    ("easy", "Which different scales are there?", "SELECT DISTINCT scale FROM product"),
    ("easy", "What is the name of the dearest product?", "SELECT name FROM product ORDER BY price DESC LIMIT 1"),
    ("easy", "How many customers come from Norway?", "SELECT count(*) FROM customer WHERE country = 'Norway'"),
    ("medium", "How many products are there of each kind?", "SELECT kind, count(*) FROM product GROUP BY kind"),
    ("medium", "What is the lowest price of each kind of product?", "SELECT kind, min(price) FROM product GROUP BY kind"),
    ("medium", "List the names of the products made by Feldbahn.", "SELECT p.name FROM product AS p JOIN maker AS m ON p.maker_id = m.maker_id WHERE m.name = 'Feldbahn'"),
    ("medium", "List name and price of the locomotives, the cheapest first.", "SELECT name, price FROM product WHERE kind = 'locomotive' ORDER BY price"),
    ("medium", "Which kinds have more than 40 pieces in stock?", "SELECT kind FROM product GROUP BY kind HAVING sum(stock) > 40"),
    ("medium", "How many purchases has each customer made? Leave out those who made none.", "SELECT c.name, count(*) FROM customer AS c JOIN purchase AS p ON c.customer_id = p.customer_id GROUP BY c.customer_id"),
    ("medium", "How many different customers bought something in January 2024 or February 2024?", "SELECT count(DISTINCT customer_id) FROM purchase WHERE bought_on LIKE '2024-01-%' OR bought_on LIKE '2024-02-%'"),
    ("medium", "What are the three cheapest products? Give name and price, the cheapest first.", "SELECT name, price FROM product ORDER BY price LIMIT 3"),
    ("hard", "Which makers have no product in the shop?", "SELECT name FROM maker WHERE maker_id NOT IN (SELECT maker_id FROM product)"),
    ("hard", "Which products have never been bought? Give their names.", "SELECT name FROM product EXCEPT SELECT p.name FROM product AS p JOIN purchase_line AS l ON p.product_id = l.product_id"),
    ("hard", "How much did each customer with a purchase spend in all? Give name and amount.", "SELECT c.name, sum(l.quantity * p.price) FROM customer AS c JOIN purchase AS o ON c.customer_id = o.customer_id JOIN purchase_line AS l ON o.purchase_id = l.purchase_id JOIN product AS p ON l.product_id = p.product_id GROUP BY c.customer_id"),
    ("hard", "From which countries do both a maker and a customer come?", "SELECT country FROM maker INTERSECT SELECT country FROM customer"),
    ("hard", "List name and price of the products that cost more than the average product of their own kind.", "SELECT p.name, p.price FROM product AS p WHERE p.price > (SELECT avg(q.price) FROM product AS q WHERE q.kind = p.kind)"),
]  # fmt: skip
"""Hardness, question and gold query."""
