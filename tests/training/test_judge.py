"""The exact judge, against every wording that the language has."""

from itertools import combinations

import pytest
from allroads.training import problems
from allroads.training.judge import facts_of, sentences_agree

WORDS = {"name": "Aya", "friend": "Ben", "item": "apples", "before": 37, "count": 58, "after": 95}
FORMS = (problems._OPENING, problems._GAIN_STEP, problems._LOSS_STEP, problems._TALLY, problems._CLOSING)


@pytest.mark.parametrize("forms", FORMS)
def test_wordings_of_one_thing_agree(forms: tuple[str, ...]) -> None:
    sentences = [f"{link} {form.format(**WORDS)}" for form in forms for link in problems._LINK]
    assert all(sentences_agree(one, other) for one, other in combinations(sentences, 2))


@pytest.mark.parametrize("forms", FORMS)
def test_wordings_of_two_things_differ(forms: tuple[str, ...]) -> None:
    sentence = forms[0].format(**WORDS)
    others = [form.format(**WORDS) for other in FORMS if other is not forms for form in other]
    if forms is problems._TALLY or forms is problems._OPENING:
        # "Aya has 58 apples" says the same at the start and on the way, and so it may.
        others = [other for other in others if facts_of(other).numbers not in (("58",), ("95",))]
    assert not any(sentences_agree(sentence, other) for other in others)


RIGHT = "Then, Aya gets 58 more apples, so 37 + 58 = 95."


@pytest.mark.parametrize(
    "wrong",
    [
        "Then, Aya gets 58 more apples, so 37 + 58 = 96.",
        "Then, Aya gets 58 more apples, so 37 - 58 = 95.",
        "Then, Aya gets 58 more apples, so 58 + 37 = 95.",
        "Then, Aya gets 85 more apples, so 37 + 58 = 95.",
        "Then, Aya gets 58 more apples, so 37 + 58 = 9 5.",
        "Then, Ben gets 58 more apples, so 37 + 58 = 95.",
        "Then, Aya gets 58 more pens, so 37 + 58 = 95.",
        "Then, Aya gives up 58 apples, so 37 + 58 = 95.",
        "Then, Aya is short of 58 apples, and 37 + 58 = 95.",
        "Then, Aya gets 58 more apples for Ben, so 37 + 58 = 95.",
        "Then, Ayaya gets 58 more apples, so 37 + 58 = 95.",
        "Then, Aya gets 58 more apples, so 37 + 58 = .",
        "Then, Aya gets 58 more app",
        "The answer is 95.",
        "",
    ],
)
def test_what_changes_the_meaning_differs(wrong: str) -> None:
    assert not sentences_agree(wrong, RIGHT)


@pytest.mark.parametrize(
    "other",
    [
        "After that, Aya adds 58 apples, and 37 + 58 = 95.",
        "Next, Aya adds 58 apples, so 37 + 58 = 95.",
        " Then, Aya gets 58 more apples so 37+58=95!",
    ],
)
def test_mere_wording_agrees(other: str) -> None:
    assert sentences_agree(other, RIGHT)
