"""`allroads health` against a server of ours."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from allroads.cli.main import app
from allroads.errors import AllroadsError, StartupError, Unavailable
from allroads.mesh.server import ServiceServer
from typer.testing import CliRunner, Result

HEALTH_NAME = "allroads.v1.TierService"


@pytest.fixture
async def server() -> AsyncIterator[ServiceServer]:
    server = ServiceServer([HEALTH_NAME], max_message_bytes=1 << 20)
    await server.start("127.0.0.1:0")
    yield server
    await server.stop(0)


@pytest.fixture
def config(server: ServiceServer, tmp_path: Path) -> Path:
    """A mesh whose large model's service is the server, which says that it listens on all addresses."""
    path = tmp_path / "mesh.yaml"
    path.write_text(yaml.safe_dump({"llm": {"address": f"0.0.0.0:{server.bound_port}"}}))
    return path


async def ask(*arguments: str) -> Result:
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, ["health", *arguments]))


def refused(result: Result) -> AllroadsError:
    assert isinstance(result.exception, AllroadsError), result.output
    return result.exception


async def test_a_service_is_ready_when_it_says_so(server: ServiceServer, config: Path) -> None:
    assert "not serving" in refused(await ask("llm", "--config", str(config))).message
    await server.set_ready(True)
    assert (await ask("llm", "--config", str(config))).output == "ready\n"


async def test_a_service_that_is_not_ready_is_alive(config: Path) -> None:
    assert (await ask("llm", "--live", "--config", str(config))).output == "live\n"


async def test_nobody_there_is_told_in_time(server: ServiceServer, config: Path) -> None:
    await server.stop(0)
    error = refused(await ask("llm", "--timeout", "0.2", "--config", str(config)))
    assert isinstance(error, Unavailable)
    assert "llm does not answer" in error.message


async def test_a_service_without_an_address_cannot_be_asked(config: Path) -> None:
    error = refused(await ask("slm", "--config", str(config)))
    assert isinstance(error, StartupError)
    assert error.field == "slm.address"


async def test_there_must_be_such_a_service(config: Path) -> None:
    error = refused(await ask("nobody", "--config", str(config)))
    assert isinstance(error, StartupError)
    assert "llm, router, slm, gateway" in error.message
