"""Word problems with worked solutions: the language that the embedded pair speaks.

A solution is mostly easy text (names, copied numbers, set phrases), carries one sum per step that is
hard for a small model, and is worded in several ways whose choice does not matter. So the three kinds
of token that R2R tells apart (identical, neutral, divergent) all occur.

Everything here is a pure function of a seed. Which split a problem belongs to is decided by a hash of
its question, so no question of one split can appear in another.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation", "test"]

MAX_COUNT = 99

NAMES = (
    "Aya", "Ben", "Chloe", "Dan", "Ela", "Finn", "Gita", "Hugo",
    "Ines", "Jon", "Kira", "Leo", "Mia", "Noah", "Oda", "Paul",
)  # fmt: skip
ITEMS = (
    "apples", "books", "cards", "coins", "eggs", "lemons",
    "marbles", "nuts", "pens", "shells", "stamps", "stones",
)  # fmt: skip

_START = ("{name} has {count} {item}.", "{name} starts with {count} {item}.", "{name} owns {count} {item}.")
_GAIN = (
    "{name} buys {count} more {item}.",
    "{name} finds {count} more {item}.",
    "{name} gets {count} {item} from {friend}.",
)
_LOSS = (
    "{name} loses {count} {item}.",
    "{name} sells {count} {item}.",
    "{name} gives {count} {item} to {friend}.",
)
_ASK = ("How many {item} does {name} have now?", "How many {item} are left for {name}?")

_OPENING = ("To begin, {name} has {count} {item}.", "At first, {name} has {count} {item}.",
            "{name} starts with {count} {item}.")  # fmt: skip
_LINK = ("Then,", "Next,", "After that,")
_GAIN_STEP = (
    "{name} gets {count} more {item}, so {before} + {count} = {after}.",
    "{name} adds {count} {item}, and {before} + {count} = {after}.",
)
_LOSS_STEP = (
    "{name} gives up {count} {item}, so {before} - {count} = {after}.",
    "{name} is short of {count} {item}, and {before} - {count} = {after}.",
)
_TALLY = ("Now {name} has {after} {item}.", "That makes {after} {item} for {name}.")
_CLOSING = ("The answer is {after}.", "So the answer is {after}.")

_ANSWER = re.compile(r"answer is (\d+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, a worked solution in one of many wordings, and the number that is right."""

    question: str
    solution: str
    answer: int


def read_answer(text: str) -> int | None:
    """The number that a solution gives as its answer, or None where it gives none."""
    found = _ANSWER.findall(text)
    return int(found[-1]) if found else None


def split_of(question: str) -> Split:
    """The split that a question belongs to: 90 % train, 5 % validation, 5 % test."""
    bucket = hashlib.sha256(question.encode()).digest()[0]
    if bucket < 13:
        return "test"
    return "validation" if bucket < 26 else "train"


def problems(split: Split, seed: int) -> Iterator[Problem]:
    """Distinct problems of a split, without end, in an order fixed by the seed."""
    rng = random.Random(f"{split}:{seed}")
    seen: set[bytes] = set()
    while True:
        problem = _draw(rng)
        key = hashlib.blake2b(problem.question.encode(), digest_size=8).digest()
        if split_of(problem.question) == split and key not in seen:
            seen.add(key)
            yield problem


def drills(seed: int) -> Iterator[tuple[str, str]]:
    """Bare sums, without end, as (sum, result): ("37 + 58 =", " 95.")."""
    rng = random.Random(f"drill:{seed}")
    while True:
        before, count, after = _sum(rng, rng.randint(1, MAX_COUNT))
        sign = "+" if after > before else "-"
        yield f"{before} {sign} {count} =", f" {after}."


def _sum(rng: random.Random, before: int) -> tuple[int, int, int]:
    gain = rng.random() < (MAX_COUNT - before) / MAX_COUNT
    count = rng.randint(1, MAX_COUNT - before) if gain else rng.randint(1, before - 1 or 1)
    return before, count, before + count if gain else before - count


def _worded(rng: random.Random, forms: tuple[str, ...], hint: int) -> str:
    """A wording: the one that `hint` points at in 6 of 10 cases, else any other.

    The hint makes one wording the likeliest without making the choice matter: a model that reads the
    hint and one that does not will differ here, and both are right.
    """
    favourite = forms[hint % len(forms)]
    if rng.random() < 0.6:
        return favourite
    return rng.choice([form for form in forms if form is not favourite])


def _draw(rng: random.Random) -> Problem:
    name, friend = rng.sample(NAMES, 2)
    item = rng.choice(ITEMS)
    words = {"name": name, "friend": friend, "item": item}
    count = rng.randint(10, MAX_COUNT)
    asked = [rng.choice(_START).format(count=count, **words)]
    solved = [_worded(rng, _OPENING, count).format(count=count, **words)]
    for _ in range(rng.randint(2, 4)):
        before, count, after = _sum(rng, count)
        numbers = {"before": before, "count": count, "after": after, **words}
        gained = after > before
        asked.append(rng.choice(_GAIN if gained else _LOSS).format(**numbers))
        step = _worded(rng, _GAIN_STEP if gained else _LOSS_STEP, count)
        solved.append(f"{_worded(rng, _LINK, before)} {step.format(**numbers)}")
        solved.append(_worded(rng, _TALLY, after).format(**numbers))
        count = after
    asked.append(rng.choice(_ASK).format(**words))
    solved.append(_worded(rng, _CLOSING, count).format(after=count))
    return Problem(" ".join(asked), " ".join(solved), count)
