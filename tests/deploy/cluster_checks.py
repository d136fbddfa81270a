"""What deploy/test looks at, in a cluster that is up; every check raises where a promise is broken."""

import json
import os
import time
from collections.abc import Callable
from datetime import datetime

from .clients import Stream, ask, is_whole, until_whole
from .cluster import SERVICES, Cluster, image_bytes, leftovers

GRACE_S = 5 + 1
"""`grace_s` of mesh.yaml, and the gateway's farewell."""
_RECOVERY_S = 15
"""A request that waits when a service comes back may itself wait for ten seconds."""
_START_S = 180
_NUM_STREAMS = 10
_ENDINGS = {"done", "degraded", "error: unavailable"}
"""How a stream may end whose mesh loses a service."""


def comes_up(cluster: Cluster) -> dict[str, float]:
    """From nothing to the first whole answer."""
    began = time.monotonic()
    cluster.compose("up", "-d", "--no-build")
    until_whole(_START_S)
    seconds = time.monotonic() - began
    cluster.until_healthy(*SERVICES)
    return {"up to first answer, s": seconds}


def answers(cluster: Cluster) -> dict[str, float]:
    """REST, whole and streamed, says the same, and says it as a container should: unprivileged, in order."""
    whole = ask()
    assert is_whole(whole), whole
    text = whole[1]["choices"][0]["message"]["content"]
    assert "95" in text, text
    for service in SERVICES:
        assert cluster.execute(service, "id", "-u").stdout.strip() == "10001"
        assert cluster.execute(service, "touch", "/opt/allroads/x").returncode != 0, "the root file system is writable"
        ports = cluster.inspect(service)["NetworkSettings"]["Ports"] or {}
        hosts = {binding["HostIp"] for bindings in ports.values() for binding in bindings or ()}
        assert hosts == ({"127.0.0.1"} if service == "gateway" else set()), hosts
        assert cluster.execute(service, "allroads", "health", "nobody").returncode == 2
    stream = Stream(num_tokens=50)
    assert stream.join() == "done"
    assert stream.text.startswith(text[:20]), (stream.text, text)
    return {}


def _tensor_lines(cluster: Cluster) -> list[str]:
    return [line for line in cluster.log("slm").splitlines() if "tensors to" in line]


def tensors_go_inline(cluster: Cluster) -> dict[str, float]:
    """Containers that share no memory find out at start, and say so in one line for each peer (C36)."""
    lines = _tensor_lines(cluster)
    assert len(lines) == 2, lines
    assert all(" go inline: " in line for line in lines), lines
    return {}


def tensors_go_through_shared_memory(cluster: Cluster) -> dict[str, float]:
    """With common namespaces they use shared memory, and answer the same (C36)."""
    lines = _tensor_lines(cluster)
    assert lines, cluster.log("slm")
    assert all("shared memory" in line for line in lines[-2:]), lines
    answers(cluster)
    return {}


def survives(service: str) -> Callable[[Cluster], dict[str, float]]:
    """A service is killed while a stream is open, and replaced at another address (C21)."""

    def check(cluster: Cluster) -> dict[str, float]:
        stream = Stream()
        assert stream.began.wait(30)
        cluster.kill(service)
        before, after = cluster.replace(service)
        assert before != after
        ending = stream.join()
        assert ending in ({"cut off"} if service == "gateway" else _ENDINGS), ending
        cluster.until_healthy(service)
        seconds = until_whole(_RECOVERY_S)
        cluster.until_healthy(*SERVICES)
        return {f"{service} replaced, stream {ending}, first whole answer after it was healthy, s": seconds}

    check.__name__ = f"survives_the_loss_of_{service}"
    return check


def long_absence(cluster: Cluster) -> dict[str, float]:
    """The large model is away for so long that nobody's name for it resolves any more, and comes back."""
    cluster.compose("stop", "llm")
    until = time.monotonic() + 45
    statuses = set()
    while time.monotonic() < until:
        status, body = ask(max_tokens=20)
        statuses.add((status, body.get("routing", {}).get("degraded")))
    assert statuses <= {(200, True), (200, False), (503, None)}, statuses
    cluster.compose("start", "llm")
    cluster.until_healthy("llm")
    return {"llm back after 45 s, first whole answer after it was healthy, s": until_whole(_RECOVERY_S)}


def stops_cleanly(cluster: Cluster) -> dict[str, float]:
    """Every service is stopped with streams open: an ending for each, exit code 0, and soon (C58)."""
    measured = {}
    for service in reversed(SERVICES):
        streams = [Stream() for _ in range(_NUM_STREAMS)]
        for stream in streams:
            assert stream.began.wait(60)
        for stream in streams[:3]:
            stream.cancel()
        cluster.compose("stop", "--timeout", "20", service)
        state = cluster.inspect(service)["State"]
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), cluster.log(service)[-2000:]
        endings = {stream.join() for stream in streams}
        assert endings <= {*_ENDINGS, "cancelled"}, endings
        seconds = (datetime.fromisoformat(state["FinishedAt"]) - _told_to_stop(cluster, service)).total_seconds()
        assert seconds < GRACE_S + 2, seconds
        measured[f"{service} stopped with {_NUM_STREAMS} streams, s"] = seconds
        cluster.compose("start", service)
        cluster.until_healthy(*SERVICES)
        until_whole(_RECOVERY_S)
    return measured


def _told_to_stop(cluster: Cluster, service: str) -> datetime:
    """When a service last said that it was told to."""
    line = [line for line in cluster.log(service).splitlines() if "SIGTERM: stopping" in line][-1]
    return datetime.fromisoformat(line.split()[0].removeprefix("time="))


def goes_down(cluster: Cluster) -> dict[str, float]:
    """All of it, with a stream open; nothing is left."""
    stream = Stream()
    assert stream.began.wait(30)
    began = time.monotonic()
    cluster.compose("down", "--volumes")
    seconds = time.monotonic() - began
    assert stream.join() in _ENDINGS
    left = leftovers(os.environ["COMPOSE_PROJECT_NAME"])
    assert left == [], left
    return {"down with a stream open, s": seconds}


def main() -> None:
    """Run all checks; what was measured is printed, as one JSON object at the end."""
    measured: dict[str, float] = {"image, MB": image_bytes(os.environ["ALLROADS_IMAGE"]) / 1e6}
    alone, sharing = Cluster("compose.yaml"), Cluster("compose.yaml", "compose.shared.yaml")
    checks: list[tuple[Cluster, Callable[[Cluster], dict[str, float]]]] = [
        (alone, comes_up),
        (alone, answers),
        (alone, tensors_go_inline),
        *((alone, survives(service)) for service in SERVICES),
        (alone, long_absence),
        (alone, stops_cleanly),
        (alone, goes_down),
        (sharing, comes_up),
        (sharing, tensors_go_through_shared_memory),
        (sharing, survives("llm")),
        (sharing, goes_down),
    ]
    for cluster, check in checks:
        name = getattr(check, "__name__", "check")
        found = check(cluster)
        for key, value in found.items():
            measured[f"{key} (shared memory)" if cluster is sharing else key] = round(value, 1)
        print(f"passed: {name} {found or ''}", flush=True)
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
