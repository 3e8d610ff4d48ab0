"""Tokens become text a piece at a time, with no broken characters and no part of a stop text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_local.serve.text import Detokenizer, Vocabulary


@pytest.fixture(scope="module")
def words():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    import transformers

    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw)


def pieces(tokenizer, text, stop=()):
    detokenizer = Detokenizer(tokenizer, stop)
    made = []
    for token in tokenizer(text)["input_ids"]:
        made.append(detokenizer.push(token))
        if detokenizer.stopped is not None:
            break
    made.append(detokenizer.finish())
    return made, detokenizer.stopped


@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_the_pieces_are_the_text_and_no_character_is_broken(words, text):
    made, _ = pieces(words, text)
    assert "".join(made) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in made)


@settings(deadline=None)
@given(
    text=st.text("ab…", max_size=30),
    stop=st.lists(st.text("ab…", min_size=1, max_size=4), max_size=3),
)
def test_the_text_ends_before_the_first_stop_text(words, text, stop):
    made, stopped = pieces(words, text, tuple(stop))
    ends = [i + len(word) for word in stop for i in range(len(text)) if text.startswith(word, i)]
    if not ends:
        assert "".join(made) == text
        assert stopped is None
    else:
        # Stopped at the earliest character that completes a stop text; cut where that one begins.
        shown = text[: min(ends)]
        met = [word for word in stop if shown.endswith(word)]
        assert "".join(made) == shown[: min(shown.find(word) for word in met)]
        assert stopped in met


def test_nothing_of_a_stop_text_is_shown_before_it_is_known(words):
    made, stopped = pieces(words, "one STOX two STOP three", ("STOP",))
    assert stopped == "STOP"
    assert made[:8] == ["o", "n", "e", " ", "", "", "", "STOX"]
    assert "".join(made) == "one STOX two "


def test_a_broken_end_is_shown_as_such_once_nothing_more_comes(words):
    detokenizer = Detokenizer(words)
    first, second, *_ = words("é!")["input_ids"]
    assert detokenizer.push(first) == ""
    assert detokenizer.finish() == "\ufffd"
    detokenizer = Detokenizer(words)
    assert detokenizer.push(first) + detokenizer.push(second) == "é"


def test_a_token_within_a_character_has_its_exact_bytes(words):
    vocabulary = Vocabulary(words)
    ids = words("é€")["input_ids"]
    assert [byte for i in ids for byte in vocabulary.show(i)[1]] == list("é€".encode())
    assert vocabulary.show(words("a")["input_ids"][0]) == ("a", [97])
