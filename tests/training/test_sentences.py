"""Which tokens end a sentence, and the sentence that a position is in."""

import pytest
from allroads.training.sentences import is_sentence_end, sentence_bounds, sentence_end_ids

from .small_pair import tokenizer


@pytest.mark.parametrize("text", [".", "!", "?", "\n", " .", ").", "\n\n", "。", "！", "？", "5."])  # noqa: RUF001 (the CJK forms)
def test_ends(text: str) -> None:
    assert is_sentence_end(text)


@pytest.mark.parametrize("text", ["", " ", ",", ":", "a", ".a", "word.", "(.", '"?', "「。", "etc."])
def test_what_does_not_end_a_sentence(text: str) -> None:
    assert not is_sentence_end(text)


def test_the_embedded_tokenizer_has_full_stop_and_end_of_text() -> None:
    words = tokenizer()
    ends = sentence_end_ids(words)
    assert {words.eos_token_id, words.convert_tokens_to_ids("."), words.convert_tokens_to_ids("?")} <= ends
    assert words.convert_tokens_to_ids(",") not in ends
    assert words.convert_tokens_to_ids("+") not in ends


def test_bounds() -> None:
    ends = frozenset({0})
    tokens = [5, 6, 0, 7, 8, 0, 9]
    bounds = [sentence_bounds(tokens, position, ends) for position in range(len(tokens))]
    assert bounds == [(0, 3)] * 3 + [(3, 6)] * 3 + [(6, 7)]
