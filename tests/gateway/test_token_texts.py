"""What single tokens say, for each way in which tokenizers spell bytes."""

from allroads.config import embedded_path
from allroads.gateway.text.token_text import TokenTexts
from allroads.gateway.text.tokenizer import load_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

TOKENIZER = load_tokenizer(embedded_path("llm"))


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_the_bytes_of_tokens_joined_are_those_of_the_text(text: str) -> None:
    token_ids = TOKENIZER._encode(text, add_special_tokens=False, field="prompt")
    joined = b"".join(TOKENIZER.token_texts[token_id].data for token_id in token_ids)
    assert joined == text.encode()


def test_tokens_of_a_vocabulary_can_be_told_apart() -> None:
    texts = [TOKENIZER.token_texts[token_id] for token_id in range(len(TOKENIZER.vocabulary))]
    assert len({token.text for token in texts}) == len(texts)
    assert len({token.data for token in texts}) == len(texts)
    halves = [token for token in texts if token.text.startswith("bytes:")]
    assert all(token.text == "bytes:\\x" + token.data.hex() for token in halves if len(token.data) == 1)
    assert len(halves) >= 128


def shown(tokens: list[str], decoder: decoders.Decoder | None) -> list[tuple[str, bytes]]:
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=tokens[0]))
    tokenizer.decoder = decoder
    texts = TokenTexts(tokens, " ".join if tokenizer.decoder is None else tokenizer.decoder.decode)
    return [(texts[index].text, texts[index].data) for index in range(len(tokens))]


def test_a_sentencepiece_vocabulary() -> None:
    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    assert shown(["<s>", "▁Hello", "world", "<0xE4>", "<0x0A>", "世", "▁", ""], decoder) == [
        ("<s>", b"<s>"),
        (" Hello", b" Hello"),
        ("world", b"world"),
        ("bytes:\\xe4", b"\xe4"),
        ("\n", b"\n"),
        ("世", "世".encode()),
        (" ", b" "),
        ("", b""),
    ]


def test_a_byte_level_vocabulary_with_added_tokens() -> None:
    assert shown(["ĠHello", "ä\u00b8ĸ", "ä\u00b8", "Ġä\u00b8", "<|im_end|>", "<\uff5cend>"], decoders.ByteLevel()) == [
        (" Hello", b" Hello"),
        ("世", "世".encode()),
        ("bytes:\\xe4\\xb8", b"\xe4\xb8"),
        ("bytes: \\xe4\\xb8", b" \xe4\xb8"),
        ("<|im_end|>", b"<|im_end|>"),
        ("<\uff5cend>", "<\uff5cend>".encode()),
    ]


def test_a_vocabulary_of_words() -> None:
    assert shown(["un", "##able"], decoders.WordPiece()) == [(" un", b" un"), ("able", b"able")]
    assert shown(["one", "<0x41>"], None) == [(" one", b" one"), (" <0x41>", b" <0x41>")]
