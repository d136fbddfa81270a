"""Every block of Python in docs/grpc.md runs, and what the page shows of tools is what the API has."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import gateway_pb2

from ..doubles.scripted_home import Script
from ..gateway.conftest import Serve

PAGE = (Path(__file__).parents[2] / "docs" / "grpc.md").read_text()
TEXT = "At first, Aya has 37 apples."
METHODS = sorted(method.name for method in gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].methods)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def printed(code: str, port: int) -> list[str]:
    """What a block prints in a Python of its own, as a reader would run it."""
    assert "127.0.0.1:8001" in code
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", code.replace("127.0.0.1:8001", f"127.0.0.1:{port}"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


async def test_every_block_runs(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = (await tokenizer.encode_prompt(TEXT))[:8]
    served = await serve(Script(token_ids, tiers=(0,) * 7 + (1,)))
    port = served.running.grpc_port
    sync, awaited, reflected = await asyncio.gather(*(printed(block, port) for block in blocks("python")))
    text = tokenizer.decode(token_ids)
    assert sync[0] == text
    assert sync[1] == f"{tuple(token_ids)} {(0,) * 7 + (1,)} length"
    assert sync[2] == "8 0.125"
    assert sync[3].endswith(f"|{text}")
    assert sync[4:6] == [str(await tokenizer.encode_prompt("Aya has 37 apples.")), "At first, Aya"]
    assert sync[6] == "allroads ['slm', 'llm'] r2r"
    assert awaited[0].endswith(f"|{text}")
    assert awaited[1:] == [text, "invalid_argument temperature"]
    assert reflected == [str(METHODS), sync[4]]


def test_the_page_names_every_method_and_no_other() -> None:
    shown = {
        match for block in blocks("console") for match in re.findall(r"allroads\.v1\.GatewayService[./](\w+)", block)
    }
    assert sorted(shown) == METHODS
    for name in METHODS:
        assert f"`{name}`" in PAGE
