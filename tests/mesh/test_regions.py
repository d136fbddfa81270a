"""Lives of shared-memory regions across real processes (C34), and names that are not ours (C37)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from allroads.errors import InvalidArgument, Unavailable
from allroads.mesh import regions
from allroads.mesh.region_transport import FIRST_SLOT, HEADER, MARK, PROBE, RegionTransport
from allroads.mesh.regions import DIRECTORY, SharedRegion, remove_stale_regions
from allroads.mesh.tensors import Layout
from allroads.mesh.transports import TRANSPORTS

SIZE = 4096

pytestmark = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="no /dev/shm here")

PREAMBLE = "import sys; from allroads.mesh.regions import *\n"
Script = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def script() -> Iterator[Script]:
    """Starts Python code in another process, and waits for its first line."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    region = SharedRegion.create(SIZE)
    yield region
    region.close()


KEEP_TEN = """
kept = [SharedRegion.create(4096) for _ in range(10)]
print(*(region.name for region in kept), flush=True)
sys.stdin.read()
"""
READ = "print(bytes(SharedRegion.attach(sys.argv[1], 4096).read(8, 4)), flush=True)\n"


def test_a_peer_that_exits_or_is_killed_takes_nothing_with_it(region: SharedRegion, script: Script) -> None:
    region.write(8, [b"road"])
    leaver = script(READ, region.name)
    out, err = leaver.communicate(timeout=30)
    assert (out.strip(), err, leaver.returncode) == ("b'road'", "", 0)

    killed = script(READ + "sys.stdin.read()", region.name)
    assert killed.stdout is not None
    assert killed.stdout.readline().strip() == "b'road'"
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=30)

    out, err = script(READ, region.name).communicate(timeout=30)
    assert (out.strip(), err) == ("b'road'", "")


def test_a_killed_owner_leaves_regions_that_the_next_start_removes(region: SharedRegion, script: Script) -> None:
    foreign = DIRECTORY / f"other-{os.getpid()}"
    foreign.write_bytes(b"not ours")
    owner = script(KEEP_TEN)
    assert owner.stdout is not None
    names = owner.stdout.readline().split()
    try:
        assert len(names) == 10
        remove_stale_regions()
        assert all((DIRECTORY / name).exists() for name in names), "their owner lives"
        owner.kill()
        owner.wait(timeout=30)
        assert remove_stale_regions() >= 10
        assert not any((DIRECTORY / name).exists() for name in names)
        assert (DIRECTORY / region.name).exists()
        assert foreign.exists()
    finally:
        foreign.unlink()


def test_an_owner_that_ends_in_order_leaves_nothing_and_warns_of_nothing(script: Script) -> None:
    owner = script("r = SharedRegion.create(4096)\nprint(r.name, flush=True)\nsys.stdin.read()\nr.close()\nr.close()")
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert (DIRECTORY / name).exists()
    _, err = owner.communicate("", timeout=30)
    assert (err, owner.returncode) == ("", 0)
    assert not (DIRECTORY / name).exists()


def test_who_has_a_region_keeps_it_when_its_name_is_gone(region: SharedRegion) -> None:
    peer = SharedRegion.attach(region.name, SIZE)
    region.unlink()
    region.write(0, [b"ab", b"cd"])
    assert peer.read(0, 4) == b"abcd"
    with pytest.raises(FileNotFoundError):
        SharedRegion.attach(region.name, SIZE)
    peer.close()
    with pytest.raises(ValueError, match="closed"):
        peer.read(0, 4)


def test_a_peer_can_map_a_region_to_write_it(region: SharedRegion) -> None:
    peer = SharedRegion.attach(region.name, SIZE, for_writing=True)
    mine, theirs = region.map(), peer.map()
    theirs[4:8] = b"road"
    assert mine[:8] == bytes(4) + b"road"
    for mapped in (mine, theirs):
        mapped.close()
    os.truncate(DIRECTORY / region.name, 16)
    with pytest.raises(InvalidArgument, match="not valid"):
        peer.map()
    peer.close()
    reader = SharedRegion.attach(region.name, 16)
    with pytest.raises(PermissionError):
        reader.map()
    reader.close()


def test_a_region_that_shrinks_is_an_error_not_a_crash(region: SharedRegion) -> None:
    peer = SharedRegion.attach(region.name, SIZE)
    os.truncate(DIRECTORY / region.name, 0)
    with pytest.raises(InvalidArgument):
        peer.read(0, 4)
    peer.close()


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../../etc/passwd", "/dev/shm/other_service", "other_service", "allroads-", "allroads-1-",
        "allroads-1-0123456789abcdef/../x", "allroads-1-0123456789ABCDEF", "allroads-1-0123456789abcdef\n",
        "allroads-\u0661-0123456789abcdef", "a" * 5000, "allroads-1-0123456789abcde\0",
    ],
)  # fmt: skip
def test_names_that_are_not_ours_are_never_opened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    with pytest.raises(InvalidArgument, match="region is not valid"):
        SharedRegion.attach(name, SIZE)


@pytest.mark.parametrize("size", [0, -1, SIZE - 1, SIZE + 1, 2**63 - 1, 2**64])
def test_the_size_must_be_exact(region: SharedRegion, size: int) -> None:
    with pytest.raises(InvalidArgument):
        SharedRegion.attach(region.name, size)


def test_links_and_directories_are_not_followed(region: SharedRegion) -> None:
    link = DIRECTORY / "allroads-1-00000000000000ff"
    link.symlink_to(DIRECTORY / region.name)
    try:
        with pytest.raises(OSError, match="symbolic links"):
            SharedRegion.attach(link.name, SIZE)
    finally:
        link.unlink()


def test_only_its_user_can_open_it(region: SharedRegion) -> None:
    assert (DIRECTORY / region.name).stat().st_mode & 0o777 == 0o600


def test_too_little_shared_memory_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(regions, "DIRECTORY", tmp_path)

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        SharedRegion.create(SIZE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: str(transport.name))
def test_a_region_of_any_kind_can_be_found_until_it_is_unlinked_and_is_gone_when_closed(
    transport: RegionTransport,
) -> None:
    probe, size = PROBE.pack(MARK, 64, b"n" * 48), FIRST_SLOT + 2 * 64
    owned = transport.create(size, probe)
    told = owned.describe(5)
    assert (told.region_id, told.size_bytes, told.probe) == (5, size, probe)
    peers = [transport.attach(told) for _ in range(2)]
    owned.confirm()
    owned.unlink()
    with pytest.raises(Unavailable):
        transport.attach(told)

    start = FIRST_SLOT + 64
    offset, layout = HEADER.size, Layout(torch.int64, (4,), 32)
    owned.write(start, 1, [(offset, torch.arange(4))])
    first, second = (peer.read(start, 1, [(offset, layout)]).tensors[0] for peer in peers)
    owned.write(start, 2, [(offset, torch.zeros(4, dtype=torch.int64))])
    assert first.tolist() == second.tolist() == [0, 1, 2, 3]
    peers[0].close()
    with pytest.raises(InvalidArgument):
        peers[1].read(start, 1, [(offset, layout)])
    assert peers[1].read(start, 2, [(offset, layout)]).tensors[0].tolist() == [0, 0, 0, 0]
    assert peers[1].read_probe() == probe
    for end in (peers[0], peers[1], owned, owned):
        end.close()
