"""Which kernels a model needs, and in what words it is told that they cannot be had."""

import os
from pathlib import Path

import pytest
import torch
from allroads.cuda import flashinfer_kernels, flashinfer_use
from allroads.cuda.flashinfer_kernels import (
    KernelShape,
    compile_kernel,
    kernels_of,
    missing_tools,
    target_arch,
)
from allroads.errors import StartupError

CPU = torch.device("cpu")


class ScriptedKernel:
    """A module that fails to compile with these words."""

    name = "batch_something"

    def __init__(self, words: str = "", *, is_compiled: bool = False, is_aot: bool = False) -> None:
        self.is_compiled = is_compiled
        self.is_aot = is_aot
        self._words = words

    def build(self, verbose: bool) -> None:
        if self._words:
            raise RuntimeError(self._words)
        self.is_compiled = True


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like CUDA's, and the only one on the PATH that has ninja."""
    for name in ("cuda/bin/nvcc", "cuda/include/cuda_runtime.h", "bin/ninja"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.mark.parametrize(
    ("group", "invariant", "on_cores"), [(1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 0, 0), (7, 0, 0), (2, 1, 0)]
)
def test_few_heads_per_kv_head_decode_on_plain_cores(group: int, invariant: int, on_cores: int) -> None:
    shape = KernelShape(torch.bfloat16, 128, group, batch_invariant=bool(invariant))
    assert shape.decodes_on_cores == bool(on_cores)


@pytest.mark.parametrize("version", ["0.5.2", "0.7.0", "1.0", "0.0.0+unknown"])
def test_other_versions_are_named(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_use, "flashinfer_version", lambda: version)
    assert f"flashinfer {version} is none of" in flashinfer_use.why_not_installed()


@pytest.mark.parametrize("version", ["0.5.3", "0.5.3.post1", "0.6.0rc1", "0.6.13"])
def test_known_versions_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_use, "flashinfer_version", lambda: version)
    assert not flashinfer_use.why_not_installed()


def test_one_that_is_missing_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_use, "flashinfer_version", lambda: "")
    reason = flashinfer_use.why_not_flashinfer(KernelShape(torch.bfloat16, 128, 2), CPU)
    assert reason == "flashinfer is not installed (pip install 'allroads[gpu]')"


def test_a_model_or_device_that_it_has_no_kernels_for() -> None:
    assert "float32" in flashinfer_use.why_not_fit(KernelShape(torch.float32, 128, 2))
    assert "heads of 80" in flashinfer_use.why_not_fit(KernelShape(torch.float16, 80, 2))
    assert not flashinfer_use.why_not_fit(KernelShape(torch.float16, 64, 2))
    assert "no NVIDIA GPU" in flashinfer_use.why_not_device(CPU)


@pytest.mark.parametrize("arch", ["", "nine", "9", "9.", "9.a", "9.0 8.0", "7.5"])
def test_an_architecture_that_is_none(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHINFER_CUDA_ARCH_LIST", raising=False)
    with pytest.raises(StartupError, match="--arch"):
        target_arch(arch)
    assert "FLASHINFER_CUDA_ARCH_LIST" not in os.environ


def test_missing_programs_are_named(toolkit: Path) -> None:
    assert missing_tools() == ""
    (toolkit / "bin/ninja").unlink()
    (toolkit / "cuda/include/cuda_runtime.h").unlink()
    assert missing_tools().startswith("ninja (pip install ninja) and nvcc ")
    with pytest.raises(StartupError, match="without ninja"):
        compile_kernel(ScriptedKernel())
    # These need no compiler.
    compile_kernel(ScriptedKernel("must not be compiled", is_aot=True))
    compile_kernel(ScriptedKernel(is_compiled=True))


def test_the_toolkit_is_where_all_of_it_is(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvcc on the PATH that leads to one elsewhere is not taken for it."""
    script = toolkit / "bin/nvcc"
    script.touch(mode=0o755)
    monkeypatch.setattr(flashinfer_kernels, "_USUAL_HOME", toolkit / "cuda")
    monkeypatch.delenv("CUDA_HOME")
    compile_kernel(ScriptedKernel())
    assert os.environ["CUDA_HOME"] == str(toolkit / "cuda")
    monkeypatch.delenv("CUDA_HOME")


def test_a_kernel_is_compiled_or_says_what_the_compiler_said(toolkit: Path) -> None:
    kernel = ScriptedKernel()
    compile_kernel(kernel)
    assert kernel.is_compiled
    with pytest.raises(StartupError, match=r"batch_something was not compiled: line 2; .*; line 5$"):
        compile_kernel(ScriptedKernel("\n".join(f"line {number}" for number in range(6))))
    with pytest.raises(StartupError, match="LIBRARY_PATH"):
        compile_kernel(ScriptedKernel("ld: cannot find -lcuda: No such file\nninja: build stopped"))


COMPILE = "TEST_COMPILE_KERNELS"


@pytest.mark.skipif(COMPILE not in os.environ, reason=f"compiling takes minutes; {COMPILE}=9.0a does it")
def test_the_kernels_of_a_model_compile() -> None:
    target_arch(os.environ[COMPILE])
    for kernel in kernels_of(KernelShape(torch.bfloat16, 128, 2)):
        compile_kernel(kernel)
        assert kernel.is_compiled
