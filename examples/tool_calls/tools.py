"""The tools of the agent: five look-ups in tables, each with one argument, deterministic."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from langchain_core.tools import BaseTool, tool

CITIES = (
    "Quito", "Oslo", "Lima", "Cairo", "Delhi", "Paris", "Rome", "Berlin", "Madrid", "Tokyo", "Dublin", "Vienna",
    "Prague", "Athens", "Boston", "Denver", "Lagos", "Nairobi", "Seoul", "Sydney", "Toronto", "Havana", "Bogota",
    "Santiago", "Moscow", "Warsaw", "Lisbon", "Geneva", "Zurich", "Milan", "Munich", "Hamburg", "Kabul", "Tehran",
    "Baghdad", "Dakar", "Tunis", "Accra", "Manila", "Hanoi",
)  # fmt: skip
ARTICLES = (
    "lamp", "chair", "table", "mirror", "carpet", "kettle", "pillow", "blanket", "basket", "candle", "clock", "desk",
    "sofa", "shelf", "bucket", "ladder", "hammer", "drill", "tent", "bicycle", "helmet", "guitar", "piano", "camera",
    "printer", "keyboard", "monitor", "radio", "speaker", "toaster", "stove", "fridge", "vacuum", "curtain", "jacket",
    "scarf", "wallet", "suitcase", "backpack", "notebook",
)  # fmt: skip
PEOPLE = (
    "Alice", "Robert", "Maria", "David", "Laura", "Peter", "Susan", "Frank", "Helen", "George", "Nancy", "Oliver",
    "Emma", "Victor", "Julia", "Martin", "Sarah", "Thomas", "Rachel", "Simon", "Diana", "Henry", "Karen", "Walter",
    "Monica", "Philip", "Teresa", "Edward", "Linda", "Arthur", "Janet", "Bruce", "Carol", "Daniel", "Edith", "Felix",
    "Grace", "Howard", "Irene", "Jacob",
)  # fmt: skip
NUMBERS = tuple(str(number) for number in range(1_000, 10_000))


def _table(keys: Sequence[str], value: Callable[[random.Random], str]) -> dict[str, str]:
    """A value for each key, drawn; the same each time."""
    rng = random.Random(1)
    return {key.lower(): value(rng) for key in keys}


WEATHER = _table(CITIES, lambda rng: rng.choice(("sunny", "cloudy", "rainy", "snowing")))
FLIGHTS = _table(CITIES, lambda rng: f"leaves at {rng.randrange(6, 23):02}:{rng.randrange(60):02}")
PRICES = _table(ARTICLES, lambda rng: f"{rng.randrange(5, 400)} dollars")
ORDERS = _table(NUMBERS, lambda rng: rng.choice(("packed", "on its way", "delivered")))
PHONES = _table(PEOPLE, lambda rng: f"extension {rng.randrange(100, 1_000)}")
UNKNOWN = "not known"


@tool
def weather(city: str) -> str:
    """Say what the weather is like in a city."""
    return WEATHER.get(city.lower(), UNKNOWN)


@tool
def flight(city: str) -> str:
    """Say when the next flight to a city leaves."""
    return FLIGHTS.get(city.lower(), UNKNOWN)


@tool
def price(article: str) -> str:
    """Say what an article costs."""
    return PRICES.get(article.lower(), UNKNOWN)


@tool
def order(number: str) -> str:
    """Say how an order stands."""
    return ORDERS.get(number, UNKNOWN)


@tool
def phone(person: str) -> str:
    """Say under which number a person can be called."""
    return PHONES.get(person.lower(), UNKNOWN)


TOOLS: dict[str, BaseTool] = {each.name: each for each in (weather, flight, price, order, phone)}
"""All of them, by name."""
