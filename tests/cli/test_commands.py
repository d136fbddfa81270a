"""Help, version, configuration, and how a wrong command or configuration is told."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from allroads import __version__
from allroads.cli.up import up
from allroads.errors import StartupError

from .commands import environment, run


def test_help_lists_the_commands_and_the_exit_codes() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in ("up", "serve", "chat", "config"):
        assert f" {command} " in result.stdout
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("up", ("--config", "--port", "--grpc-port", "--ready-timeout", "--single-process", "8000", "8001")),
        ("serve", ("slm|llm|router|gateway|NAME", "--config")),
        ("chat", ("--url", "--policy", "--threshold", "--share", "--max-tokens", "[brackets]")),
        ("config", ("--config",)),
    ],
)
def test_help_of_a_command_names_its_options(command: str, words: tuple[str, ...]) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    assert all(word in result.stdout for word in words)
    assert "--parent-pid" not in result.stdout


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"allroads {__version__}\n")


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    code = (
        "import sys, allroads.cli.main\n"
        "sys.exit(' '.join({'torch', 'transformers', 'grpc', 'httpx', 'numpy'} & sys.modules.keys()) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_config_prints_what_file_and_environment_make(tmp_path: Path) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text("model_name: pair\ngateway: {port: 9000, grpc_port: 9001}\n")
    result = run("config", "--config", path, ALLROADS_GATEWAY__PORT="9100")
    assert result.returncode == 0
    settings = yaml.safe_load(result.stdout)
    assert settings["model_name"] == "pair"
    assert (settings["gateway"]["port"], settings["gateway"]["grpc_port"]) == (9100, 9001)
    path.write_text(result.stdout)
    assert run("config", "--config", path).stdout == result.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("gateway: [", ("cannot read the configuration", "mesh.yaml")),
        ("- a\n- b\n", ("must be a mapping",)),
        ("gateway: {prot: 8000}", ("gateway.prot",)),
        ("slm: {num_kv_tokens: 0}", ("slm.num_kv_tokens", "greater than 0")),
        ("gateway: {port: 99999}", ("gateway.port", "65535")),
        ("llm: {dtype: int3}", ("llm.dtype", "bfloat16")),
        ("router: {address: nowhere}", ("router.address", "host:port")),
        ("middle: {Mlm: {path: a}}", ("middle.Mlm:", "small letters, digits and hyphens")),
        ("middle: {mlm: {path: a, policy: r2r}}", ("middle.mlm.policy",)),
        ("middle: {mlm: {num_threads: 2}}", ("middle.mlm.path", "required")),
        ("slm: {path: 'embedded:xlm'}", ("slm.path", "nothing is embedded as 'xlm'; there are", "llm, ", "router")),
    ],
)
def test_a_wrong_configuration_is_told_by_the_key(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text(content)
    with pytest.raises(StartupError) as caught:
        up(config=path)
    assert all(word in caught.value.message for word in words)


@pytest.mark.parametrize("command", [("up",), ("serve", "slm"), ("config",)])
def test_every_command_refuses_a_wrong_configuration_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text("gateway: {prot: 8000}")
    _refused(run(*command, "--config", path), "gateway.prot")


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    _refused(run("up", "--config", tmp_path / "none.yaml"), "none.yaml", "No such file")


def test_a_wrong_variable_is_named() -> None:
    _refused(run("up", ALLROADS_GATEWAY__PORT="many"), "gateway.port")


def test_serve_needs_addresses() -> None:
    _refused(run("serve", "slm", ALLROADS_SLM__ADDRESS="unix:/s"), "llm.address", "ALLROADS_LLM__ADDRESS")


def test_the_small_model_needs_the_address_of_every_tier() -> None:
    addresses = {f"ALLROADS_{name}__ADDRESS": f"unix:/{name}" for name in ("SLM", "LLM", "ROUTER")}
    result = run("serve", "slm", ALLROADS_MIDDLE__MLM__PATH="embedded:slm", **addresses)
    _refused(result, "middle.mlm.address is not set", "ALLROADS_MIDDLE__MLM__ADDRESS")


def test_serve_takes_the_name_of_a_middle_tier_which_needs_its_own_address() -> None:
    result = run("serve", "mlm", ALLROADS_MIDDLE__MLM__PATH="embedded:slm")
    _refused(result, "middle.mlm.address is not set, and the mlm service needs it")


def test_serve_refuses_a_service_that_the_mesh_does_not_have() -> None:
    _refused(run("serve", "mlm"), "no service 'mlm' in this mesh; there are llm, router, slm, gateway")
    result = run("serve", "xlm", ALLROADS_MIDDLE__MLM__PATH="embedded:slm")
    _refused(result, "no service 'xlm' in this mesh; there are llm, mlm, router, slm, gateway")


@pytest.mark.parametrize("arguments", [("serve", "oracle"), ("up", "--port", "70000"), ("down",)])
def test_a_wrong_command_line(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert arguments[-1].removeprefix("--") in result.stderr or "65535" in result.stderr
    assert "Traceback" not in result.stderr


def test_errors_are_red_on_a_terminal() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "allroads", "up", "--slm", "/none"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(FORCE_COLOR="1", TERM="xterm"),
    )
    assert result.stderr.startswith("\x1b[1;31merror: ")


def _refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
