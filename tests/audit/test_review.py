"""A review asks what matters, the same each time, and never loses an answer."""

import json
import stat
from pathlib import Path

import pytest
from allroads.audit.review_pick import pick
from allroads.audit.review_queue import Answer, Item, ReviewQueue
from allroads.cli.main import app
from allroads.config import embedded_path
from allroads.errors import StartupError
from typer.testing import CliRunner

from .made_logs import LARGE, SMALL, World, caught, decision, end, missed, needless, write

CONTEXT = [10, 11, 12]


def item(number: int = 1, **changes: object) -> Item:
    known = {
        "id": f"3fa9c1d2/{number}/0", "policy": "r2r", "threshold": 0.4, "score": 0.3, "routed": False,
        "proposal": SMALL, "large": LARGE, "context": (10, 11, 12), "is_whole": True,
    }  # fmt: skip
    return Item.model_validate({**known, **changes})


def test_missed_ones_come_first_and_close_calls_before_clear_ones(tmp_path: Path) -> None:
    unknown = {"context": CONTEXT, "large": None, "tier": 0, "written": SMALL}
    lines = [
        caught(1, 0, score=0.5, context=CONTEXT),
        caught(2, 0, score=0.41, context=CONTEXT),
        decision(3, 0, score=0.399, context=CONTEXT),
        needless(4, 0, score=0.401, context=CONTEXT),
        missed(5, 0, score=0.1, context=CONTEXT),
        missed(6, 0, score=0.39, context=CONTEXT),
        missed(7, 0, score=None, context=CONTEXT),
        decision(8, 0, score=0.4, **unknown),
        missed(9, 0, score=0.4),
    ]
    path = write(tmp_path / "log", lines)
    order = [6, 5, 7, 2, 1, 8]
    assert [one.id for one in pick([path], 50)] == [f"3fa9c1d2/{number}/0" for number in order]
    assert [one.id for one in pick([path], 2)] == ["3fa9c1d2/6/0", "3fa9c1d2/5/0"]
    assert [one.id for one in pick([path], 2, known={"3fa9c1d2/6/0"})] == ["3fa9c1d2/5/0", "3fa9c1d2/7/0"]


def test_few_are_alike_while_there_are_others(tmp_path: Path) -> None:
    lines = [missed(n, 0, score=0.39 - n / 1000, context=CONTEXT) for n in range(10)]
    lines += [missed(n, 0, score=0.2 - n / 1000, context=CONTEXT, large=50 + n) for n in range(10, 13)]
    path = write(tmp_path / "log", lines)
    numbers = [[int(one.id.split("/")[1]) for one in pick([path], count)] for count in (2, 5, 8)]
    assert numbers == [[0, 1], [0, 1, 2, 10, 11], [0, 1, 2, 3, 4, 10, 11, 12]]


def test_the_choice_does_not_hang_on_the_order_of_lines(tmp_path: Path) -> None:
    lines = [line for line in World().lines(30, seed=1, context=CONTEXT) if "end" not in line]
    there = pick([write(tmp_path / "there", lines)], 20)
    assert len(there) == 20
    assert pick([write(tmp_path / "back", reversed(lines))], 20) == there


def test_a_context_is_whole_only_where_the_prompt_s_length_says_so(tmp_path: Path) -> None:
    lines = [
        missed(1, 2, context=CONTEXT), end(1, 3, num_prompt=1),
        missed(2, 2, context=CONTEXT), end(2, 3, num_prompt=2),
        missed(3, 2, context=CONTEXT),
    ]  # fmt: skip
    assert [one.is_whole for one in pick([write(tmp_path / "log", lines)], 9)] == [True, False, False]


def test_a_log_without_contexts_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"set slm\.decisions_context") as refused:
        pick([write(tmp_path / "log", [missed()])], 9)
    assert refused.value.field == "slm.decisions_context"


def test_answers_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with ReviewQueue(path) as queue:
        queue.add([item(1), item(2), item(3)])
        queue.answer(item(1), Answer.NEUTRAL)
        queue.answer(item(2), Answer.DIVERGENT)
    with ReviewQueue(path) as queue:
        assert [one.id for one in queue.open_items] == ["3fa9c1d2/3/0"]
        queue.add([item(2), item(4)])
        queue.answer(item(1), Answer.SAME)
    with ReviewQueue(path) as queue:
        assert list(queue.items.values()) == [item(n) for n in (1, 2, 3, 4)]
        assert queue.answers == {item(1).id: Answer.SAME, item(2).id: Answer.DIVERGENT}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().splitlines()) == 7


@pytest.mark.parametrize("num_bytes", [1, 7, 8, 30])
def test_an_answer_that_was_cut_short_is_taken_off(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "queue"
    with ReviewQueue(path) as queue:
        queue.add([item(1), item(2)])
        queue.answer(item(1), Answer.NEUTRAL)
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole + last[:num_bytes])
    with ReviewQueue(path) as queue:
        assert path.read_bytes() == whole
        queue.answer(item(2), Answer.SKIP)
    with ReviewQueue(path) as queue:
        assert queue.answers == {item(1).id: Answer.NEUTRAL, item(2).id: Answer.SKIP}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x", "the line"),
        ('{"v":1,"t":1,"id":"3fa9c1d2/1/0","answer":"perhaps"}', "answer"),
        ('{"v":1,"t":1,"id":"3fa9c1d2/9/0","answer":"same"}', "answers a decision that is not in the file"),
        ('{"v":2,"t":1,"id":"3fa9c1d2/1/0","answer":"same"}', "v:"),
        ('{"v":1,"item":{"id":"../../etc"}}', "item.id"),
    ],
)
def test_a_damaged_queue_is_refused_and_left_as_it_is(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "queue"
    with ReviewQueue(path) as queue:
        queue.add([item(1)])
    content = path.read_text() + line + "\n"
    path.write_text(content)
    with pytest.raises(StartupError, match="line 2") as refused:
        ReviewQueue(path)
    assert words in refused.value.message
    assert path.read_text() == content


def test_another_file_is_not_taken_for_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("do not touch")
    with pytest.raises(StartupError, match="none of a review queue"):
        ReviewQueue(path)
    assert path.read_text() == "do not touch"


def test_one_review_at_a_time(tmp_path: Path) -> None:
    with ReviewQueue(tmp_path / "queue"), pytest.raises(StartupError, match="another review has"):
        ReviewQueue(tmp_path / "queue")
    with ReviewQueue(tmp_path / "queue"):
        pass


def review(tmp_path: Path, keys: str, *options: str) -> str:
    arguments = ["audit", "review", str(tmp_path / "log"), "--queue", str(tmp_path / "queue"), "--tokenizer"]
    result = CliRunner().invoke(app, [*arguments, str(embedded_path("slm")), *options], input=keys)
    assert result.exit_code == 0, result.output
    return result.output


def answers(tmp_path: Path) -> list[str]:
    with ReviewQueue(tmp_path / "queue") as queue:
        return [queue.answers[one].value for one in queue.items if one in queue.answers]


def test_a_person_answers_goes_on_and_corrects(tmp_path: Path) -> None:
    write(tmp_path / "log", [missed(n, 0, score=0.3 - n / 100, context=CONTEXT) for n in range(4)])
    shown = review(tmp_path, "d\nx\nN\nq\n")
    assert answers(tmp_path) == ["divergent", "neutral"]
    assert "1 of 4" in shown
    assert "1 divergent, 1 neutral; 2 to go" in shown
    shown = review(tmp_path, "k\nb\ns\nk\n")
    assert "1 of 2" in shown
    assert "(now skip)" in shown
    assert answers(tmp_path) == ["divergent", "neutral", "same", "skip"]
    assert "nothing to review" in review(tmp_path, "")
    review(tmp_path, "n\nq\n", "--again")
    assert answers(tmp_path) == ["neutral", "neutral", "same", "skip"]


def test_the_end_of_the_input_ends_the_review(tmp_path: Path) -> None:
    write(tmp_path / "log", [missed(n, 0, context=CONTEXT) for n in range(3)])
    assert "2 to go" in review(tmp_path, "d\n")
    assert answers(tmp_path) == ["divergent"]


def test_an_empty_queue_takes_the_next_ones(tmp_path: Path) -> None:
    write(tmp_path / "log", [missed(n, 0, score=n / 100, context=CONTEXT) for n in range(5)])
    review(tmp_path, "d\nd\n", "--decisions", "2")
    review(tmp_path, "n\nn\n", "--decisions", "2")
    review(tmp_path, "s\n", "--decisions", "2")
    assert answers(tmp_path) == ["divergent", "divergent", "neutral", "neutral", "same"]


def test_nothing_that_is_shown_can_steer_a_terminal(tmp_path: Path) -> None:
    """Every byte there is, as a token of its own, in the context and as proposals."""
    vocabulary = json.loads((embedded_path("slm") / "tokenizer.json").read_text())["model"]["vocab"]
    ids = list(vocabulary.values())
    lines = [
        missed(n, 0, proposal=token, large=ids[(n + 1) % len(ids)], context=ids, policy="[red]\x1b[31m")
        for n, token in enumerate(ids[:300])
    ]
    write(tmp_path / "log", lines)
    shown = review(tmp_path, "s\n" * 300, "--decisions", "300")
    assert "300 same" in shown
    assert {character for character in shown if not character.isprintable()} <= {"\n", "\t"}


def test_a_context_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "log", [missed(context=[99_999])])
    arguments = ["audit", "review", str(tmp_path / "log"), "--queue", str(tmp_path / "queue"), "--tokenizer"]
    result = CliRunner().invoke(app, [*arguments, str(embedded_path("slm"))], input="d\n")
    assert isinstance(result.exception, StartupError)
    assert "99999" in result.exception.message
