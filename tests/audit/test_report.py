"""Reports count what is there: rates of made logs are the true ones, and what cannot be known is not told."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from allroads.audit import pictures
from allroads.audit.calibrated import load_calibrated
from allroads.audit.cost import Prices, parse_prices
from allroads.audit.decision_file import DecisionLine, DecisionLog
from allroads.audit.drift import CalibratedRouter, ScoreBins
from allroads.audit.page import render_page
from allroads.audit.report import Audit, GroupReport, Shares, make_audit
from allroads.audit.survey import Survey
from allroads.audit.token_class import TokenClass, TokenClasses, class_of
from allroads.config import embedded_path
from allroads.errors import AllroadsError, CheckpointError, StartupError
from allroads.evaluation.cost import ParameterCounts

from .made_logs import SMALL, Line, World, caught, decision, end, missed, needless, write

QUANTILES = tuple(k / 20 for k in range(1, 20))


@pytest.fixture(scope="module")
def classes() -> TokenClasses:
    return TokenClasses(embedded_path("slm"))


def the_group(audit: Audit) -> GroupReport:
    (group,) = audit.groups
    return group


def counted(shares: Shares) -> dict[str, tuple[int, int]]:
    names = ("routed", "agrees", "same_if_on", "missed", "false_alarms", "caught")
    return {name: (getattr(shares, name).hits, getattr(shares, name).trials) for name in names}


def test_every_kind_of_decision_is_counted_where_it_belongs(tmp_path: Path) -> None:
    made = [decision, decision, missed, caught, caught, caught, needless]
    lines = [makes(1, n) for n, makes in enumerate(made)] + [end(1, 7), *(missed(2, n) for n in range(3)), end(2, 3)]
    group = the_group(make_audit([write(tmp_path / "log", lines)]))
    assert group.key.label == "r2r, threshold 0.4, audit"
    assert (group.overall.decisions, group.overall.requests) == (10, 2)
    assert counted(group.overall) == {
        "routed": (4, 10),
        "agrees": (3, 10),
        "same_if_on": (6, 10),
        "missed": (4, 6),
        "false_alarms": (1, 4),
        "caught": (3, 7),
    }


def test_where_it_is_on_only_what_was_sent_tells_of_the_large_model(tmp_path: Path) -> None:
    on: Line = {"mode": "on", "acted": True}
    lines = [
        *(decision(1, n, **on, tier=0, large=None) for n in range(5)),
        caught(1, 5, **on),
        needless(1, 6, **on),
        # The large model was out of reach.
        caught(1, 7, **on, tier=0, written=SMALL, large=None),
        end(1, 8, mode="on"),
    ]
    group = the_group(make_audit([write(tmp_path / "log", lines)]))
    assert counted(group.overall) == {
        "routed": (3, 8),
        "agrees": (0, 0),
        "same_if_on": (0, 0),
        "missed": (0, 0),
        "false_alarms": (1, 2),
        "caught": (0, 0),
    }
    assert group.overall.missed.share is None


def test_an_audit_by_the_small_model_tells_its_share_alone(tmp_path: Path) -> None:
    lines = [caught(1, n, tier=0, written=SMALL, large=None) for n in range(4)]
    group = the_group(make_audit([write(tmp_path / "log", lines)]))
    assert counted(group.overall)["routed"] == (4, 4)
    assert {trials for name, (_, trials) in counted(group.overall).items() if name != "routed"} == {0}


def test_modes_policies_and_thresholds_are_apart(tmp_path: Path) -> None:
    lines = [
        decision(1), decision(2, threshold=0.3), decision(3, policy="entropy", score=None), decision(4, mode="canary"),
        decision(5, policy="random", threshold=None),
    ]  # fmt: skip
    audit = make_audit([write(tmp_path / "log", lines)])
    assert [group.key.label for group in audit.groups] == [
        "entropy, threshold 0.4, audit",
        "r2r, threshold 0.3, audit",
        "r2r, threshold 0.4, audit",
        "r2r, threshold 0.4, canary",
        "random, threshold none, audit",
    ]


def test_a_threshold_that_moves_is_one_group(tmp_path: Path) -> None:
    lines = [decision(n // 10, n % 10, threshold=0.3 + n / 10_000) for n in range(500)]
    group = the_group(make_audit([write(tmp_path / "log", lines)]))
    assert group.key.threshold == "0.3 to 0.3499"
    assert (group.overall.decisions, group.overall.requests) == (500, 50)


def test_requests_of_other_runs_are_others(tmp_path: Path) -> None:
    lines = [decision(1, 0), decision(1, 1), decision(1, 0, run="b"), decision(1, 1, run="b")]
    assert the_group(make_audit([write(tmp_path / "log", lines)])).overall.requests == 2


def test_requests_that_lie_across_each_other_and_files_are_whole(tmp_path: Path) -> None:
    write(tmp_path / "log.1", [decision(1, 0), decision(2, 0), decision(1, 1)])
    path = write(tmp_path / "log", [decision(2, 1), decision(1, 2), end(1, 3), decision(2, 2), end(2, 3)])
    own = the_group(make_audit([path])).overall
    assert (own.decisions, own.requests) == (6, 2)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_rates_of_a_made_log_are_the_true_ones(tmp_path: Path, spread: float) -> None:
    world = World(differs=0.1, caught=0.8, needless=0.05, spread=spread)
    path = write(tmp_path / "log", world.lines(600, seed=3))
    own = the_group(make_audit([path])).overall
    assert own.requests == 600
    # Those that do not hang on how much answers differ.
    for rate, truth in ((own.caught, 0.8),):
        assert rate.low <= truth <= rate.high
    if not spread:
        truths = ((own.agrees, 0.9), (own.routed, 0.125), (own.missed, 0.02 / 0.875), (own.same_if_on, 0.98))
        for rate, truth in (*truths, (own.false_alarms, 0.045 / 0.125)):
            assert rate.low <= truth <= rate.high
            assert rate.high - rate.low < 0.05


def test_answers_that_differ_widen_the_interval(tmp_path: Path) -> None:
    widths = []
    for spread in (0.0, 1.5):
        path = write(tmp_path / "log", World(spread=spread).lines(200, seed=5))
        agrees = the_group(make_audit([path])).overall.agrees
        widths.append(agrees.high - agrees.low)
    assert widths[1] > 2 * widths[0]


def test_positions_are_in_bins_of_about_equal_size(tmp_path: Path) -> None:
    lines = [decision(request, n) for request in range(20) for n in range(request + 1)]
    group = the_group(make_audit([write(tmp_path / "log", lines)]))
    assert sum(part.decisions for part in group.by_position) == len(lines)
    assert group.by_position[0].name == "0 to 1"
    assert group.by_position[-1].name.endswith("19")
    assert len(group.by_position) == 10
    assert max(part.decisions for part in group.by_position) <= 2 * len(lines) / 10
    ends = [part.name.split(" to ") for part in group.by_position]
    assert [int(here[-1]) + 1 for here in ends[:-1]] == [int(there[0]) for there in ends[1:]]


def test_one_long_answer_among_short_ones(tmp_path: Path) -> None:
    lines = [decision(n, 0) for n in range(100)] + [decision(100, 70_000)]
    group = the_group(make_audit([write(tmp_path / "log", lines)]))
    assert [part.decisions for part in group.by_position] == [100, 1]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("the", TokenClass.WORD_PIECE), (" the", TokenClass.WORD_START), ("7", TokenClass.DIGIT),
        (" 12", TokenClass.DIGIT), ("3.5", TokenClass.DIGIT), (".", TokenClass.PUNCTUATION),
        (" (", TokenClass.PUNCTUATION), ("\n\n", TokenClass.WHITESPACE), ("  ", TokenClass.WHITESPACE),
        ("x1", TokenClass.WORD_PIECE), ("世界", TokenClass.WORD_PIECE), ("ि", TokenClass.WORD_PIECE),
        ("bytes:\\xe4", TokenClass.WORD_PIECE), ("\U0001f680", TokenClass.PUNCTUATION),
    ],
)  # fmt: skip
def test_classes_of_tokens(text: str, kind: TokenClass) -> None:
    assert class_of(text) is kind


def test_special_tokens_are_told_by_the_tokenizer(classes: TokenClasses) -> None:
    (eos,) = classes.tokenizer.vocabulary.eos_token_ids
    assert classes[eos] is TokenClass.SPECIAL
    kinds = {classes[token_id] for token_id in range(len(classes.tokenizer.vocabulary))}
    assert {TokenClass.WORD_START, TokenClass.DIGIT, TokenClass.PUNCTUATION, TokenClass.SPECIAL} <= kinds


def test_decisions_by_class(tmp_path: Path, classes: TokenClasses) -> None:
    vocabulary = len(classes.tokenizer.vocabulary)
    by_kind = {classes[token_id]: token_id for token_id in range(vocabulary)}
    digit, word = by_kind[TokenClass.DIGIT], by_kind[TokenClass.WORD_START]
    other = digit - 1
    lines = [
        missed(1, 0, proposal=digit, large=other), decision(1, 1, proposal=digit, large=digit),
        decision(1, 2, proposal=word, large=word), end(1, 3),
    ]  # fmt: skip
    group = the_group(make_audit([write(tmp_path / "log", lines)], classes=classes))
    assert {part.name: counted(part)["missed"] for part in group.by_class} == {"word start": (0, 1), "digit": (1, 2)}


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, classes: TokenClasses) -> None:
    path = write(tmp_path / "log", [decision(proposal=100_000)])
    with pytest.raises(StartupError, match="the log has token 100000, but the tokenizer in"):
        make_audit([path], classes=classes)


def test_costs_by_hand(tmp_path: Path) -> None:
    lines = [
        *(decision(1, n) for n in range(4)), needless(1, 4), decision(1, 5), end(1, 6, num_prompt=10),
        *(decision(2, n) for n in range(4)), end(2, 4, num_prompt=20),
    ]  # fmt: skip
    path = write(tmp_path / "log", lines)
    sizes = ParameterCounts((2_000_000_000, 10_000_000_000), 1_000_000_000)
    costs = the_group(make_audit([path], sizes=sizes, prices=Prices(0.1, 1.0))).costs
    assert costs.published is not None
    assert costs.published.routed == pytest.approx((9 * 2 + 1 * 10) / 10)
    assert costs.published.llm_alone == pytest.approx(10)
    assert costs.published.saved == pytest.approx(0.72)
    # The small model computes 15 + 23 positions, the router 10; the large one what comes before its one token: 10 + 4.
    assert costs.full is not None
    assert costs.full.routed == pytest.approx((38 * 2 + 10 * 1 + 14 * 10) / 10)
    assert costs.full.llm_alone == pytest.approx(38 * 10 / 10)
    assert costs.money is not None
    assert costs.money.routed == pytest.approx((9 * 0.1 + 1 * 1.0) / 10)
    assert costs.money.saved == pytest.approx(1 - 0.19)


def test_without_ends_the_full_cost_is_not_known(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [decision(1, n) for n in range(4)])
    costs = the_group(make_audit([path], sizes=ParameterCounts((1, 2)))).costs
    assert costs.full is None
    assert costs.published is not None


def test_prices() -> None:
    assert parse_prices("0.05, 0.6") == Prices(0.05, 0.6)
    for text in ("", "1", "1,2,3", "a,b", "1,0", "-1,2", "nan,1", "1,inf"):
        with pytest.raises(AllroadsError, match="--prices must be two prices"):
            parse_prices(text)


def scored(path: Path, scores: Sequence[float], threshold: float = 0.4) -> Path:
    lines = [
        decision(n // 50, n % 50, score=score, threshold=threshold, routed=score >= threshold)
        for n, score in enumerate(scores)
    ]
    return write(path, lines)


def test_scores_as_at_calibration_have_not_parted(tmp_path: Path) -> None:
    chance = Random(1)
    path = scored(tmp_path / "log", [chance.random() for _ in range(4000)])
    router = CalibratedRouter(name="r2r", threshold=0.4, score_quantiles=QUANTILES, calibrated_share=0.6)
    drift = the_group(make_audit([path], routers=[router])).drift
    assert drift is not None
    assert drift.index is not None
    assert drift.index < 0.02
    assert (drift.verdict, drift.calibrated_share, drift.share_fits) == ("as at calibration", 0.6, True)


def test_scores_that_moved_have_parted(tmp_path: Path) -> None:
    chance = Random(1)
    path = scored(tmp_path / "log", [chance.random() ** 0.5 for _ in range(4000)])
    router = CalibratedRouter(name="r2r", threshold=0.4, score_quantiles=QUANTILES, calibrated_share=0.6)
    drift = the_group(make_audit([path], routers=[router])).drift
    assert drift is not None
    # By hand: the integral of (2x - 1) ln(2x) over [0, 1] is 1/2.
    assert drift.index == pytest.approx(0.5, abs=0.06)
    assert (drift.verdict, drift.share_fits) == ("parted", False)


def test_few_scores_say_nothing(tmp_path: Path) -> None:
    path = scored(tmp_path / "log", [0.99] * 499)
    router = CalibratedRouter(name="r2r", threshold=0.4, score_quantiles=QUANTILES)
    drift = the_group(make_audit([path], routers=[router])).drift
    assert drift is not None
    assert (drift.index, drift.verdict) == (None, "too few scores")


def test_a_share_calibrated_at_another_threshold_is_not_compared(tmp_path: Path) -> None:
    path = scored(tmp_path / "log", [0.5] * 600)
    router = CalibratedRouter(name="r2r", threshold=0.41, score_quantiles=QUANTILES, calibrated_share=0.6)
    drift = the_group(make_audit([path], routers=[router])).drift
    assert drift is not None
    assert (drift.calibrated_share, drift.share_fits) == (None, None)


def test_equal_quantiles_are_one_bin() -> None:
    """Half of the scores at calibration were 0."""
    bins = ScoreBins((*[0.0] * 10, *(k / 20 for k in range(11, 20))))
    assert len(bins.expected) == 11
    assert sum(bins.expected) == pytest.approx(1)
    for k in range(10_000):
        bins.add(0.0 if k % 2 else 0.5 + (k % 1000) / 2000)
    assert bins.index < 0.01


def test_what_a_router_says_of_scores(tmp_path: Path) -> None:
    manifest = {
        "name": "r2r", "threshold": 0.4, "score_quantiles": QUANTILES, "calibrated_share": 0.1, "format": "any",
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    router = load_calibrated(tmp_path)
    assert (router.threshold, router.score_quantiles, router.calibrated_share) == (0.4, QUANTILES, 0.1)
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "score_quantiles": []}))
    with pytest.raises(CheckpointError, match="has no score_quantiles"):
        load_calibrated(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "score_quantiles": QUANTILES[::-1]}))
    with pytest.raises(CheckpointError, match="score_quantiles"):
        load_calibrated(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        load_calibrated(tmp_path)
    with pytest.raises(CheckpointError, match="cannot read"):
        load_calibrated(tmp_path / "nowhere")


def test_a_log_without_a_decision_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="the log holds no decision"):
        make_audit([write(tmp_path / "log", [end(1), end(2)])])


def test_json_has_every_figure_and_no_nan(tmp_path: Path, classes: TokenClasses) -> None:
    path = write(tmp_path / "log", [*World().lines(5, seed=1), decision(9, policy="other", large=None, tier=0)])
    router = CalibratedRouter(name="r2r", threshold=0.4, score_quantiles=QUANTILES)
    text = make_audit([path], classes=classes, routers=[router], prices=Prices(0, 1)).to_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    content = json.loads(text)
    assert (content["format"], content["version"], content["num_decisions"]) == ("allroads-audit", 1, 201)
    other, own = content["groups"]
    assert own["key"] == {"policy": "r2r", "mode": "audit", "low": 0.4, "high": 0.4}
    assert own["overall"]["routed"]["trials"] == 200
    assert other["overall"]["missed"]["share"] is None


MALICE = "<script>alert(1)</script>\"'&\x1b[31m\u202e$\\frac{"


def test_nothing_from_a_log_becomes_markup(tmp_path: Path, classes: TokenClasses) -> None:
    directory = tmp_path / "<img src=x onerror=alert(1)>"
    directory.mkdir()
    path = write(directory / "log", World(num_tokens=5).lines(3, seed=1, policy=MALICE))
    page = render_page(make_audit([path], classes=classes))
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_the_page_stands_alone_and_has_pictures(tmp_path: Path, classes: TokenClasses) -> None:
    path = write(tmp_path / "log", World().lines(30, seed=1))
    router = CalibratedRouter(name="r2r", threshold=0.4, score_quantiles=QUANTILES)
    page = render_page(make_audit([path], classes=classes, routers=[router], prices=Prices(0.1, 1)))
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("data:image/svg+xml;base64,") == 3
    for words in ("By class of", "By position", "Scores against", "money for a million tokens", "drift: "):
        assert words in page


def test_the_page_says_what_is_missing_for_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "can_draw", lambda: False)
    page = render_page(make_audit([write(tmp_path / "log", World().lines(3, seed=1))]))
    assert "<img" not in page
    assert "allroads[lifecycle]" in page


def test_pictures_are_the_same_for_the_same_log(tmp_path: Path) -> None:
    path = write(tmp_path / "log", World().lines(30, seed=1))
    first, second = (pictures.pictures_of(the_group(make_audit([path]))) for _ in range(2))
    assert first == second


def test_a_log_that_was_written_over_meanwhile_is_refused(tmp_path: Path) -> None:
    with DecisionLog([write(tmp_path / "log", [decision(1)])]) as log:
        survey = Survey(log.lines())
    with DecisionLog([write(tmp_path / "log", [decision(1, policy="other")])]) as log:
        (line,) = log.lines()
    assert isinstance(line, DecisionLine)
    with pytest.raises(StartupError, match="written over while it was read"):
        survey.group_of(line)
