"""Whether CUDA can be used, told in words; and how a process without torch asks."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from allroads.cuda import runtime
from allroads.errors import StartupError
from allroads.gpus import GpuFacts, ask_gpus, canonical, facts_from_json, facts_to_json, ordinal_of

FACTS = GpuFacts(1, "Test GPU", "uuid", (9, 0), 100, 40)
has_gpu = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not has_gpu, reason="there is no CUDA device here")


@pytest.mark.parametrize(
    ("device", "name", "ordinal"),
    [("cuda", "cuda:0", 0), ("cuda:0", "cuda:0", 0), ("cuda:12", "cuda:12", 12), ("cpu", "cpu", None),
     ("cpu:0", "cpu", None), ("mps", "mps:0", None), ("cuda:x", "cuda:x", None)],
)  # fmt: skip
def test_devices_by_name(device: str, name: str, ordinal: int | None) -> None:
    assert (canonical(device), ordinal_of(device)) == (name, ordinal)


def test_facts_survive_the_way_from_the_child() -> None:
    assert facts_from_json(f"some library greets\n{facts_to_json([FACTS])}\n") == {1: FACTS}
    with pytest.raises(StartupError, match="no such thing"):
        facts_from_json(facts_to_json([], "no such thing"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"refusal": "", "gpus": [{"ordinal": 1}]}', "Segmentation fault"])
def test_an_answer_that_is_none_is_told(text: str) -> None:
    with pytest.raises(StartupError, match="could not be asked") as caught:
        facts_from_json(text)
    assert caught.value.field == "device"


@pytest.mark.parametrize("module", ["json.tool", "no_such_module"])
def test_a_child_that_fails_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    real = subprocess.run

    def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        done: subprocess.CompletedProcess[str] = real([sys.executable, "-S", "-m", module, "--wrong"], **options)
        return done

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(StartupError, match=r"could not be asked: .*(--wrong|no_such_module)"):
        ask_gpus([0])


def test_one_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(StartupError, match=r"did not answer within 120 s; .*nvidia-smi"):
        ask_gpus([0])


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_says_what_to_install() -> None:
    with pytest.raises(StartupError, match=r"built without CUDA: install the build of torch .* or set device to cpu"):
        ask_gpus([0])


@pytest.mark.parametrize("reason", ["Found no NVIDIA driver on your system.\nCheck more", None])
def test_a_missing_driver_is_told_by_torchs_own_words(monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
    def init() -> None:
        if reason is not None:
            raise RuntimeError(reason)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    words = (reason or "torch sees no GPU").partition("\n")[0]
    assert runtime.why_unusable().startswith(f"CUDA cannot be used: {words}; see if nvidia-smi lists a GPU")
    with pytest.raises(StartupError, match="CUDA cannot be used"):
        runtime.gpu_facts(0)


class Properties:
    name, uuid, major, minor, total_memory = "Test GPU", "uuid", 9, 0, 100


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch would say of two GPUs, the second of which is full."""

    def mem_get_info(ordinal: int) -> tuple[int, int]:
        if ordinal == 1:
            raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")
        return 40, 100

    monkeypatch.setattr(runtime, "why_unusable", lambda: "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: Properties)


@pytest.mark.usefixtures("two_gpus")
def test_facts_of_a_gpu() -> None:
    assert runtime.gpu_facts(0) == GpuFacts(0, "Test GPU", "uuid", (9, 0), 100, 40)
    assert runtime.device_uuid(torch.device("cuda:0")) == "uuid"
    assert runtime.device_uuid(torch.device("cpu")) == ""


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_or_does_not_start() -> None:
    with pytest.raises(StartupError, match=r"there is no cuda:2: this process sees 2 GPU\(s\), .*last is cuda:1"):
        runtime.gpu_facts(2)
    with pytest.raises(StartupError, match=r"cuda:1 does not start: CUDA error: out of memory; see with nvidia-smi"):
        runtime.gpu_facts(1)


def test_bfloat16_needs_a_gpu_that_has_it() -> None:
    old = GpuFacts(0, "Old GPU", "uuid", (7, 5), 100, 40)
    old.require_dtype("float16")
    FACTS.require_dtype("bfloat16")
    with pytest.raises(StartupError, match=r"Old GPU\) has compute capability 7\.5, .*set dtype to float16") as caught:
        old.require_dtype("bfloat16")
    assert caught.value.field == "device"


@pytest.fixture
def kept_precision() -> Any:
    """How torch multiplies is put back."""
    products = torch.backends.cuda.matmul
    names = [
        f"allow_{dtype}_reduced_precision_reduction{part}" for dtype in ("bf16", "fp16") for part in ("", "_split_k")
    ]
    before, precision = [getattr(products, name) for name in names], torch.get_float32_matmul_precision()
    yield
    products.allow_bf16_reduced_precision_reduction = tuple(before[:2])
    products.allow_fp16_reduced_precision_reduction = tuple(before[2:])
    torch.set_float32_matmul_precision(precision)


@pytest.mark.usefixtures("kept_precision")
def test_products_are_as_exact_as_their_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries: list[str] = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", libraries.append)
    products = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision("high")
    before = products.allow_bf16_reduced_precision_reduction
    runtime.multiply_exactly()
    assert torch.get_float32_matmul_precision() == "highest"
    assert (products.allow_bf16_reduced_precision_reduction, libraries) == (before, [])
    runtime.multiply_exactly(batch_invariant=True)
    assert not products.allow_bf16_reduced_precision_reduction
    assert not products.allow_fp16_reduced_precision_reduction
    assert libraries == ["cublaslt"]
    runtime.multiply_exactly()
    assert not products.allow_bf16_reduced_precision_reduction


@pytest.mark.gpu
@needs_gpu
def test_a_child_tells_what_this_process_sees() -> None:
    asked, here = ask_gpus([0])[0], runtime.gpu_facts(0)
    assert (asked.uuid, asked.name, asked.total_bytes) == (here.uuid, here.name, here.total_bytes)
    assert 0 < here.free_bytes <= here.total_bytes
    with pytest.raises(StartupError, match="there is no cuda:99"):
        ask_gpus([99])
