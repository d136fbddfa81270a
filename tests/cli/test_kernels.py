"""`allroads kernels`: what it needs, and what it says where something is missing."""

import json
from pathlib import Path

import pytest
from allroads.cli.main import app
from allroads.errors import AllroadsError
from typer.testing import CliRunner


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A mesh whose large model is on a GPU, as far as its config.json goes."""
    shape = {
        "hidden_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    file = tmp_path / "mesh.yaml"
    file.write_text(json.dumps({"llm": {"path": str(tmp_path), "device": "cuda:0", "dtype": "bfloat16"}}))
    return file


def refusal(*arguments: str | Path) -> AllroadsError:
    error = CliRunner().invoke(app, ["kernels", *map(str, arguments)]).exception
    assert isinstance(error, AllroadsError), error
    return error


def test_a_mesh_without_a_gpu_needs_none() -> None:
    assert "no model of the mesh attends by flashinfer on a GPU" in refusal("--arch", "9.0a").message


def test_a_model_that_does_not_fit_needs_none(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = json.loads(config.read_text())
    given["llm"]["dtype"] = "float32"
    config.write_text(json.dumps(given))
    result = CliRunner().invoke(app, ["kernels", "-c", str(config)])
    assert "llm: none by flashinfer, since it does not compute in float32" in result.stderr
    given["llm"] |= {"dtype": "bfloat16", "attention": "sdpa"}
    config.write_text(json.dumps(given))
    assert 'not "sdpa"' in refusal("-c", config).message


def test_a_model_that_is_not_there_is_told_by_its_key(config: Path) -> None:
    (config.parent / "config.json").unlink()
    error = refusal("-c", config)
    assert error.field == "llm.path"
    assert f"llm.path: no config.json in {config.parent}" in error.message


def test_without_a_gpu_the_architecture_must_be_given(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allroads.cuda.flashinfer_kernels.missing_tools", lambda: "")
    monkeypatch.setattr("allroads.cuda.flashinfer_use.why_not_installed", lambda: "")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("FLASHINFER_CUDA_ARCH_LIST", raising=False)
    assert refusal("-c", config).field == "arch"
    assert "7.5 is too old" in refusal("-c", config, "--arch", "7.5").message


def test_what_is_not_installed_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allroads.cuda.flashinfer_use.why_not_installed", lambda: "flashinfer is not installed")
    assert refusal("-c", config, "--arch", "9.0a").message == "flashinfer is not installed"
    monkeypatch.setattr("allroads.cuda.flashinfer_use.why_not_installed", lambda: "")
    monkeypatch.setattr("allroads.cuda.flashinfer_kernels.missing_tools", lambda: "nvcc")
    assert "without nvcc" in refusal("-c", config, "--arch", "9.0a").message
