"""The layout holds: packages are declared, imports are relative and point downwards, nothing prints."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ROOT / "services"
GENERATED = SERVICES / "mesh" / "wire"
SOURCES = sorted(path for path in SERVICES.rglob("*.py") if GENERATED not in path.parents)

SHARED = ""
"""Files that lie directly in the package: errors, config, vocabulary and the like."""
_BOTTOM = {SHARED}
_POLICIES = _BOTTOM | {"cuda", "engine", "mesh"}
_SERVICE = _POLICIES | {"policies", "model"}
ALLOWED = {
    SHARED: _BOTTOM,
    "cuda": _BOTTOM,
    "engine": _BOTTOM | {"cuda"},
    "mesh": _BOTTOM | {"cuda"},
    "policies": _BOTTOM | {"engine"},
    "throughput": _BOTTOM,
    # Of the mesh only the generated messages.
    "client": _BOTTOM | {"mesh"},
    "model": _POLICIES,
    "slm": _SERVICE,
    "llm": _SERVICE,
    "router": _SERVICE,
    "gateway": _SERVICE | {"throughput"},
    "training": _SERVICE | {"slm", "llm", "router", "gateway"},
    "labelling": _SERVICE | {"router", "gateway", "training"},
    "evaluation": _SERVICE | {"router", "gateway", "training"},
    "audit": _SERVICE | {"router", "gateway", "training", "labelling", "evaluation"},
    "conformance": _SERVICE | {"router"},
    "cli": _SERVICE
    | {"slm", "llm", "router", "gateway", "training", "labelling", "evaluation", "audit", "conformance", "throughput"},
}
"""Which folders a folder may import from, besides itself."""

BANNED = {
    "cuda": {"grpc", "socket", "fastapi", "httpx", "transformers"},
    "engine": {"grpc", "socket", "fastapi", "httpx"},
    "policies": {"grpc", "socket", "fastapi", "httpx"},
    "gateway": {"torch", "transformers"},
    "throughput": {"grpc", "socket", "fastapi", "httpx", "torch", "transformers"},
    "cli": {"torch", "transformers"},
    "client": {"torch", "transformers", "tokenizers", "fastapi", "httpx", "pydantic"},
}


def folder_of(path: Path) -> str:
    parts = path.relative_to(SERVICES).parts
    return parts[0] if len(parts) > 1 else SHARED


def absolute_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def imported_folders(path: Path) -> Iterator[str]:
    """Folders of the package that a file imports from."""
    package = path.relative_to(SERVICES).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        assert node.level <= len(package) + 1, f"{path}: an import leaves the package"
        base = package[: len(package) + 1 - node.level]
        module = tuple(node.module.split(".")) if node.module else ()
        for alias in node.names:
            target = (*base, *module, alias.name)
            yield target[0] if (SERVICES / target[0]).is_dir() else SHARED


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_declared_packages_are_those_on_disk() -> None:
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(SERVICES).parts for path in SERVICES.rglob("__init__.py")}
    assert declared == {".".join(("allroads", *parts)) for parts in folders} | {"allroads.models"}


def test_every_folder_with_code_is_a_package_and_has_a_place_in_the_order() -> None:
    assert {relative(path.parent) for path in SOURCES if not (path.parent / "__init__.py").exists()} == set()
    assert {folder_of(path) for path in SOURCES} - ALLOWED.keys() == set()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_inside_the_package_are_relative_and_point_downwards(path: Path) -> None:
    assert not [name for name in absolute_imports(path) if name.split(".")[0] in {"allroads", "services", "tests"}]
    folder = folder_of(path)
    # The program's entry lies at the top of the package and calls its command line.
    allowed = ALLOWED[folder] | {folder} | ({"cli"} if path.name == "__main__.py" else set())
    assert set(imported_folders(path)) - allowed == set()


@pytest.mark.parametrize("folder", sorted(BANNED))
def test_folders_know_nothing_of_what_is_not_theirs(folder: str) -> None:
    found = {
        f"{relative(path)}: {name}"
        for path in SOURCES
        if folder_of(path) == folder
        for name in absolute_imports(path)
        if name.split(".")[0] in BANNED[folder]
    }
    assert found == set()


def test_the_gateway_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, allroads.gateway.service\nsys.exit(' '.join({'torch', 'transformers'} & sys.modules.keys()) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_client_knows_messages_and_errors_alone() -> None:
    code = (
        "import sys, allroads.client\n"
        "known = {n.split('.')[1] for n in sys.modules if n.startswith('allroads.')}\n"
        "sys.exit(' '.join(known - {'client', 'errors', 'mesh'} | {'torch', 'pydantic'} & sys.modules.keys()) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    imports = "".join(path.read_text() for path in SOURCES if folder_of(path) == "client").split("from ..mesh")[1:]
    assert {line.split()[0] for line in imports} == {".wire"}


def test_nothing_prints() -> None:
    calls = {
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert calls == set()
