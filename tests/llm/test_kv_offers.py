"""What a lender of KV tells, of its memory and of its blocks, is untrusted (C37)."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from allroads.engine.kv_blocks import KvBlocks
from allroads.errors import AllroadsError, InvalidArgument, Unavailable
from allroads.llm.adoption import read_offer
from allroads.llm.kv_memory import open_peer_pool
from allroads.llm.kv_shared_memory import SharedKvMemory
from allroads.mesh.regions import DIRECTORY
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2

pytestmark = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="no /dev/shm here")

THERE = 9
"""Blocks of the lender."""
OWN = KvBlocks("sdpa", torch.zeros(2, 6, 7, 8), 2)


@pytest.fixture
def told() -> Iterator[model_pb2.KvPool]:
    memory = SharedKvMemory()
    memory.allocate(OWN.shape_of(THERE), torch.float32, torch.device("cpu"))
    yield model_pb2.KvPool(generation=1, num_blocks=THERE, region=memory.describe())
    memory.close()


def test_what_is_right_is_opened(told: model_pb2.KvPool) -> None:
    open_peer_pool(told, OWN).close()


def _name(name: str) -> Callable[[model_pb2.KvPool], None]:
    return lambda told: setattr(told.region.shared_memory, "name", name)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (_name(""), InvalidArgument),
        (_name("../../etc/passwd"), InvalidArgument),
        (_name("/dev/shm/other"), InvalidArgument),
        (_name("allroads-1-0123456789abcdef"), Unavailable),
        (_name("x" * 5000), InvalidArgument),
        (lambda told: setattr(told.region.shared_memory, "boot_id", "another"), Unavailable),
        (lambda told: setattr(told, "num_blocks", 0), InvalidArgument),
        (lambda told: setattr(told, "num_blocks", 2**64 - 1), InvalidArgument),
        (lambda told: setattr(told, "num_blocks", told.num_blocks + 1), InvalidArgument),
        (lambda told: setattr(told.region, "size_bytes", 2**63), InvalidArgument),
        (lambda told: setattr(told.region, "size_bytes", 0), InvalidArgument),
        (lambda told: setattr(told.region, "probe", told.region.probe[:-1] + b"?"), InvalidArgument),
        (lambda told: setattr(told.region, "probe", b""), InvalidArgument),
        (lambda told: told.region.ClearField("shared_memory"), InvalidArgument),
        (lambda told: told.region.cuda_ipc.CopyFrom(pb.CudaIpcRegion(handle=b"x" * 64)), InvalidArgument),
        (lambda told: told.region.local.CopyFrom(pb.LocalRegion(pid=1)), InvalidArgument),
    ],
)
def test_what_a_lender_tells_of_its_pool_is_not_trusted(
    told: model_pb2.KvPool, change: Callable[[model_pb2.KvPool], None], refusal: type[AllroadsError]
) -> None:
    change(told)
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(refusal):
        open_peer_pool(told, OWN)
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.mark.parametrize(
    "blocks", [[], [THERE], [2**32 - 1], [0, 0], [0, 1, 2, 3]], ids=["none", "end", "huge", "twice", "many"]
)
def test_blocks_that_a_lender_tells_are_not_trusted(told: model_pb2.KvPool, blocks: list[int]) -> None:
    # Three whole blocks before the last token are missing.
    request = model_pb2.MoveSequenceRequest(token_ids=range(21), num_known_blocks=2)
    request.kv.block_size_tokens = 4
    right = model_pb2.MoveSequenceResponse(pool=told, loan_id=1, block_ids=[THERE - 1, 0, 5])
    offer = read_offer(right, request, OWN)
    assert offer is not None
    assert offer.blocks == (THERE - 1, 0, 5)
    with pytest.raises(InvalidArgument):
        read_offer(model_pb2.MoveSequenceResponse(pool=told, loan_id=1, block_ids=blocks), request, OWN)
