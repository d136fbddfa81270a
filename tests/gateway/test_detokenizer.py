from allroads.config import embedded_path
from allroads.gateway.text.detokenizer import Detokenizer
from allroads.gateway.text.tokenizer import load_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

TOKENIZER = load_tokenizer(embedded_path("llm"))
token_ids = st.integers(0, len(TOKENIZER.vocabulary) - 1)
HALF = "\N{REPLACEMENT CHARACTER}"


@st.composite
def grouped(draw: st.DrawFn, ids: list[int]) -> list[list[int]]:
    groups = []
    while ids:
        size = draw(st.integers(1, 5))
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


def pieces_of(groups: list[list[int]]) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER.decode)
    return [*(detokenizer.push(group) for group in groups), detokenizer.finish()]


@settings(deadline=None, max_examples=60)
@given(st.data(), st.text(st.characters(codec="utf-8"), max_size=60))
def test_text_arrives_whole_and_without_half_characters(data: st.DataObject, text: str) -> None:
    ids = TOKENIZER._encode(text, add_special_tokens=False, field="prompt")
    pieces = pieces_of(data.draw(grouped(ids)))
    assert "".join(pieces) == TOKENIZER.decode(ids)
    if HALF not in text:
        assert not any(HALF in piece for piece in pieces)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.lists(token_ids, max_size=300))
def test_any_ids_give_what_one_decode_gives(data: st.DataObject, ids: list[int]) -> None:
    assert "".join(pieces_of(data.draw(grouped(ids)))) == TOKENIZER.decode(ids)


def byte_ids() -> list[int]:
    """Ids of single bytes that are no character by themselves."""
    return [token_id for token_id in range(len(TOKENIZER.vocabulary)) if TOKENIZER.decode([token_id]) == HALF]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.sampled_from(byte_ids()), min_size=100, max_size=400))
def test_noise_gives_what_one_decode_gives(ids: list[int]) -> None:
    assert "".join(pieces_of([[token_id] for token_id in ids])) == TOKENIZER.decode(ids)


def test_a_token_costs_the_same_at_any_length() -> None:
    decoded = []

    def decode(ids: list[int]) -> str:
        decoded.append(len(ids))
        return TOKENIZER.decode(ids)

    for ids in (TOKENIZER._encode("Aya has 37 世 apples. ", add_special_tokens=False, field="prompt"), byte_ids()[:3]):
        decoded.clear()
        detokenizer = Detokenizer(decode)  # type: ignore[arg-type]
        for _ in range(300):
            for token_id in ids:
                detokenizer.push([token_id])
        assert max(decoded) < 80


def test_the_first_token_of_a_text_is_treated_apart_only_once() -> None:
    words = ["", "▁Hello", "▁wide", "▁world"]

    def decode(ids: list[int]) -> str:
        return "".join(words[token_id] for token_id in ids).replace("▁", " ").removeprefix(" ")

    ids = [1, *[0] * 30, 2, *[0] * 30, 3] + [1, 2, 3] * 20
    detokenizer = Detokenizer(decode)  # type: ignore[arg-type]
    assert "".join([*(detokenizer.push([token_id]) for token_id in ids), detokenizer.finish()]) == decode(ids)
