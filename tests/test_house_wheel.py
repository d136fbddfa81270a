"""The wheel holds the whole package: code, types, the embedded models, and the command."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from links to what a wheel is made of, so that nothing is left in the tree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "services", "models"):
        (source / name).symlink_to(ROOT / name)
    _pip("wheel", "--no-deps", "--no-build-isolation", "-w", target, source)
    (built,) = target.glob("allroads-*.whl")
    return built


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_all_code(wheel: Path) -> None:
    sources = {f"allroads/{path.relative_to(ROOT / 'services')}" for path in (ROOT / "services").rglob("*.py")}
    assert sources <= _names(wheel)


def test_the_wheel_holds_types_and_the_embedded_models(wheel: Path) -> None:
    names = _names(wheel)
    assert "allroads/py.typed" in names
    assert "allroads/mesh/wire/common_pb2.pyi" in names
    finished = [path for path in (ROOT / "models").iterdir() if path.is_dir() and path.suffix != ".part"]
    files = {path.relative_to(ROOT) for directory in finished for path in directory.iterdir() if path.is_file()}
    for name in ("slm/tokenizer.json", "mlm/model.safetensors", "llm/model.safetensors", "router/manifest.json"):
        assert Path("models", name) in files
    assert {f"allroads/{file}" for file in files if file.suffix not in {".py", ".pyc"}} <= names


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    names = _names(wheel)
    assert {name for name in names if not name.startswith(("allroads/", "allroads-"))} == set()
    assert {name for name in names if "__pycache__" in name or ".part/" in name} == set()


def test_the_installed_wheel_is_the_package(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    _pip("install", "--no-deps", "--no-index", "--target", site, wheel)
    code = "import sys; from allroads.config import embedded_path; sys.stdout.write(str(embedded_path('slm')))"
    # The wheel's folder comes before this environment's own install.
    environment = {"PYTHONPATH": str(site)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=site, capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout == str(site / "allroads" / "models" / "slm")
    assert (site / "bin" / "allroads").is_file()
