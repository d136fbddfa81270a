"""What is looked at of GPUs before a mesh starts. The GPUs are made of numbers."""

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from allroads.cli.gpu_checks import check_gpus, tell_of_turns
from allroads.cli.preflight import check_mesh
from allroads.config import MeshSettings, load_settings
from allroads.errors import StartupError
from allroads.gpus import GpuFacts

GIB = 1 << 30
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 8, "num_hidden_layers": 1}


class Gpus:
    """Two of them, asked as `allroads up` asks."""

    def __init__(self, capability: tuple[int, int] = (9, 0), free_bytes: int = 8 * GIB) -> None:
        self.questions: list[list[int]] = []
        self._capability, self._free_bytes = capability, free_bytes

    def __call__(self, ordinals: Collection[int]) -> Mapping[int, GpuFacts]:
        self.questions.append(list(ordinals))
        if not {*ordinals} <= {0, 1}:
            raise StartupError("there is no such GPU", field="device")
        return {
            one: GpuFacts(one, "Test GPU", f"uuid-{one}", self._capability, 8 * GIB, self._free_bytes)
            for one in ordinals
        }


def mesh(directory: Path, **devices: dict[str, Any]) -> MeshSettings:
    for name in ("slm", "llm"):
        (directory / name / "config.json").write_text(json.dumps({"vocab_size": 4, **HEADS}))
    return load_settings(directory / "mesh.yaml", devices)


def test_a_mesh_without_gpus_asks_nobody(mesh_directory: Path) -> None:
    gpus = Gpus()
    assert check_gpus(mesh(mesh_directory), gpus) == {}
    assert gpus.questions == []


def test_all_gpus_of_a_mesh_are_asked_for_at_once(mesh_directory: Path) -> None:
    gpus = Gpus()
    cut = {"device": "cuda", "tensor_parallel": 2}
    facts = check_gpus(mesh(mesh_directory, slm={"device": "cuda"}, llm=cut, router={"device": "cuda:1"}), gpus)
    assert (gpus.questions, list(facts)) == ([[0, 1]], [0, 1])


@pytest.mark.parametrize(
    ("devices", "field"),
    [
        ({"router": {"device": "cuda:2"}}, "device"),
        ({"llm": {"device": "cuda:1", "tensor_parallel": 2}}, "device"),
        ({"llm": {"device": "cuda:1", "dtype": "bfloat16"}}, "llm.device"),
        ({"llm": {"tensor_parallel": 4}}, "llm.tensor_parallel"),
    ],
)
def test_what_a_gpu_cannot_do_is_told_before_anything_starts(
    mesh_directory: Path, devices: dict[str, dict[str, Any]], field: str
) -> None:
    with pytest.raises(StartupError) as caught:
        check_mesh(mesh(mesh_directory, **devices), Gpus(capability=(7, 5)))
    assert caught.value.field == field


def test_services_are_handed_numbers(mesh_directory: Path) -> None:
    auto = {"device": "cuda:0", "num_kv_tokens": "auto"}
    checked = check_mesh(mesh(mesh_directory, slm=auto, llm=auto), Gpus())
    assert checked.slm.allotted_kv_tokens == checked.llm.allotted_kv_tokens > 0
    assert isinstance(checked.memory_bytes["cuda:0"], int)


def test_what_is_not_free_is_told_before_anything_starts(mesh_directory: Path) -> None:
    with pytest.raises(StartupError, match=r"lower memory_share to 0\.5"):
        check_mesh(mesh(mesh_directory, slm={"device": "cuda:0", "num_kv_tokens": "auto"}), Gpus(free_bytes=4 * GIB))


@pytest.mark.parametrize(
    ("devices", "lines"),
    [
        ({}, []),
        ({"slm": {"device": "cuda"}, "llm": {"device": "cuda:1"}}, []),
        ({"llm": {"device": "cuda", "tensor_parallel": 2}}, []),
        ({"slm": {"device": "cuda"}, "llm": {"device": "cuda:0"}}, ["llm, slm are processes of their own on cuda:0"]),
        (
            {
                "slm": {"device": "cuda:1"},
                "router": {"device": "cuda:1"},
                "llm": {"device": "cuda:0", "tensor_parallel": 2},
            },
            ["llm, router, slm are processes of their own on cuda:1"],
        ),
    ],
)
def test_processes_that_take_turns_on_a_gpu_are_told_of_once(
    mesh_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    devices: dict[str, dict[str, Any]],
    lines: list[str],
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "none"))
    with caplog.at_level(logging.INFO, "allroads"):
        tell_of_turns(mesh(mesh_directory, **devices))
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["WARNING"] * len(lines)
    assert [words.startswith(line) for (_, words), line in zip(told, lines, strict=True)] == [True] * len(lines)


def test_with_mps_there_is_nothing_to_recommend(
    mesh_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    (pipes / "control").touch()
    (pipes / "nvidia-cuda-mps-control.pid").write_text("1")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes))
    monkeypatch.setenv("PATH", str(pipes))
    with caplog.at_level(logging.INFO, "allroads"):
        tell_of_turns(mesh(mesh_directory, slm={"device": "cuda"}, llm={"device": "cuda"}))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert caplog.records[0].getMessage().startswith("llm, slm share cuda:0 by CUDA MPS")
