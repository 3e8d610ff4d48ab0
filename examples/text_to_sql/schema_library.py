"""A town library: its tables, its rows and what one may ask about them."""

from __future__ import annotations

import random
from collections.abc import Sequence

NAME = "library"

TABLES = """
CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT, born INTEGER);
CREATE TABLE book (book_id INTEGER PRIMARY KEY, title TEXT NOT NULL, author_id INTEGER REFERENCES author,
  genre TEXT, pages INTEGER, published INTEGER);
CREATE TABLE member (member_id INTEGER PRIMARY KEY, name TEXT NOT NULL, town TEXT, joined TEXT);
CREATE TABLE loan (loan_id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES book,
  member_id INTEGER REFERENCES member, lent_on TEXT, returned_on TEXT);
"""

AUTHORS = [
    "Ada Holm",
    "Bruno Vale",
    "Clara Finch",
    "Dario Moss",
    "Edith Thorn",
    "Felix Marsh",
    "Greta Lund",
    "Hugo Pine",
]
COUNTRIES = ["Norway", "Italy", "Ireland", "Italy", "Norway", "Canada", "Sweden", "Ireland"]
GENRES = ["crime", "history", "poetry", "science", "travel"]
FIRST = ["Silent", "Northern", "Broken", "Golden", "Hidden", "Last"]
SECOND = ["Harbour", "Orchard", "Signal", "Winter", "Map"]
MEMBERS = [
    "Ines",
    "Jonas",
    "Katya",
    "Liam",
    "Mona",
    "Nils",
    "Olga",
    "Pavel",
    "Quinn",
    "Rosa",
    "Sven",
    "Tara",
]
TOWNS = ["Eastford", "Millbrook", "Northgate"]


def rows(rng: random.Random) -> dict[str, Sequence[tuple[object, ...]]]:
    """The rows of each table."""
    authors = [
        (i, name, COUNTRIES[i - 1], 1920 + 7 * i + rng.randrange(5))
        for i, name in enumerate(AUTHORS, 1)
    ]
    titles = [f"{first} {second}" for first in FIRST for second in SECOND]
    pages = rng.sample(range(90, 700), len(titles))
    books = [
        (i, title, rng.randrange(1, 8), rng.choice(GENRES), pages[i - 1], rng.randrange(1960, 2020))
        for i, title in enumerate(titles, 1)
    ]
    members = [
        (i, name, TOWNS[i % 3], f"20{rng.randrange(10, 24)}-{rng.randrange(1, 13):02}-{i:02}")
        for i, name in enumerate(MEMBERS, 1)
    ]
    loans = []
    for i in range(1, 81):
        month, day = rng.randrange(1, 12), rng.randrange(1, 28)
        back = None if rng.random() < 0.2 else f"2024-{month + 1:02}-{day:02}"
        loans.append(
            (i, rng.randrange(1, 28), rng.randrange(1, 12), f"2024-{month:02}-{day:02}", back)
        )
    return {"author": authors, "book": books, "member": members, "loan": loans}


QUESTIONS = [
    ("easy", "How many books are there?", "SELECT count(*) FROM book"),
    ("easy", "What are the names of the authors from Italy?", "SELECT name FROM author WHERE country = 'Italy'"),
    ("easy", "List the titles of all books with more than 600 pages.", "SELECT title FROM book WHERE pages > 600"),
    ("easy", "Which different genres are there?", "SELECT DISTINCT genre FROM book"),
    ("easy", "How many loans have not been returned?", "SELECT count(*) FROM loan WHERE returned_on IS NULL"),
    ("easy", "What are the names of the members who live in Millbrook?", "SELECT name FROM member WHERE town = 'Millbrook'"),
    ("easy", "What is the title of the longest book?", "SELECT title FROM book ORDER BY pages DESC LIMIT 1"),
    ("medium", "How many books are there of each genre?", "SELECT genre, count(*) FROM book GROUP BY genre"),
    ("medium", "What is the greatest number of pages in each genre?", "SELECT genre, max(pages) FROM book GROUP BY genre"),
    ("medium", "List the titles of the books by Clara Finch.", "SELECT b.title FROM book AS b JOIN author AS a ON b.author_id = a.author_id WHERE a.name = 'Clara Finch'"),
    ("medium", "How many members live in each town? Order by the town's name.", "SELECT town, count(*) FROM member GROUP BY town ORDER BY town"),
    ("medium", "Which genres have at least 5 books?", "SELECT genre FROM book GROUP BY genre HAVING count(*) >= 5"),
    ("medium", "List name and year of birth of the authors, the oldest first.", "SELECT name, born FROM author ORDER BY born"),
    ("medium", "What are the different names of members who have borrowed a book of poetry?", "SELECT DISTINCT m.name FROM member AS m JOIN loan AS l ON m.member_id = l.member_id JOIN book AS b ON l.book_id = b.book_id WHERE b.genre = 'poetry'"),
    ("medium", "How many different members have borrowed something?", "SELECT count(DISTINCT member_id) FROM loan"),
    ("hard", "Which authors have no book in the library?", "SELECT name FROM author WHERE author_id NOT IN (SELECT author_id FROM book)"),
    ("hard", "Which books have never been lent? Give their titles.", "SELECT title FROM book WHERE book_id NOT IN (SELECT book_id FROM loan)"),
    ("hard", "List the titles of the books that have more pages than the average book.", "SELECT title FROM book WHERE pages > (SELECT avg(pages) FROM book)"),
    ("hard", "Which countries have authors born before 1950 as well as authors born after 1950?", "SELECT country FROM author WHERE born < 1950 INTERSECT SELECT country FROM author WHERE born > 1950"),
    ("hard", "For each author with a book, how many times have the author's books been lent, counting authors whose books were never lent as 0?", "SELECT a.name, count(l.loan_id) FROM author AS a JOIN book AS b ON b.author_id = a.author_id LEFT JOIN loan AS l ON l.book_id = b.book_id GROUP BY a.author_id"),
]  # fmt: skip
"""Hardness, question and gold query."""
