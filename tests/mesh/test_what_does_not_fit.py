"""Pairs, routers and checkpoints that do not fit are refused at start, with the reason (C29, C48, C52)."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from allroads.config import load_settings
from allroads.errors import CheckpointError
from allroads.mesh.wire import model_pb2, router_pb2
from allroads.slm.description import require_routers_for_mesh
from allroads.vocabulary import load_vocabulary
from safetensors.torch import load_file, save_file

from ..doubles.home_client import HomeClient, request
from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_random_router, write_tiny_pair


def _swap_two_ids(path: Path) -> None:
    content = json.loads((path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    by_id = {number: token for token, number in vocabulary.items()}
    vocabulary[by_id[100]], vocabulary[by_id[101]] = 101, 100
    (path / "tokenizer.json").write_text(json.dumps(content))


def _other_end(path: Path) -> None:
    content = json.loads((path / "tokenizer_config.json").read_text())
    content["eos_token"] = "<|endoftext|>"
    (path / "tokenizer_config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(("damage", "message"), [(_swap_two_ids, "id 100 is"), (_other_end, "the eos_token is")])
def test_another_tokenizer_is_named_by_its_first_difference(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    write_tiny_pair(tmp_path)
    mine = load_vocabulary(tmp_path / "slm")
    assert mine.first_difference(load_vocabulary(tmp_path / "llm")) is None
    damage(tmp_path / "llm")
    difference = mine.first_difference(load_vocabulary(tmp_path / "llm"))
    assert difference is not None
    assert message in difference
    assert mine.hash != load_vocabulary(tmp_path / "llm").hash


async def test_a_home_refuses_a_tier_with_another_tokenizer(tiny_pair: Path, tmp_path: Path) -> None:
    other = tmp_path / "llm"
    shutil.copytree(tiny_pair / "llm", other)
    _swap_two_ids(other)
    settings = load_settings(
        overrides={
            "slm": {"path": str(tiny_pair / "slm")},
            "llm": {"path": str(other)},
            "router": {"path": str(tiny_pair / "router")},
        }
    )
    mesh = MeshProcesses(settings, tmp_path / "m", forks=False)
    mesh.start("llm", "router", "slm")
    try:
        assert mesh.processes["slm"].wait(90) == 2
        assert "id 100 is" in mesh.log("slm")
    finally:
        mesh.stop()


def test_a_router_for_another_large_model_is_refused() -> None:
    scorers = {
        "r2r": router_pb2.ScorerDescription(name="r2r"),
        "citer": router_pb2.ScorerDescription(name="citer", llm_id="qwen3-3x48-106k"),
    }
    require_routers_for_mesh(model_pb2.DescribeResponse(model_id="qwen3-3x48-106k"), scorers)
    with pytest.raises(CheckpointError, match=r"qwen3-36x4096-8b.*scorer citer"):
        require_routers_for_mesh(model_pb2.DescribeResponse(model_id="qwen3-36x4096-8b"), scorers)


async def test_padded_output_layers_fit_and_unscorable_tokens_go_to_the_large_model(tmp_path: Path) -> None:
    write_tiny_pair(tmp_path, vocab_size={"slm": 480, "llm": 512})
    write_random_router(tmp_path / "router", slm=tmp_path / "slm", llm=tmp_path / "llm")
    _spoil_router(tmp_path / "router")
    settings = load_settings(overrides={name: {"path": str(tmp_path / name)} for name in ("slm", "llm", "router")})
    mesh = MeshProcesses(settings, tmp_path / "m")
    mesh.start("llm", "router", "slm")
    try:
        await mesh.until_ready("slm")
        async with HomeClient(mesh.settings.slm.address) as client:
            unscorable, large, mixed = await client.answer(
                *(request([5, 6, 7], policy, ignore_eos=True) for policy in ("r2r", "llm", "judged-alternating"))
            )
        assert unscorable.token_ids == large.token_ids
        assert set(unscorable.tiers) == {1}
        assert unscorable.finished is not None
        assert unscorable.finished.usage.num_unscorable_tokens == 32
        assert max(unscorable.token_ids + mixed.token_ids) < 472
        # Drafts are judged by both models' distributions over the tokens that they share.
        async with HomeClient(mesh.settings.slm.address) as client:
            judged = await client.answer(
                *(
                    request([5, 6, 7], policy, ignore_eos=True, temperature=1.0, seed=seed, given=given)
                    for policy, given in (("speculative", {}), ("cascade-opt", {"alpha": 0.1}))
                    for seed in range(4)
                )
            )
        for reply in judged:
            assert reply.finished is not None
            assert reply.finished.usage.num_drafts > 0
            assert max(reply.token_ids) < 472
    finally:
        assert set(mesh.stop().values()) == {0}


def _spoil_router(directory: Path) -> None:
    """Weights that are valid and score everything NaN."""
    weights = load_file(directory / "router.safetensors")
    weights["backbone.output_layer.1.bias"] = torch.full_like(weights["backbone.output_layer.1.bias"], float("nan"))
    save_file(weights, directory / "router.safetensors")
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["weights_sha256"] = hashlib.sha256((directory / "router.safetensors").read_bytes()).hexdigest()
    (directory / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("name", "content"), [("tokenizer.json", "{}"), ("config.json", "{")])
def test_damaged_vocabularies_are_refused(name: str, content: str, tmp_path: Path) -> None:
    write_tiny_pair(tmp_path)
    (tmp_path / "slm" / name).write_text(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_vocabulary(tmp_path / "slm")
