"""Meshes of three models: hand-offs between any two tiers, and KV on all of them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.config import MeshSettings, load_settings
from allroads.engine.sampling import SamplingParams, sample
from allroads.engine.sequence import Sequence
from allroads.policies.me import ModelEnsemble
from allroads.policies.policy import RequestView
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses
from ..doubles.tier_probe import free_tier_tokens
from ..doubles.tiny_pair import write_tiny_pair

SERVICES = ("llm", "mid", "router", "slm")
EOS = 2
ROUNDING = 2e-4
WEIGHTS = (0.4, 0.3, 0.3)


@pytest.fixture(scope="module")
def triple(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of three models, the small one's first, and of the scorers' folder."""
    directory, other = tmp_path_factory.mktemp("pair"), tmp_path_factory.mktemp("other")
    write_tiny_pair(directory)
    write_tiny_pair(other, seed=9)
    return {"slm": directory / "slm", "mid": other / "llm", "llm": directory / "llm", "router": directory / "router"}


def _settings(triple: dict[str, Path], **slm: Any) -> MeshSettings:
    paths = {name: {"path": str(triple[name])} for name in ("slm", "llm", "router")}
    return load_settings(
        overrides={**paths, "slm": {**paths["slm"], **slm}, "middle": {"mid": {"path": str(triple["mid"])}}}
    )


@pytest.fixture(scope="module")
def mesh(triple: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    processes = MeshProcesses(_settings(triple), tmp_path_factory.mktemp("m"))
    with processes.running(*SERVICES):
        yield processes


@pytest.fixture(scope="module")
def models(triple: dict[str, Path]) -> list[PreTrainedModel]:
    return [
        AutoModelForCausalLM.from_pretrained(triple[name], dtype=torch.float32).eval() for name in ("slm", "mid", "llm")
    ]


def _prompts(count: int) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(3, 472) for _ in range(rng.choice([1, 16, 37]))] for _ in range(count)]


def _schedule(seed: int, weights: tuple[float, ...], count: int) -> list[int]:
    """Who writes each place: by the policy's own draw, which is a test of its own."""
    view = RequestView(seed=seed, parameters={"weights": weights}, max_tokens=count, num_tiers=3)
    tiers = []
    for position in range(count):
        view.position = position
        tiers.append(ModelEnsemble().ahead(view))
    assert None not in tiers
    return [tier for tier in tiers if tier is not None]


def _slowly(
    models: list[PreTrainedModel], prompt: list[int], sampling: SamplingParams, tiers: list[int]
) -> tuple[list[int], list[int]]:
    """The definition: each token by the model whose turn it is, everything computed anew."""
    answer: list[int] = []
    for tier in tiers:
        text = [*prompt, *answer]
        with torch.inference_mode():
            logits = models[tier](torch.tensor([text]), use_cache=False).logits[:, -1]
        (token_id,) = sample(logits, [Sequence(text, len(text) + 1, sampling, len(prompt))]).tolist()
        answer.append(token_id)
        if token_id == EOS:
            break
    return answer, tiers[: len(answer)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_an_ensemble_of_three_equals_its_definition(
    temperature: float, mesh: MeshProcesses, models: list[PreTrainedModel]
) -> None:
    num_tokens = 24
    prompts = _prompts(50)
    wires = [
        request(prompt, "me", max_tokens=num_tokens, temperature=temperature, seed=seed, weights=WEIGHTS)
        for seed, prompt in enumerate(prompts)
    ]
    gate = asyncio.Semaphore(12)
    async with HomeClient(mesh.settings.slm.address) as client:
        alone = [(await client.answer(wire))[0] for wire in wires[:4]]

        async def ask(index: int) -> Reply:
            async with gate:
                (reply,) = await client.answer(wires[index])
            return reply

        together = await asyncio.gather(*map(ask, range(len(wires))))
    written = {0: 0, 1: 0, 2: 0}
    num_equal = 0
    for seed, (prompt, reply) in enumerate(zip(prompts, together, strict=True)):
        assert reply.error is None, reply.error
        sampling = SamplingParams(temperature=temperature, seed=seed)
        tokens, tiers = _slowly(models, prompt, sampling, _schedule(seed, WEIGHTS, num_tokens))
        assert reply.tiers[: len(tiers)] == tiers[: len(reply.tiers)]
        num_equal += (reply.token_ids, reply.tiers) == (tokens, tiers)
        assert reply.finished is not None
        assert list(reply.finished.usage.num_committed_tokens) == [reply.tiers.count(tier) for tier in range(3)]
        for tier in reply.tiers:
            written[tier] += 1
    # Where two tokens are level, or a draw falls on the edge of two, rounding may choose the other one.
    assert num_equal >= len(prompts) - 1
    assert min(written.values()) > 0.2 * sum(written.values())
    assert [reply.token_ids for reply in alone] == [reply.token_ids for reply in together[:4]]


async def test_the_small_model_rests_where_it_has_no_part(mesh: MeshProcesses, models: list[PreTrainedModel]) -> None:
    prompt = _prompts(3)[2]
    async with HomeClient(mesh.settings.slm.address) as client:
        (reply,) = await client.answer(request(prompt, "me", max_tokens=20, seed=4, weights=[0, 1, 1], ignore_eos=True))
    assert reply.finished is not None
    assert set(reply.tiers) == {1, 2}
    usage = reply.finished.usage
    assert usage.num_computed_tokens[0] == 0
    assert usage.num_hand_offs == 1 + sum(a != b for a, b in zip(reply.tiers, reply.tiers[1:], strict=False))


@pytest.mark.parametrize("policy", ["llm", "lossless", "r2r"])
async def test_pair_policies_go_to_the_largest(policy: str, mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        (reply,) = await client.answer(request(_prompts(1)[0], policy, max_tokens=20, ignore_eos=True))
    assert reply.finished is not None
    assert 2 in reply.tiers
    assert 1 not in reply.tiers
    assert reply.finished.usage.num_computed_tokens[1] == 0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 1.0], "3 numbers from 0 to 1000, one for each tier"),
        ([-1.0, 1.0, 1.0], "from 0 to 1000"),
        ([0.0, 0.0, 0.0], "above 0"),
        ([float("nan"), 1.0, 1.0], "from 0 to 1000"),
    ],
)
async def test_bad_weights_are_refused(weights: list[float], message: str, mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        (reply,) = await client.answer(request([5], "me", weights=weights))
    assert reply.error is not None
    assert reply.error.field == "routing.weights"
    assert message in reply.error.message


async def test_an_abort_frees_all_tiers(mesh: MeshProcesses) -> None:
    addresses = [mesh.address(name) for name in ("mid", "llm")]
    before = [await free_tier_tokens(address) for address in addresses]
    prompts = _prompts(6)
    wires = [
        *(request(p, "me", max_tokens=900, weights=WEIGHTS, ignore_eos=True, seed=i) for i, p in enumerate(prompts)),
        *(request(p, "lossless", max_tokens=900, ignore_eos=True) for p in prompts),
    ]
    async with HomeClient(mesh.settings.slm.address) as client:
        await client.answer(request([5], "slm", max_tokens=2))
        free = client.load.num_free_kv_tokens
        replies = await client.open(*wires)
        for reply in replies:
            while len(reply.token_ids) < 12:
                reply.progress.clear()
                await asyncio.wait_for(reply.progress.wait(), 60)
        held = [await free_tier_tokens(address) for address in addresses]
        assert all(now < then for now, then in zip(held, before, strict=True))
        await client.abort(*(wire.sequence_id for wire in wires))
        async with asyncio.timeout(30):
            while [await free_tier_tokens(address) for address in addresses] != before:  # noqa: ASYNC110 (not ours)
                await asyncio.sleep(0.05)
        await client.answer(request([5], "slm", max_tokens=2))
        assert client.load.num_free_kv_tokens == free
        assert not any(reply.done.is_set() for reply in replies)


@contextlib.asynccontextmanager
async def _started(settings: MeshSettings, directory: Path) -> AsyncIterator[MeshProcesses]:
    mesh = MeshProcesses(settings, directory)
    mesh.start(*SERVICES)
    try:
        await mesh.until_ready("slm")
        yield mesh
    finally:
        mesh.stop()


@pytest.mark.timeout(240)
async def test_the_middle_dies_and_comes_back(triple: dict[str, Path], tmp_path: Path) -> None:
    wires = [
        request(prompt, policy, max_tokens=160, ignore_eos=True, seed=seed, given=parameters)
        for seed, prompt in enumerate(_prompts(3))
        for policy, parameters in (("me", {"weights": WEIGHTS}), ("llm", {}))
    ]
    async with (
        _started(_settings(triple, peer_timeout_s=100.0), tmp_path) as mesh,
        HomeClient(mesh.settings.slm.address) as client,
    ):
        undisturbed = await client.answer(*wires)
        replies = await client.open(*wires)
        while len(replies[0].token_ids) < 20:
            replies[0].progress.clear()
            await asyncio.wait_for(replies[0].progress.wait(), 60)
        mesh.kill("mid")
        # Who needs nothing of it goes on.
        for reply in replies[1::2]:
            await asyncio.wait_for(reply.done.wait(), 60)
        assert not replies[0].done.is_set()
        mesh.start("mid")
        for reply, expected in zip(replies, undisturbed, strict=True):
            await asyncio.wait_for(reply.done.wait(), 110)
            assert reply.error is None
            assert (reply.token_ids, reply.tiers) == (expected.token_ids, expected.tiers)
        assert set(mesh.stop().values()) == {0}


@pytest.mark.timeout(180)
async def test_small_pools_hold_nobody_for_ever(triple: dict[str, Path], tmp_path: Path) -> None:
    """Each tier has room for two requests at once; all of twelve that need all tiers end, also when one is lost."""
    settings = _settings(triple, peer_timeout_s=60.0).with_internal(
        {name: {"num_kv_tokens": 128} for name in ("slm", "mid", "llm")}
    )
    async with _started(settings, tmp_path) as mesh, HomeClient(mesh.settings.slm.address) as client:
        weights = ([1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 1])
        replies = await client.answer(
            *(request([9] * 10, "me", max_tokens=40, seed=seed, weights=weights[seed % 4]) for seed in range(12))
        )
        assert all(reply.finished is not None for reply in replies)
        replies = await client.open(
            *(request([9] * 10, "me", max_tokens=40, seed=seed, weights=weights[seed % 4]) for seed in range(12))
        )
        while len(replies[0].token_ids) < 5:
            replies[0].progress.clear()
            await asyncio.wait_for(replies[0].progress.wait(), 60)
        mesh.kill("mid")
        mesh.start("mid")
        for reply in replies:
            await asyncio.wait_for(reply.done.wait(), 60)
        assert all(reply.finished is not None for reply in replies)
        assert set(mesh.stop().values()) == {0}
