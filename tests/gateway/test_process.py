"""The gateway as a process: what it imports, how it stops, and when it refuses to start."""

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from allroads.config import GatewaySettings, HomeSettings, MeshSettings, embedded_path
from allroads.errors import CheckpointError, StartupError
from allroads.gateway.service import serving

PROGRAM = """
import asyncio, logging, sys
from allroads.cli.stop import stop_on_signals
from allroads.config import GatewaySettings, HomeSettings, MeshSettings, embedded_path
from allroads.gateway.service import run
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
settings = MeshSettings(
    slm=HomeSettings(path=embedded_path("llm"), address="unix:/tmp/no-such-allroads-home.sock"),
    gateway=GatewaySettings(port=0, grpc_port=0),
)

async def main():
    with stop_on_signals() as stop:
        await run(settings, stop.asked)

asyncio.run(main())
print("modules", sorted({"torch", "transformers"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_on_a_signal_and_never_imports_torch(number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    lines = []
    while "gRPC on 127.0.0.1:" not in (line := (await process.stdout.readline()).decode()):
        assert line, (await process.communicate())[1].decode()
        lines.append(line)
    assert any("REST on http://127.0.0.1:" in line for line in lines)
    process.send_signal(number)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "modules []" in out.decode()
    assert b"Traceback" not in out + err


def settings_of(path: Path | None = None, **options: Any) -> MeshSettings:
    return MeshSettings(
        slm=HomeSettings(path=path or embedded_path("llm"), address="unix:/tmp/no-such-allroads-home.sock"),
        gateway=GatewaySettings(**{"port": 0, "grpc_port": 0, **options}),
    )


@pytest.mark.parametrize("name", ["port", "grpc_port"])
async def test_a_port_in_use_is_said_at_start(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=str(port)) as refusal:
            async with serving(settings_of(**{name: port})):
                pass
        assert "use" in refusal.value.message


async def test_damaged_files_are_said_at_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        async with serving(settings_of(tmp_path)):
            pass
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((embedded_path("llm") / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}")
    with pytest.raises(CheckpointError, match="chat template"):
        async with serving(settings_of(tmp_path)):
            pass
