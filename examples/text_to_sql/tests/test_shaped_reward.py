"""The reward for models that hardly write SQL yet: nearer is more, and only the right answer is 1."""

from types import SimpleNamespace

import pytest

from lightning_core.trace import Call, Choice

GOLD = "SELECT title FROM book WHERE pages > 300"


@pytest.fixture
def scored(example, library):
    """A function that scores a rollout in which these queries were written."""

    def scored(*replies, others=()):
        calls = [
            call("write_query" if n == 0 else "rewrite_query", text)
            for n, text in enumerate(replies)
        ]
        calls += [call("check_query", text) for text in others]
        task = SimpleNamespace(expected={"query": GOLD}, input={"database": str(library)})
        trace = SimpleNamespace(
            output={"query": example.agent.last_query(replies[-1])}, calls=calls
        )
        return example.shaped_reward.score(task, trace)

    return scored


def call(node, text):
    choices = (Choice(message={"role": "assistant", "content": text}),)
    return Call(
        id="c", attempt_id="a", rollout_id="r", index=0, dialect="chat", node=node, choices=choices, started_at=0.0
    )  # fmt: skip


def test_nearer_is_more(scored):
    ladder = [
        "I do not know.",
        "The title of the book",  # names what the right query names, all but one
        "SELECT title FROM book WHERE",  # begins as a query does
        "SELECT name FROM author",  # runs
        "SELECT title FROM book WHERE pages > 100",  # runs, with the right names
        GOLD,
    ]
    rewards = [scored(text)["reward"] for text in ladder]
    assert rewards == sorted(set(rewards))
    assert (rewards[0], rewards[-1]) == (0.0, 1.0)
    assert max(rewards[:-1]) == pytest.approx(0.5)


def test_names_that_were_not_asked_for_take_away(scored):
    assert scored("title, book, pages")["reward"] == pytest.approx(0.2)
    assert scored("title, book, pages, author, town")["reward"] < 0.2


def test_every_query_counts_and_what_checks_them_does_not(scored):
    alone = scored("SELECT name FROM author")["reward"]
    assert scored("I do not know.", "SELECT name FROM author")["reward"] == pytest.approx(alone / 2)
    assert scored("I do not know.", others=["SELECT name FROM author"])["reward"] == 0.0
    # The right answer is 1, whatever was tried before.
    assert scored("I do not know.", f"```sql\n{GOLD}\n```")["reward"] == 1.0


def test_the_number_that_counts_is_told_beside_it(scored):
    assert scored("SELECT name FROM author") == {
        "reward": pytest.approx(0.3), "right": 0.0, "official": 0.0, "runs": 1.0
    }  # fmt: skip
    assert scored(GOLD)["right"] == 1.0
