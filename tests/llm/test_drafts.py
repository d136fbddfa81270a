"""Drafts at the tier that judges them: the logits it judges by, what it keeps, what it refuses (C28)."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.llm.service import _read_draft_logits
from allroads.llm.tier import Responses, Tier, Visit
from allroads.mesh.process_memory import ProcessMemoryTransport
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.tensors import inline_reference
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2
from allroads.policies.policy import ACCEPT, Drafts, Judgement, Policy, Proposals, RequestView, Verdict
from allroads.policies.registry import PolicyRegistry
from transformers import AutoModelForCausalLM

from ..doubles.tiny_pair import write_tiny_pair

PROMPT = [5, 6, 7, 8, 9]
MAX_LENGTH = 64
OWN = 77
"""What the scripted judge writes."""
VOCABULARY = 472

Logits = Callable[[list[int]], torch.Tensor]


class Scripted(Policy):
    """Judges as the test says, and keeps what it was shown."""

    name = "scripted"
    summary = "judges as told"

    def __init__(self) -> None:
        self.judgement: Judgement | Exception = Judgement(0, OWN)
        self.seen: list[Drafts] = []
        self.texts: list[list[int]] = []
        """What each row of the last request's logits follows."""

    def verify(self, drafts: Drafts) -> list[Judgement]:
        self.seen.append(drafts)
        self.texts = [list(row.tokens) for row in drafts.rows[-1]]
        if isinstance(self.judgement, Exception):
            raise self.judgement
        return [self.judgement] * len(drafts.requests)


class Stays(Policy):
    """Writes on a visited tier until it has seen so many tokens there, then names who goes on."""

    name = "stays"
    summary = "scripted"
    routes_at_tiers = True
    verdict = ACCEPT

    def route(self, proposals: Proposals) -> list[Verdict]:
        verdicts = []
        for request in proposals.requests:
            count = request.memory["count"] = request.memory.get("count", 0) + 1
            stay = Verdict(keeps=True, tier=proposals.tier)
            verdicts.append(stay if count < request.extra[0] else self.verdict)
        return verdicts


class Bench:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scripted = Scripted()
        self.stays = Stays()
        self.delivered: list[model_pb2.VisitResponse] = []
        self.tier = Tier(engine, PolicyRegistry([self.scripted, self.stays]), self._deliver)

    def _deliver(self, responses: Responses) -> None:
        self.delivered += responses.values()

    def visit(self, *hand_offs: model_pb2.HandOff, draft_logits: Any = None) -> model_pb2.VisitResponse:
        """All that one message brings, as one response."""
        self.delivered.clear()
        read = {} if draft_logits is None else {0: draft_logits}
        pause_s = self.tier.turn([Visit(1, model_pb2.VisitRequest(hand_offs=hand_offs), read)])
        while pause_s == 0:
            pause_s = self.tier.turn([])
        merged = model_pb2.VisitResponse()
        for response in self.delivered:
            merged.MergeFrom(response)
        return merged


@pytest.fixture(scope="module")
def llm_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llm")
    write_tiny_pair(directory, vocab_size={"llm": VOCABULARY + 40})
    return directory / "llm"


@pytest.fixture(scope="module")
def next_logits(llm_path: Path) -> Logits:
    """Of a fresh whole pass of plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(llm_path, dtype=torch.float32).eval()

    def fresh(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits
        return logits[0, -1, :VOCABULARY]

    return fresh


@pytest.fixture
def bench(llm_path: Path) -> Bench:
    return Bench(Engine.load(ModelSettings(path=llm_path)))


def _hand_off(
    drafts: Sequence[int] | None, *, unseen: Sequence[int] = PROMPT, known: int = 0, visit: int = 1, number: int = 1,
    policy: str = "scripted", max_tokens: int = 1, stops: Sequence[int] = (), **fields: Any,
) -> model_pb2.HandOff:  # fmt: skip
    hand_off = model_pb2.HandOff(
        sequence_id=number,
        visit_number=visit,
        prefix_length=known,
        unseen_token_ids=unseen,
        max_tokens=max_tokens,
        judges=drafts is not None,
        draft_token_ids=drafts or (),
        **fields,
    )
    if not known:
        hand_off.visitor.CopyFrom(
            model_pb2.VisitorParams(
                sampling=pb.SamplingParams(temperature=0.0, stop_token_ids=stops, num_logprobs=0),
                max_length=MAX_LENGTH,
                num_prompt_tokens=len(PROMPT),
                routing=pb.Routing(policy=policy),
                max_tokens=MAX_LENGTH - len(PROMPT),
                num_tiers=3,
            )
        )
    return hand_off


def _drafts(count: int) -> list[int]:
    return [100 + 3 * index for index in range(count)]


@pytest.mark.parametrize("count", range(9))
def test_rollback_for_every_accepted_count(count: int, bench: Bench, next_logits: Logits) -> None:
    for accepted in range(count + 1):
        number = 10 + accepted
        bench.scripted.judgement = Judgement(accepted, OWN)
        response = bench.visit(_hand_off(_drafts(count), number=number))
        assert list(response.judged) == [True]
        assert list(response.num_accepted_drafts) == [accepted]
        assert (list(response.token_ids), list(response.returned)) == ([OWN], [True])
        shown = bench.scripted.seen[-1]
        for place in range(count + 1):
            torch.testing.assert_close(
                shown.logits[0][place], next_logits([*PROMPT, *_drafts(count)[:place]]), atol=1e-4, rtol=1e-4
            )
        # The text is now prompt, accepted drafts and the own token; what was dropped has left no trace.
        text = [*PROMPT, *_drafts(accepted), OWN]
        bench.scripted.judgement = Judgement(0, None)
        after = bench.visit(_hand_off([], unseen=(), known=len(text), number=number, visit=2))
        assert (list(after.num_tokens), list(after.returned)) == ([0], [True])
        (logits,) = bench.scripted.seen[-1].logits
        assert logits.shape == (1, VOCABULARY)
        torch.testing.assert_close(logits[0], next_logits(text), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("step_tokens", [2, 3, 5, 64])
def test_drafts_in_several_steps(step_tokens: int, llm_path: Path, next_logits: Logits) -> None:
    bench = Bench(Engine.load(ModelSettings(path=llm_path, max_step_tokens=step_tokens)))
    bench.visit(_hand_off(_drafts(7)))
    (logits,) = bench.scripted.seen[-1].logits
    for place in range(8):
        expected = next_logits([*PROMPT, *_drafts(7)[:place]])
        torch.testing.assert_close(logits[place], expected, atol=1e-4, rtol=1e-4)


def test_drafts_whose_kv_is_cached_are_judged_all_the_same(bench: Bench, next_logits: Logits) -> None:
    text = [*PROMPT, *_drafts(40)]
    bench.visit(_hand_off([], unseen=text))
    bench.tier.turn([Visit(1, model_pb2.VisitRequest(closed_sequence_ids=[1]))])
    # Two whole blocks of this text are in the pool; the second begins before the first draft and ends after it.
    response = bench.visit(_hand_off(text[20:44], unseen=text[:20], number=2))
    assert bench.engine.scheduler.num_cached_tokens == 16
    assert list(response.judged) == [True]
    (logits,) = bench.scripted.seen[-1].logits
    assert len(logits) == 25
    for place in (0, 7, 24):
        torch.testing.assert_close(logits[place], next_logits(text[: 20 + place]), atol=1e-4, rtol=1e-4)


def test_a_visit_that_goes_on_after_its_judgement(bench: Bench) -> None:
    bench.scripted.judgement = Judgement(2, OWN)
    response = bench.visit(_hand_off(_drafts(3), max_tokens=4))
    assert list(response.judged) == [True, False, False, False]
    assert list(response.returned) == [False, False, False, True]
    assert list(response.num_logprobs) == [1, 1, 1, 1]
    assert response.token_ids[0] == OWN


def test_a_draft_that_ends_the_text_ends_the_visit(bench: Bench) -> None:
    bench.scripted.judgement = Judgement(2, OWN)
    response = bench.visit(_hand_off([50, 2], stops=[2], max_tokens=5))
    assert (list(response.num_accepted_drafts), list(response.num_tokens)) == ([2], [0])
    assert list(response.returned) == [True]
    # The same token where it is not the last of those that stand ends nothing.
    bench.scripted.judgement = Judgement(1, OWN)
    response = bench.visit(_hand_off([50, 2], stops=[2], number=2))
    assert list(response.token_ids) == [OWN]


def test_drafts_may_fill_the_text(bench: Bench) -> None:
    room = MAX_LENGTH - len(PROMPT)
    bench.scripted.judgement = Judgement(room, OWN)
    response = bench.visit(_hand_off(_drafts(room)))
    assert (list(response.num_accepted_drafts), list(response.num_tokens)) == ([room], [0])
    response = bench.visit(_hand_off(_drafts(room + 1), number=2))
    assert response.errors[0].sequence_id == 2


def test_what_the_small_model_thought_comes_along(bench: Bench) -> None:
    logits = torch.randn(3, VOCABULARY)
    bench.visit(_hand_off(_drafts(3)), draft_logits=logits)
    (shown,) = bench.scripted.seen[-1].draft_logits
    assert shown is logits
    bench.visit(_hand_off([], unseen=(), known=len(PROMPT) + 1, visit=2))
    assert bench.scripted.seen[-1].draft_logits == [None]


def test_drafts_whose_logits_came_too_late_are_to_be_sent_again_and_nobody_sees_them(bench: Bench) -> None:
    late = torch.full((2, VOCABULARY), float("nan"))
    response = bench.visit(_hand_off(_drafts(2)), _hand_off(_drafts(1), number=2), draft_logits=late)
    (failure,) = response.errors
    assert (failure.sequence_id, failure.error.code) == (1, pb.ERROR_CODE_OUT_OF_STEP)
    assert list(response.sequence_ids) == [2]
    assert [drafts.draft_logits for drafts in bench.scripted.seen] == [[None]]
    bench.visit(_hand_off(_drafts(2), visit=2), draft_logits=torch.zeros(2, VOCABULARY))
    assert len(bench.scripted.seen) == 2


def _wrong(hand_off: model_pb2.HandOff, **fields: Any) -> model_pb2.HandOff:
    hand_off.MergeFrom(model_pb2.HandOff(**fields))
    return hand_off


def _refused() -> Iterator[tuple[str, model_pb2.HandOff, Any, str]]:
    yield "a draft that no tokenizer knows", _hand_off([VOCABULARY]), None, "not in the vocabulary"
    yield "drafts for nobody", _wrong(_hand_off(None), draft_token_ids=[5]), None, "to be judged"
    yield "too much to tell", _hand_off([5], extra=[0.0] * 65), None, "64"
    yield "logits of other drafts", _hand_off([5]), torch.zeros(2, VOCABULARY), "float32 [1, 472]"
    yield "logits of another width", _hand_off([5]), torch.zeros(1, VOCABULARY + 40), "float32 [1, 472]"
    yield "logits of another type", _hand_off([5]), torch.zeros(1, VOCABULARY, dtype=torch.float16), "float16"
    yield "an unknown policy", _hand_off([5], policy="nobody"), None, "unknown policy 'nobody'"
    yield "no policy", _hand_off([5], policy=""), None, "the policy that judges"


@pytest.mark.parametrize(("hand_off", "logits", "message"), [case[1:] for case in _refused()])
def test_bad_hand_offs_are_refused_alone(hand_off: model_pb2.HandOff, logits: Any, message: str, bench: Bench) -> None:
    response = bench.visit(hand_off, _hand_off([9], number=2), draft_logits=logits)
    (failure,) = response.errors
    assert failure.sequence_id == 1
    assert message in failure.error.message
    assert list(response.sequence_ids) == [2]
    bench.tier.turn([Visit(1, model_pb2.VisitRequest(closed_sequence_ids=[2]))])
    assert bench.engine.pool.num_free == bench.engine.pool.num_blocks


@pytest.mark.parametrize(
    "judgement",
    [RuntimeError("a fault"), Judgement(4, OWN), Judgement(-1, OWN), Judgement(0, VOCABULARY), Judgement(0, -5)],
)
def test_a_policy_that_fails_ends_its_visitors(judgement: Judgement | Exception, bench: Bench) -> None:
    bench.scripted.judgement = judgement
    plain = _hand_off(None, number=2, policy="")
    response = bench.visit(_hand_off(_drafts(3)), plain)
    assert [failure.sequence_id for failure in response.errors] == [1]
    assert "policy scripted failed in verify" in response.errors[0].error.message
    assert list(response.sequence_ids) == [2]


def test_logits_arrive_by_reference_and_bad_references_are_refused(bench: Bench) -> None:
    good, bad = _hand_off([5]), _hand_off([5], number=2)
    good.draft_logits.CopyFrom(inline_reference(torch.ones(1, VOCABULARY)))
    bad.draft_logits.CopyFrom(pb.TensorRef(dtype=pb.DTYPE_FLOAT32, shape=[1, VOCABULARY], inline=b"short"))
    request = model_pb2.VisitRequest(hand_offs=[good, _hand_off([5]), bad])
    read = _read_draft_logits(TensorReceiver("peer"), request, [])
    assert sorted(read) == [0, 2]
    assert isinstance(read[0], torch.Tensor)
    response = bench.visit(bad, draft_logits=read[2])
    assert response.errors[0].sequence_id == 2


@pytest.mark.parametrize("fault", ["", "the peer's ready word did not come"])
def test_logits_that_are_lost_with_their_region_are_sent_again_and_wrong_ones_are_not(fault: str, bench: Bench) -> None:
    transport = ProcessMemoryTransport()
    sender = TensorSender("llm", slot_bytes=8192, transports=[transport])
    receiver = TensorReceiver("home", [transport])
    region = sender.open()
    assert region is not None
    sender.on_registered(receiver.register(region))
    hand_off = _hand_off([5])
    (reference,) = sender.pack(1, [torch.ones(1, VOCABULARY)])
    hand_off.draft_logits.CopyFrom(reference)
    hand_off.draft_logits.slice.generation += 1
    used = receiver._in_use
    assert used is not None
    used.region.fault = fault  # type: ignore[misc]
    read = _read_draft_logits(receiver, model_pb2.VisitRequest(hand_offs=[hand_off]), [])
    (failure,) = bench.visit(hand_off, draft_logits=read[0]).errors
    wanted = pb.ERROR_CODE_OUT_OF_STEP if fault else pb.ERROR_CODE_INVALID_ARGUMENT
    assert failure.error.code == wanted
    assert fault in failure.error.message
    sender.close()


@pytest.mark.parametrize(
    ("verdict", "num_tokens", "next_tier"),
    [(ACCEPT, 1, 0), (Verdict(keeps=True, tier=2), 1, 2), (Verdict(keeps=False, tier=0, extra=(4.0,)), 0, 0)],
)
def test_a_policy_that_routes_at_tiers_ends_the_visit(
    verdict: Verdict, num_tokens: int, next_tier: int, bench: Bench
) -> None:
    bench.stays.verdict = verdict
    response = bench.visit(_hand_off(None, policy="stays", max_tokens=20, extra=[3.0]))
    assert list(response.num_tokens) == [1, 1, num_tokens]
    assert list(response.returned) == [False, False, True]
    assert list(response.next_tiers) == [0, 0, next_tier]
    assert list(response.extra) == list(verdict.extra)
    assert list(response.num_logprobs) == list(response.num_tokens)
    # A later visit, another count.
    known = len(PROMPT) + sum(response.num_tokens)
    again = bench.visit(_hand_off(None, policy="stays", unseen=[9], known=known, visit=2, max_tokens=20, extra=[3.0]))
    assert list(again.returned) == [True]


@pytest.mark.parametrize(
    "verdict", [Verdict(keeps=True, tier=3), Verdict(keeps=False, tier=1), Verdict(keeps=True, tier=0, is_draft=True)]
)
def test_verdicts_that_cannot_be_fail_their_request(verdict: Verdict, bench: Bench) -> None:
    bench.stays.verdict = verdict
    response = bench.visit(_hand_off(None, policy="stays", max_tokens=20, extra=[1.0]))
    assert "policy stays failed in route" in response.errors[0].error.message


def test_a_visit_ends_at_a_token_that_it_goes_until(bench: Bench) -> None:
    written = list(bench.visit(_hand_off(None, policy="", max_tokens=12)).token_ids)
    last = next(index for index, token_id in enumerate(written) if index >= 3 and token_id not in written[:index])
    until = _hand_off(None, policy="", max_tokens=12, number=2, until_token_ids=[written[last]])
    response = bench.visit(until)
    assert list(response.token_ids) == written[: last + 1]
    assert list(response.returned) == [False] * last + [True]


def test_views_tell_what_is_judged(bench: Bench) -> None:
    bench.visit(_hand_off(_drafts(2), unseen=[*PROMPT, 30, 31], extra=[0.5]))
    (view,) = bench.scripted.seen[-1].requests
    assert isinstance(view, RequestView)
    assert (view.position, view.num_drafts, view.extra, view.num_tokens) == (2, 2, (0.5,), VOCABULARY)
    (rows,) = bench.scripted.seen[-1].rows
    assert [row.position for row in rows] == [2, 3, 4]
    text = [*PROMPT, 30, 31]
    assert bench.scripted.texts == [text, [*text, *_drafts(1)], [*text, *_drafts(2)]]
