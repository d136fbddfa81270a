"""What a client tries again, how often, and how long it waits before."""

import math
from typing import Any

import grpc
import pytest
from allroads.client import Deadline, Retry, make_request
from allroads.client.faults import error_of_call
from allroads.client.tries import Tries
from allroads.errors import (
    AllroadsError,
    Code,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
    error_of,
)

from ..doubles.scripted_gateway import FINE, Act, scripted_gateway
from .conftest import Connect

LATER = Deadline(math.inf)
QUICK = Retry(first_pause_s=0.001)
GONE = Act(status=grpc.StatusCode.UNAVAILABLE)
BUSY = Act(status=grpc.StatusCode.RESOURCE_EXHAUSTED, trailing=(("retry-after", "0"),))
FULL = Act(status=grpc.StatusCode.RESOURCE_EXHAUSTED)


def pauses(tries: Tries, *errors: AllroadsError) -> list[float]:
    return [tries.pause_s(error) for error in errors]


def test_pauses_double_up_to_the_longest_and_are_a_quarter_longer_at_most() -> None:
    told = pauses(Tries(Retry(9, 1.0, 4.0), LATER), *[Unavailable("gone")] * 5)
    for pause_s, least_s in zip(told, (1.0, 2.0, 4.0, 4.0, 4.0), strict=True):
        assert least_s <= pause_s <= 1.25 * least_s


def test_the_gateway_may_ask_for_a_longer_pause_and_not_for_one_beyond_the_longest() -> None:
    retry = Retry(4, 0.25, 10.0)
    (pause_s,) = pauses(Tries(retry, LATER), ResourceExhausted("full", retry_after_s=8.0))
    assert 8.0 <= pause_s <= 10.0
    with pytest.raises(ResourceExhausted):
        Tries(retry, LATER).pause_s(ResourceExhausted("full", retry_after_s=11.0))


@pytest.mark.parametrize("code", list(Code))
def test_only_what_may_pass_is_tried_again(code: Code) -> None:
    error = error_of(code, "x", retry_after_s=1.0)
    if code in (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED):
        Tries(Retry(), LATER).pause_s(error)
    else:
        with pytest.raises(type(error)):
            Tries(Retry(), LATER).pause_s(error)


def test_no_try_follows_the_last_one_nor_the_deadline_nor_a_beginning() -> None:
    gone = Unavailable("gone")
    tries = Tries(Retry(max_tries=2), LATER)
    tries.pause_s(gone)
    with pytest.raises(Unavailable):
        tries.pause_s(gone)
    with pytest.raises(Unavailable):
        Tries(Retry(max_tries=1), LATER).pause_s(gone)
    with pytest.raises(Unavailable):
        Tries(Retry(first_pause_s=5.0), Deadline.after(4.0)).pause_s(gone)
    begun = Tries(Retry(), LATER)
    begun.begin()
    with pytest.raises(Unavailable):
        begun.pause_s(gone)
    with pytest.raises(DeadlineExceeded):
        Tries(Retry(), Deadline.after(0)).time_left_s()


async def test_calls_are_made_again_until_they_succeed(connect: Connect) -> None:
    for what in ("generate", "generate_batch", "tokenize"):
        async with scripted_gateway(GONE, BUSY, FINE) as (gateway, address):
            asker = await connect(address, retry=QUICK)
            if what == "generate":
                assert (await asker.generate("x")).text == "0 1 "
            elif what == "generate_batch":
                (answer,) = await asker.generate_batch([make_request("x")])
                assert answer.text == "0 1 "
            else:
                assert await asker.tokenize("x") == [5, 6]
            assert len(gateway.metadata) == 3


async def test_what_has_begun_is_not_made_again(connect: Connect) -> None:
    async with scripted_gateway(Act(1, grpc.StatusCode.UNAVAILABLE), FINE) as (gateway, address):
        asker = await connect(address, retry=QUICK)
        with pytest.raises(Unavailable, match="scripted"):
            await asker.generate("x")
        assert len(gateway.metadata) == 1


async def test_what_no_waiting_mends_is_not_made_again(connect: Connect) -> None:
    for act, kind, num_calls in (
        (FULL, ResourceExhausted, 1),
        (Act(status=grpc.StatusCode.UNKNOWN), Internal, 1),
        (Act(status=grpc.StatusCode.INVALID_ARGUMENT, trailing=(("field", "top_p"),)), InvalidArgument, 1),
        (GONE, Unavailable, 4),
    ):
        async with scripted_gateway(act) as (gateway, address):
            asker = await connect(address, retry=QUICK)
            with pytest.raises(kind) as failure:
                await asker.list_models()
            assert failure.value.message == "scripted"
            assert failure.value.field == dict(act.trailing).get("field", "")
            assert len(gateway.metadata) == num_calls


async def test_an_answer_without_an_end_is_an_error(connect: Connect) -> None:
    async with scripted_gateway(Act()) as (_, address):
        asker = await connect(address)
        with pytest.raises(Internal, match="before the answer was finished"):
            await asker.generate("x")
        (failure,) = await asker.generate_batch([make_request("x")])
        assert failure.code is Code.INTERNAL


async def test_a_gateway_that_is_not_there_is_unavailable(connect: Connect) -> None:
    async with scripted_gateway(FINE) as (_, address):
        pass
    asker = await connect(address, retry=QUICK)
    with pytest.raises(Unavailable):
        await asker.generate("x")


async def test_each_try_has_the_time_that_is_left(connect: Connect) -> None:
    async with scripted_gateway(GONE, FINE) as (gateway, address):
        # gRPC sends the former number again where the new one is less than 3 % smaller.
        asker = await connect(address, retry=Retry(first_pause_s=0.4))
        await asker.generate("x", deadline=Deadline.after(9))
    first, second = gateway.seconds_left
    assert second < first


class Ended(grpc.RpcError):
    """A failed call as the library gives it."""

    def __init__(self, status: grpc.StatusCode, **trailing: str) -> None:
        super().__init__()
        self._status, self._trailing = status, tuple(trailing.items())

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str | None:
        return None

    def trailing_metadata(self) -> Any:
        return self._trailing


@pytest.mark.parametrize("code", list(Code))
def test_the_gateways_own_word_for_an_error_wins_over_the_status(code: Code) -> None:
    assert error_of_call(Ended(grpc.StatusCode.INTERNAL, code=code.value)).code is code


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_every_status_is_one_of_our_errors(status: grpc.StatusCode) -> None:
    error = error_of_call(Ended(status, code="no-such"))
    assert error.message
    if status.name in Code.__members__:
        assert error.code.name == status.name


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan"])
def test_a_time_that_is_none_is_not_taken(text: str) -> None:
    assert error_of_call(Ended(grpc.StatusCode.UNAVAILABLE, **{"retry-after": text})).retry_after_s is None
