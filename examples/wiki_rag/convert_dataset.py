"""Turn MuSiQue's or HotpotQA's files into passages and tasks.

`python convert_dataset.py --train FILE --val FILE --output FOLDER` writes `corpus.jsonl`, `train.jsonl` and `val.jsonl`.
Each file is JSON or JSON lines, of one of these forms:

* MuSiQue: `id`, `question`, `answer`, `answer_aliases`, `paragraphs` with `title`, `paragraph_text`, `is_supporting`;
* HotpotQA: `_id`, `question`, `answer`, `context` of titles with sentences, `supporting_facts`;
* with `--corpus FILE`: `id`, `question`, `answer` and `supporting`, the ids of passages in that file.

In the first two the paragraphs of all questions become one store, each once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


class Corpus:
    """Passages, each once."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], dict[str, str]] = {}
        """Each passage by its title and text."""

    def add(self, title: str, text: str, identifier: str | None = None) -> str:
        """Add a passage; gives its id."""
        line = {"id": identifier or f"p{len(self.lines):06}", "title": title, "text": text}
        return self.lines.setdefault((title, text), line)["id"]


def convert(
    files: dict[str, Path], output: Path, corpus: Path | None = None, limit: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Write the files.

    Args:
        files: the file of each split.
        output: the folder; made where it is missing.
        corpus: the passages, where the files name them only.
        limit: take no more than this many questions of each split.

    Returns:
        The lines of each file, by its name without its end.

    Raises:
        ValueError: a file is of none of the forms; says which, where, and what was expected. Nothing was written.
    """
    passages = Corpus()
    if corpus is not None:
        for number, item in enumerate(_items(corpus), start=1):
            try:
                passages.add(item["title"], item["text"], item["id"])
            except (KeyError, TypeError) as error:
                raise _wrong(corpus, number, "`id`, `title` and `text`") from error
    known = {line["id"] for line in passages.lines.values()}
    made: dict[str, list[dict[str, Any]]] = {}
    for split, file in files.items():
        made[split] = []
        for number, item in enumerate(_items(file)[:limit], start=1):
            try:
                task = {**_task(item, passages), "split": split}
            except (KeyError, TypeError, ValueError) as error:
                raise _wrong(file, number, "a question of MuSiQue, HotpotQA or `--corpus`") from error  # fmt: skip
            unknown = sorted(set(task["metadata"]["supporting"]) - known) if corpus else []
            if unknown:
                raise ValueError(f"`{file}`, question {number}: `{corpus}` has no passage {unknown[0]!r}")  # fmt: skip
            made[split].append(task)
    made["corpus"] = list(passages.lines.values())
    output.mkdir(parents=True, exist_ok=True)
    for name, lines in made.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (output / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return made


def _task(item: dict[str, Any], passages: Corpus) -> dict[str, Any]:
    if "paragraphs" in item:
        shown = [
            (passages.add(p["title"], p["paragraph_text"]), p["is_supporting"])
            for p in item["paragraphs"]
        ]
        needed = [identifier for identifier, is_needed in shown if is_needed]
    elif "context" in item:
        titles = {title for title, _ in item["supporting_facts"]}
        shown = [
            (passages.add(title, "".join(sentences).strip()), title in titles)
            for title, sentences in item["context"]
        ]
        needed = [identifier for identifier, is_needed in shown if is_needed]
    else:
        needed = list(item["supporting"])
    answers = [item["answer"], *item.get("answer_aliases", ())]
    if not all(isinstance(text, str) and text for text in (item["question"], *answers)):
        raise ValueError("no text")
    return {
        "id": item.get("id") or item["_id"],
        "input": item["question"],
        "expected": answers,
        "metadata": {"hops": len(needed), "supporting": needed},
    }


def _items(file: Path) -> list[Any]:
    text = file.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        found: list[Any] = json.loads(text)
        return found
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _wrong(file: Path, number: int, expected: str) -> ValueError:
    return ValueError(f"`{file}`, item {number}: expected {expected}; see `convert_dataset.py --help`")  # fmt: skip


def main() -> None:
    """Convert, and say what was written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="no more questions of each file than this")
    given = parser.parse_args()
    files = {"train": given.train, "val": given.val}
    try:
        made = convert(files, given.output, given.corpus, given.limit)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(", ".join(f"{len(lines)} lines in {given.output / n}.jsonl" for n, lines in made.items()))


if __name__ == "__main__":
    main()
