"""Where sentences end, told token by token (R2R, arXiv 2505.21600, section 3.2 and its public code)."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

_ENDS = (".", "!", "?", "\n", "。", "！", "？", "…")  # noqa: RUF001 (the CJK forms)
_OPEN = frozenset("([{<\"'“‘（「『")  # noqa: RUF001 (as above)
_MAX_LENGTH = 3


def is_sentence_end(token_text: str) -> bool:
    """Whether a token ends a sentence: short, closed by a full stop or its like, with nothing opened in it."""
    text = token_text.strip(" ")
    return text.endswith(_ENDS) and len(text) <= _MAX_LENGTH and not _OPEN.intersection(text)


def text_of(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    """The text of some tokens."""
    return str(tokenizer.decode(list(tokens)))


def sentence_end_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Ids of the tokens that end a sentence, and of the one that ends the text."""
    ends = {i for i in range(len(tokenizer)) if is_sentence_end(text_of(tokenizer, [i]))}
    return frozenset(ends | {tokenizer.eos_token_id})


def sentence_bounds(tokens: Sequence[int], position: int, ends: frozenset[int]) -> tuple[int, int]:
    """The sentence that holds `position`, as [start, end) with its closing token."""
    start = position
    while start > 0 and tokens[start - 1] not in ends:
        start -= 1
    end = position
    while end < len(tokens) and tokens[end] not in ends:
        end += 1
    return start, min(end + 1, len(tokens))
