"""The worked example of `docs/policies.md` is what it says: a plug-in that installs and passes the suite."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from allroads.config import MeshSettings, save_settings

from ..cli.commands import run_fork
from .conftest import WRONG

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory as an installer would leave it."""
    (module,) = code_blocks("python")
    (toml,) = code_blocks("toml")
    project = tomllib.loads(toml)["project"]
    (entry,) = project["entry-points"]["allroads.policies"].items()
    (name,) = tomllib.loads(toml)["tool"]["setuptools"]["py-modules"]
    (tmp_path / f"{name}.py").write_text(module)
    info = tmp_path / f"{name}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text(f"[allroads.policies]\n{entry[0]} = {entry[1]}\n")
    return tmp_path


@pytest.fixture
def config(tiny_settings: MeshSettings, tmp_path: Path) -> Path:
    save_settings(tiny_settings, tmp_path / "tiny.yaml")
    return tmp_path / "tiny.yaml"


def allroads(plugins: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(plugins), "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "allroads", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
    )


def test_the_page_names_the_commands() -> None:
    (commands,) = code_blocks("bash")
    assert commands.splitlines() == ["pip install -e .", "allroads policy list", "allroads policy check gap"]


def test_the_example_is_listed(installed: Path) -> None:
    listed = allroads(installed, "policy", "list")
    assert listed.returncode == 0, listed.stderr
    (row,) = [line for line in listed.stdout.splitlines() if line.startswith("│ gap ")]
    assert "threshold: 1 (0 to 1000)" in row
    assert "tokens: 2 (whole, 1 to 64)" in listed.stdout


def test_the_example_passes_every_check(installed: Path, config: Path) -> None:
    checked = allroads(installed, "policy", "check", "gap", "--config", str(config), "--num-prompts", "16")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "gap conforms: 12 passed" in checked.stdout


def test_a_wrong_plugin_gives_exit_code_1(config: Path) -> None:
    arguments = ("--set", "threshold=0.25", "--config", str(config), "--num-prompts", "1")
    checked = allroads(WRONG, "policy", "check", "wrong-never", *arguments)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "│ fail │ never-route equals the small model alone" in checked.stdout
    assert "error: wrong-never does not conform: " in checked.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing",), 1, "unknown policy 'nothing'; there are "),
        (("entropy", "--set", "threshold=high"), 2, "is not NAME=VALUE with a number"),
        (("entropy", "--num-prompts", "0"), 2, "--num-prompts"),
    ],
)
def test_what_cannot_be_checked_is_refused(arguments: tuple[str, ...], code: int, said: str) -> None:
    checked = run_fork("policy", "check", *arguments, PYTHONPATH=str(WRONG))
    assert checked.returncode == code
    assert said in checked.stderr
