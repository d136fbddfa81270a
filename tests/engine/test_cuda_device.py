"""A GPU as an engine sees it. Without one, what it decides by: facts, settings, and which attention there is."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.config import ModelSettings
from allroads.cuda import runtime
from allroads.engine import cuda_device
from allroads.engine.attention import KvShape, Plan
from allroads.engine.cuda_device import CudaDevice, require_free_memory, why_direct
from allroads.engine.device import pick_device
from allroads.engine.engine import Engine
from allroads.engine.graph_runner import GraphRunner
from allroads.engine.runner import ModelRunner
from allroads.engine.sdpa_attention import SdpaBackend
from allroads.engine.self_check import tolerance
from allroads.errors import StartupError
from allroads.gpus import GpuFacts
from allroads.placement import part_size
from allroads.step_memory import model_step_bytes

from ..doubles.tiny_pair import write_tiny_pair

GIB = 1 << 30
FACTS = GpuFacts(1, "Test GPU", "uuid", (9, 0), 8 * GIB, 7 * GIB)
SHAPE = KvShape(num_layers=1, num_kv_heads=1, head_dim=8, num_blocks=4, block_size=4, num_heads=2)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    return directory / "slm"


class Recordable(SdpaBackend):
    """An attention that can be recorded, as far as anybody looks."""

    def fixed_plan(self, num_rows: int, num_tokens: int) -> None:
        raise AssertionError("nothing is recorded here")


def backend(kind: type[SdpaBackend]) -> SdpaBackend:
    return kind(SHAPE, num_slots=1, max_blocks=4, dtype=torch.float32)


def forward(
    token_ids: torch.Tensor, positions: torch.Tensor, outputs: torch.Tensor, plan: Plan
) -> tuple[torch.Tensor, torch.Tensor]:
    """A pass that any device can run."""
    rows = token_ids.index_select(0, outputs).to(torch.bfloat16).unsqueeze(1).expand(-1, 8) + 0
    return rows, rows + 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """A GPU that is said to be there, whose attention is the CPU's. The devices that were made current meanwhile."""
    current: list[torch.device] = []

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen)
        yield

    def pick_attention(settings: ModelSettings, shape: KvShape, **options: Any) -> tuple[SdpaBackend, str]:
        assert options.pop("device") == torch.device("cuda:1")
        return SdpaBackend(shape, **options), "sdpa, as a test says"

    monkeypatch.setattr(cuda_device, "gpu_facts", lambda ordinal: replace(FACTS, ordinal=ordinal))
    monkeypatch.setattr(cuda_device, "pick_attention", pick_attention)
    monkeypatch.setattr(torch.cuda, "device", device)
    return current


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("name", "place"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1")])
def test_a_device_by_its_name(model: Path, name: str, place: str) -> None:
    device = pick_device(ModelSettings(path=model, device=name, num_kv_tokens=64))
    assert (str(device.torch_device), device.memory_bytes()) == (place, 8 * GIB)


def test_the_log_says_what_it_is_and_how_steps_run(model: Path, gpu: list[torch.device]) -> None:
    settings = ModelSettings(path=model, device="cuda:1", num_kv_tokens=64)
    device = CudaDevice(torch.device("cuda:1"), settings)
    attention = device.attention(SHAPE, num_slots=1, max_blocks=4, dtype=torch.float32)
    assert gpu == [torch.device("cuda:1")]
    words = device.describe()
    assert words.startswith(
        "cuda:1 (Test GPU, capability 9.0, 7.0 of 8.0 GiB free before the model): attention by sdpa, as a test says, "
        "steps run directly, as that attention cannot be recorded; MPS does not run: "
    )
    assert isinstance(device.runner(forward, attention, 4), ModelRunner)


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        (Recordable, {}, ""),
        (Recordable, {"graphs": "off"}, "graphs are off"),
        (Recordable, {"tensor_parallel": 2}, "its processes could not fail together to record one"),
        (SdpaBackend, {}, "that attention cannot be recorded"),
    ],
)
def test_steps_are_recorded_where_they_can_be(kind: type[SdpaBackend], changed: dict[str, Any], reason: str) -> None:
    assert why_direct(ModelSettings(path=Path("model"), **changed), backend(kind)) == reason


def test_memory_that_is_not_free_is_told_before_the_model_is_loaded(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ModelSettings(path=model, device="cuda:1", num_kv_tokens=100)
    weight_bytes, kv_bytes = part_size(settings)
    kept = weight_bytes + 96 * kv_bytes
    steps = model_step_bytes(settings)
    with caplog.at_level(logging.WARNING):
        require_free_memory(replace(FACTS, free_bytes=kept + steps), settings)
        assert caplog.records == []
        require_free_memory(replace(FACTS, free_bytes=kept + steps - 1), settings)
    assert "memory may run short" in caplog.text
    with pytest.raises(StartupError) as caught:
        require_free_memory(replace(FACTS, free_bytes=kept - 1), settings)
    assert caught.value.field == "num_kv_tokens"
    for number in (kept - 1, weight_bytes, 96 * kv_bytes, steps, 8 * GIB):
        assert str(number) in caught.value.message


def test_a_part_of_a_model_needs_a_part_of_the_memory(model: Path) -> None:
    settings = ModelSettings(path=model, device="cuda:1", num_kv_tokens=32_768)
    tight = replace(FACTS, free_bytes=part_size(settings)[0] + 32_768 * part_size(settings)[1] - 1)
    with pytest.raises(StartupError):
        require_free_memory(tight, settings)
    require_free_memory(tight, settings.model_copy(update={"tensor_parallel": 2}))


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_cannot_is_refused_by_the_field(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "gpu_facts", lambda ordinal: replace(FACTS, capability=(7, 5)))
    with pytest.raises(StartupError, match=r"bfloat16 needs 8\.0") as caught:
        pick_device(ModelSettings(path=model, device="cuda:1", dtype="bfloat16"))
    assert caught.value.field == "device"


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_without_cuda_a_model_on_a_gpu_says_what_to_install(model: Path) -> None:
    with pytest.raises(StartupError, match="built without CUDA: install") as caught:
        Engine.load(ModelSettings(path=model, device="cuda"))
    assert caught.value.field == "device"


def test_deeper_models_may_differ_more_from_transformers_by_rounding() -> None:
    assert tolerance(torch.bfloat16, 28) == tolerance(torch.bfloat16, 32) == 5e-2
    assert tolerance(torch.bfloat16, 128) == pytest.approx(2 * 5e-2)
    assert tolerance(torch.float32, 2) == 1e-4


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_loads_onto_a_gpu(model: Path, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = ModelSettings.model_validate({"path": model, "device": "cuda", "dtype": dtype, "num_kv_tokens": 256})
    with caplog.at_level(logging.INFO, "allroads"):
        engine = Engine.load(settings)
    assert runtime.gpu_facts(0).name in caplog.text
    assert "fused" in caplog.text
    assert engine.kv_blocks.memory.is_cuda


@pytest.mark.gpu
@needs_gpu
def test_a_recordable_attention_gets_graphs(model: Path) -> None:
    settings = ModelSettings(path=model, device="cuda", dtype="bfloat16", num_kv_tokens=256, max_graph_tokens=4)
    device = CudaDevice(torch.device("cuda"), settings)
    attention = device.attention(replace(SHAPE, head_dim=64), num_slots=4, max_blocks=4, dtype=torch.bfloat16)
    if why := why_direct(settings, attention):
        pytest.skip(f"steps run directly here, as {why}: {device.describe()}")

    runner = device.runner(forward, attention, 8)
    assert isinstance(runner, GraphRunner)
    assert runner.num_recorded > 0
