"""Short directories for Unix sockets, and settings of a mesh whose files are small but right."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    directory = Path(tempfile.mkdtemp(prefix="roads-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def runtime_directory(socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where meshes of this test make their run directories."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(socket_directory))
    return socket_directory


def write_model(directory: Path, *, tokens: tuple[str, ...] = ("a", "b", "c", "<end>"), rows: int = 4) -> Path:
    """A model in the Hugging Face layout, as far as it can be checked without loading it."""
    directory.mkdir(parents=True)
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    Tokenizer(models.WordLevel(vocabulary, unk_token=tokens[0])).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (directory / "config.json").write_text(json.dumps({"vocab_size": rows}))
    save_file({"weight": np.zeros((rows, 2), np.float32)}, directory / "model.safetensors")
    return directory


@pytest.fixture
def mesh_directory(tmp_path: Path) -> Path:
    """`slm`, `llm` and `router` directories, and a `mesh.yaml` that names them and lets ports be chosen."""
    for name in ("slm", "llm"):
        write_model(tmp_path / name)
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "manifest.json").write_text("{}")
    save_file({"weight": np.zeros((2, 2), np.float32)}, tmp_path / "router" / "router.safetensors")
    write_config(tmp_path, {})
    return tmp_path


def write_config(directory: Path, gateway: dict[str, int]) -> Path:
    path = directory / "mesh.yaml"
    parts: dict[str, object] = {name: {"path": str(directory / name)} for name in ("slm", "llm", "router")}
    path.write_text(yaml.safe_dump({**parts, "gateway": {"port": 0, "grpc_port": 0, **gateway}}))
    return path
