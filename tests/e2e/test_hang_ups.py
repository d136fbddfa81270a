"""Clients that hang up leave nothing on any tier (C16)."""

import asyncio
import re
from collections.abc import Callable

import httpx

from ..doubles.processes import MeshProcesses
from ..doubles.tier_probe import free_tier_tokens


async def _gauges(http: httpx.AsyncClient) -> dict[str, float]:
    """Running requests and free KV, as the gateway reports them."""
    # A short request first: the home reports its load with each message.
    done = await http.post("/v1/completions", json={"model": "allroads", "prompt": "hi", "max_tokens": 1})
    assert done.status_code == 200
    text = (await http.get("/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^(allroads_[a-z_]+) ([0-9.e+]+)$", text, re.MULTILINE)}


async def _until_running(http: httpx.AsyncClient, is_enough: Callable[[float], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_enough((await _gauges(http))["allroads_requests_running"]):
            pass


async def test_hang_ups_free_everything(mesh: MeshProcesses, http: httpx.AsyncClient) -> None:
    before = await _gauges(http)
    large_before = await free_tier_tokens(mesh.settings.llm.address)
    url = f"http://127.0.0.1:{mesh.settings.gateway.port}"
    async with httpx.AsyncClient(base_url=url, timeout=90) as leaving:

        async def ask(index: int) -> None:
            routing = [{"policy": "llm"}, {"policy": "r2r"}, {"policy": "random", "share": 0.5}, {"policy": "slm"}]
            body = {
                "model": "allroads", "prompt": "hello", "max_tokens": 900, "ignore_eos": True,
                "stream": index % 2 == 0, "routing": routing[index % 4],
            }  # fmt: skip
            await leaving.post("/v1/completions", json=body)

        tasks = [asyncio.create_task(ask(index)) for index in range(8)]
        await _until_running(http, lambda count: count >= 4)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await _until_running(http, lambda count: count == before["allroads_requests_running"])
    after = await _gauges(http)
    free = [name for name in after if "free" in name]
    assert free
    for name in free:
        assert after[name] == before[name]
    async with asyncio.timeout(30):
        while await free_tier_tokens(mesh.settings.llm.address) != large_before:
            pass
