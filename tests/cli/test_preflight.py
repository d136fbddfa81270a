"""What `allroads up` refuses before anything starts, and what it lets pass."""

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from allroads.cli.preflight import check_mesh
from allroads.config import load_settings
from allroads.errors import CheckpointError, StartupError, TokenizerMismatch

from .commands import run
from .conftest import write_config, write_model


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_a_right_set_up_passes_and_port_0_becomes_a_port(mesh_directory: Path) -> None:
    checked = check_mesh(load_settings(mesh_directory / "mesh.yaml"))
    assert checked.gateway.port > 0
    assert checked.gateway.grpc_port > 0


def test_differently_padded_output_layers_fit(mesh_directory: Path) -> None:
    shutil.rmtree(mesh_directory / "llm")
    write_model(mesh_directory / "llm", rows=64)
    check_mesh(load_settings(mesh_directory / "mesh.yaml"))


@pytest.mark.parametrize(
    ("tokens", "difference"),
    [
        (("a", "c", "b", "<end>"), "id 1 is 'b' in one and 'c' in the other"),
        (("a", "b", "<end>", "c"), "id 2 is 'c' in one and '<end>' in the other"),
        (("a", "b", "c"), "id 3 is '<end>' in one and '' in the other"),
    ],
)
def test_another_tokenizer_is_refused_naming_the_first_difference(
    mesh_directory: Path, tokens: tuple[str, ...], difference: str
) -> None:
    shutil.rmtree(mesh_directory / "llm")
    write_model(mesh_directory / "llm", tokens=tokens)
    with pytest.raises(TokenizerMismatch) as caught:
        check_mesh(load_settings(mesh_directory / "mesh.yaml"))
    assert difference in caught.value.message


def test_every_middle_tier_has_the_small_models_tokenizer(mesh_directory: Path) -> None:
    write_model(mesh_directory / "mlm", rows=8)
    write_model(mesh_directory / "other", tokens=("a", "c", "b", "<end>"))
    middle = {name: {"path": str(mesh_directory / name)} for name in ("mlm", "other")}
    check_mesh(load_settings(mesh_directory / "mesh.yaml", {"middle": {"mlm": middle["mlm"]}}))
    with pytest.raises(TokenizerMismatch) as caught:
        check_mesh(load_settings(mesh_directory / "mesh.yaml", {"middle": middle}))
    assert caught.value.field == "middle.other.path"
    assert caught.value.message.startswith(
        "slm.path and middle.other.path do not share a tokenizer: id 1 is 'b' in one and 'c' in the other"
    )


def test_a_middle_tier_that_is_not_there(mesh_directory: Path) -> None:
    settings = load_settings(mesh_directory / "mesh.yaml", {"middle": {"mlm": {"path": str(mesh_directory / "mlm")}}})
    with pytest.raises(CheckpointError, match=r"middle\.mlm\.path: no directory .*mlm; set it to"):
        check_mesh(settings)


@pytest.mark.parametrize("missing", ["scorer.safetensors", "manifest.json"])
def test_a_further_scorer_must_be_whole(mesh_directory: Path, missing: str) -> None:
    directory = mesh_directory / "citer"
    shutil.copytree(mesh_directory / "router", directory)
    (directory / "router.safetensors").rename(directory / "scorer.safetensors")
    settings = load_settings(mesh_directory / "mesh.yaml", {"router": {"scorers": {"citer": str(directory)}}})
    check_mesh(settings)
    (directory / missing).unlink()
    with pytest.raises(CheckpointError, match=rf"router\.scorers\.citer: .*{missing} is missing"):
        check_mesh(settings)


def test_another_end_of_text_is_refused_by_the_command(mesh_directory: Path) -> None:
    (mesh_directory / "llm" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "c"}))
    result = run("up", "--config", mesh_directory / "mesh.yaml")
    assert result.returncode == 2
    assert "eos_token is '<end>' in one and 'c' in the other" in result.stderr


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("slm/config.json", Path.unlink, "slm.path.*config.json is missing"),
        ("slm/config.json", lambda path: path.write_text("{"), "config.json is damaged"),
        ("slm/config.json", lambda path: path.write_text('{"vocab_size": 3}'), "4 ids.*only 3 rows"),
        ("slm/tokenizer.json", Path.unlink, "no tokenizer.json"),
        ("llm/model.safetensors", Path.unlink, "llm.path.*model.safetensors is missing"),
        ("llm/model.safetensors", _truncate, "llm.path.*model.safetensors is damaged"),
        ("router/router.safetensors", Path.unlink, "router.path.*router.safetensors is missing"),
        ("router/router.safetensors", _truncate, "router.path.*router.safetensors is damaged"),
        ("router/manifest.json", lambda path: path.write_text("[]"), "manifest.json is damaged"),
        ("router", shutil.rmtree, "router.path: no directory"),
    ],
)
def test_missing_and_damaged_files_are_named(
    mesh_directory: Path, file: str, damage: Callable[[Path], object], words: str
) -> None:
    damage(mesh_directory / file)
    with pytest.raises(CheckpointError, match=words):
        check_mesh(load_settings(mesh_directory / "mesh.yaml"))


def test_a_missing_shard_is_named(mesh_directory: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (mesh_directory / "llm" / "model.safetensors.index.json").write_text(json.dumps(index))
    (mesh_directory / "llm" / "model.safetensors").rename(mesh_directory / "llm" / "model-1.safetensors")
    with pytest.raises(CheckpointError, match=r"model-2.safetensors is missing"):
        check_mesh(load_settings(mesh_directory / "mesh.yaml"))


@pytest.mark.parametrize(("key", "option"), [("port", "--port"), ("grpc_port", "--grpc-port")])
def test_a_port_in_use_is_refused_naming_it(mesh_directory: Path, busy_port: int, key: str, option: str) -> None:
    result = run("up", "--config", write_config(mesh_directory, {key: busy_port}))
    assert result.returncode == 2
    assert f"gateway.{key}: port {busy_port} on 127.0.0.1 is in use" in result.stderr
    assert f"choose another with {option}" in result.stderr


def test_an_option_wins_over_variable_and_file(mesh_directory: Path, busy_port: int) -> None:
    config = write_config(mesh_directory, {})
    result = run("up", "--config", config, "--port", str(busy_port), ALLROADS_GATEWAY__PORT="0")
    assert f"port {busy_port}" in result.stderr


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"gateway": {"port": 8700, "grpc_port": 8700}}, "both 8700"),
        ({"gateway": {"host": "192.0.2.1"}}, r"gateway.port: cannot listen on 192\.0\.2\.1"),
        ({"slm": {"address": "127.0.0.1:0"}}, "slm.address: .* cannot be 0"),
        ({"slm": {"address": "unix:/a"}, "router": {"address": "unix:/a"}}, "router.address are both unix:/a"),
    ],
)
def test_addresses_that_cannot_work(mesh_directory: Path, override: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        check_mesh(load_settings(mesh_directory / "mesh.yaml", override))


def test_a_middle_tier_needs_an_address_of_its_own(mesh_directory: Path, busy_port: int) -> None:
    path = str(write_model(mesh_directory / "mlm"))
    for address, llm, words in (
        ("unix:/a", "unix:/a", r"middle\.mlm\.address and llm\.address are both unix:/a"),
        ("127.0.0.1:0", "", r"middle\.mlm\.address: .* cannot be 0"),
        (f"127.0.0.1:{busy_port}", "", rf"middle\.mlm\.address: port {busy_port} on 127.0.0.1 is in use"),
    ):
        changed = {"middle": {"mlm": {"path": path, "address": address}}, "llm": {"address": llm}}
        with pytest.raises(StartupError, match=words):
            check_mesh(load_settings(mesh_directory / "mesh.yaml", changed))


def test_an_internal_port_in_use_is_refused(mesh_directory: Path, busy_port: int) -> None:
    settings = load_settings(mesh_directory / "mesh.yaml", {"llm": {"address": f"127.0.0.1:{busy_port}"}})
    with pytest.raises(StartupError, match=f"llm.address: port {busy_port} on 127.0.0.1 is in use"):
        check_mesh(settings)
