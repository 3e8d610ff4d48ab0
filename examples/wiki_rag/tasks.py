"""Make the example's passages and questions, about a country that does not exist.

`python tasks.py [--output FOLDER]` writes `corpus.jsonl`, `train.jsonl` and `val.jsonl`. The same come out each time. No
model can know the answers, and each takes two or three searches. The questions of `val.jsonl` ask of other books, in other
words, and half of them for a chain of facts that `train.jsonl` never asks for.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

SEED = 6
BOOKS = {"train": 60, "val": 30}
"""How many books each split asks about."""
PEOPLE = 120
TOWNS = 40
TRADES = ("clockmaker", "botanist", "surveyor", "glassblower", "judge", "ferryman", "physician")
FIRST = (
    "Alo",
    "Bre",
    "Cor",
    "Dun",
    "Eli",
    "Fen",
    "Gar",
    "Hol",
    "Ivo",
    "Jas",
    "Kel",
    "Lor",
    "Mir",
    "Nol",
    "Ost",
    "Per",
)
LAST = (
    "bar",
    "dane",
    "fast",
    "gren",
    "holt",
    "kin",
    "lund",
    "mere",
    "nok",
    "quist",
    "rath",
    "sund",
    "tave",
    "vik",
    "wen",
)
THINGS = (
    "Lantern",
    "Orchard",
    "Compass",
    "Harbour",
    "Winter",
    "Bridge",
    "Mirror",
    "Kiln",
    "Heron",
    "Stair",
)
OF = ("Salt", "Ash", "Three Keys", "the North", "Glass", "Small Hours", "the Tide", "Copper", "Rain", "Elm")  # fmt: skip

TRAIN = {
    "born": "In which town was the author of {book} born?",
    "teacher": "Who taught the author of {book}?",
    "river": "Which river flows through the town where the author of {book} was born?",
}
HELD_OUT = {
    "born": "The writer of {book} comes from what town?",
    "teacher": "Name the person from whom the writer of {book} learnt.",
    "teacher-born": "Where was the teacher of the writer of {book} born?",
    "teacher-trade": "What trade did the teacher of the writer of {book} have?",
}
"""Wordings by the chain of facts that they ask for."""


def write_tasks(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Write `corpus.jsonl`, `train.jsonl` and `val.jsonl` into `folder`, replacing what is there.

    Returns:
        The lines of each, by the file's name without its end.
    """
    world = World(random.Random(SEED))
    books = iter(world.books)
    made: dict[str, list[dict[str, object]]] = {"corpus": world.passages()}
    for split, wordings in (("train", TRAIN), ("val", HELD_OUT)):
        chosen = [next(books) for _ in range(BOOKS[split])]
        made[split] = [
            world.question(book, chain, wording, split)
            for book in chosen
            for chain, wording in wordings.items()
        ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in made.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return made


class World:
    """Towns with rivers, people with birthplaces, trades and teachers, and books with authors."""

    def __init__(self, rng: random.Random) -> None:
        names = [a + b for a in FIRST for b in LAST]
        rng.shuffle(names)
        towns, rivers, people = names[:TOWNS], names[TOWNS : 2 * TOWNS], names[2 * TOWNS :]
        full = [f"{rng.choice(FIRST)} {name}" for name in people[:PEOPLE]]
        titles = [f"The {thing} of {of}" for thing in THINGS for of in OF]
        rng.shuffle(titles)
        self.rivers = dict(zip(towns, rivers, strict=True))
        self.born = {person: rng.choice(towns) for person in full}
        self.trades = {person: rng.choice(TRADES) for person in full}
        # A teacher is of those before, so that nobody learns from a pupil.
        self.teachers = {full[n]: full[rng.randrange(n)] for n in range(1, PEOPLE)}
        authors = rng.sample(full[PEOPLE // 4 :], sum(BOOKS.values()))
        self.books = dict(zip(titles, authors, strict=False))
        self._ids = {name: f"w{n:03}" for n, name in enumerate([*self.books, *full, *towns])}

    def passages(self) -> list[dict[str, object]]:
        """What is known, a passage for each thing."""
        texts = {
            **{book: f"{book} is a novel by {author}." for book, author in self.books.items()},
            **{person: self._person(person) for person in self.born},
            **{town: f"{town} is a town on the river {r}." for town, r in self.rivers.items()},
        }
        return [{"id": self._ids[t], "title": t, "text": text} for t, text in texts.items()]

    def _person(self, person: str) -> str:
        text = f"{person}, a {self.trades[person]}, was born in {self.born[person]}."
        teacher = self.teachers.get(person)
        return f"{text} {person} was a pupil of {teacher}." if teacher else text

    def question(self, book: str, chain: str, wording: str, split: str) -> dict[str, object]:
        """A task: the question, its answer, and the passages that say it."""
        author = self.books[book]
        town, teacher = self.born[author], self.teachers[author]
        answer, last = {
            "born": (town, None),
            "teacher": (teacher, None),
            "river": (self.rivers[town], town),
            "teacher-born": (self.born[teacher], teacher),
            "teacher-trade": (self.trades[teacher], teacher),
        }[chain]
        needed = [self._ids[name] for name in (book, author, last) if name is not None]
        return {
            "id": f"{self._ids[book]}-{chain}",
            "input": wording.format(book=book),
            "expected": answer,
            "metadata": {"chain": chain, "hops": len(needed), "supporting": needed},
            "split": split,
        }


def main() -> None:
    """Write the files and say what was written."""
    parser = argparse.ArgumentParser(description="Make passages and questions.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    output = parser.parse_args().output
    made = write_tasks(output)
    print(", ".join(f"{len(lines)} lines in {output / n}.jsonl" for n, lines in made.items()))


if __name__ == "__main__":
    main()
