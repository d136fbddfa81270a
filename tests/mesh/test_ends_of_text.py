"""Every id that either model names ends an answer, whoever writes it (C31)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from allroads.config import load_settings
from allroads.errors import CheckpointError
from allroads.mesh.wire import common_pb2 as pb
from allroads.vocabulary import load_vocabulary

from ..doubles.home_client import HomeClient, request
from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair

TOKENIZERS, OURS, THEIRS, CONFIGS = 2, 50, 60, 70
"""End tokens: the tokenizer's own, the small model's, the large model's, and one of a model's config."""


def _set_ends(directory: Path, file: str, ends: int | list[int] | None) -> None:
    path = directory / file
    content = json.loads(path.read_text()) if path.exists() else {}
    content["eos_token_id"] = ends
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("in_generation_config", "in_config", "expected"),
    [
        (None, None, {TOKENIZERS}),
        (OURS, None, {TOKENIZERS, OURS}),
        ([OURS, THEIRS], None, {TOKENIZERS, OURS, THEIRS}),
        ([OURS], CONFIGS, {TOKENIZERS, OURS, CONFIGS}),
        (TOKENIZERS, [CONFIGS, OURS], {TOKENIZERS, OURS, CONFIGS}),
    ],
)
def test_all_that_a_model_names_count(
    in_generation_config: int | list[int] | None, in_config: int | list[int] | None, expected: set[int], tmp_path: Path
) -> None:
    write_tiny_pair(tmp_path)
    _set_ends(tmp_path / "slm", "generation_config.json", in_generation_config)
    _set_ends(tmp_path / "slm", "config.json", in_config)
    assert set(load_vocabulary(tmp_path / "slm").eos_token_ids) == expected
    (tmp_path / "slm" / "generation_config.json").unlink()
    assert TOKENIZERS in load_vocabulary(tmp_path / "slm").eos_token_ids


async def test_each_ends_the_answer_of_either_model(tmp_path: Path) -> None:
    write_tiny_pair(tmp_path)
    _set_ends(tmp_path / "slm", "generation_config.json", [TOKENIZERS, OURS])
    _set_ends(tmp_path / "llm", "generation_config.json", THEIRS)
    _set_ends(tmp_path / "llm", "config.json", CONFIGS)
    settings = load_settings(overrides={name: {"path": str(tmp_path / name)} for name in ("slm", "llm", "router")})
    mesh = MeshProcesses(settings, tmp_path / "m")
    mesh.start("llm", "router", "slm")
    try:
        await mesh.until_ready("slm")
        async with HomeClient(mesh.settings.slm.address) as client:
            for end in (TOKENIZERS, OURS, THEIRS, CONFIGS):
                # The third token is the end, by its bias; the first two may not be one.
                wanted = pb.SamplingParams(logit_bias={end: 100.0}, min_tokens=2)
                openings = [request([5, 6, 7], policy, max_tokens=9) for policy in ("slm", "llm", "judged-alternating")]
                openings.append(request([5, 6, 7], "slm", max_tokens=9, ignore_eos=True))
                for opening in openings:
                    opening.sampling.MergeFrom(wanted)
                *ended, ignoring = await client.answer(*openings)
                for reply in ended:
                    assert len(reply.token_ids) == 3
                    assert reply.token_ids[-1] == end
                    assert reply.finished is not None
                    assert reply.finished.reason == pb.FINISH_REASON_STOP
                assert len(ignoring.token_ids) == 9
                assert end in ignoring.token_ids
    finally:
        mesh.stop()


def test_a_damaged_list_of_ends_is_refused(tmp_path: Path) -> None:
    write_tiny_pair(tmp_path)
    _set_ends(tmp_path / "slm", "generation_config.json", ["two"])  # type: ignore[list-item]
    check: Callable[[], object] = lambda: load_vocabulary(tmp_path / "slm")  # noqa: E731
    with pytest.raises(CheckpointError, match="eos_token_id"):
        check()
