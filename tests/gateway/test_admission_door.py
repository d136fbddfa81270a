"""Refusals before the application: the same replies on the same connections, whatever comes on them."""

import asyncio
import json
from contextlib import suppress

import pytest
from allroads.gateway.openai.doorstep import read_head
from allroads.gateway.text.tokenizer import TextTokenizer

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served

BODY = json.dumps({"model": MODEL, "prompt": "x"}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
WHOLE = HEAD + LENGTH + b"\r\n" + BODY


class Connection:
    """One connection, kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def read(self) -> tuple[int, bytes]:
        """Status and body of the next reply."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def ask(self, data: bytes = WHOLE) -> int:
        """The status of a request's reply."""
        self.writer.write(data)
        return (await self.read())[0]

    async def is_closed(self) -> bool:
        """Wait for the other side to close. It is reset where that had not read all that was sent."""
        try:
            return await self._reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionResetError):
            await self.writer.wait_closed()


async def connect(served: Served) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", served.running.rest_port))


@pytest.fixture
async def full(serve: Serve, tokenizer: TextTokenizer) -> tuple[Served, asyncio.Event]:
    """A gateway whose one place is taken until the event is set, and none may wait but one that does."""
    hold = asyncio.Event()
    served = await serve(Script(await tokenizer.encode_prompt("1"), hold=hold), max_running=1, max_waiting=1)
    return served, hold


async def test_a_connection_goes_on_after_a_refusal(full: tuple[Served, asyncio.Event]) -> None:
    served, hold = full
    first, second, third = [await connect(served) for _ in range(3)]
    first.writer.write(WHOLE)
    await served.home.until(lambda: len(served.home.opens) == 1)
    second.writer.write(WHOLE)
    while await served.metric("allroads_requests_waiting") != 1:
        pass
    for _ in range(3):
        assert await third.ask() == 429
    # In two parts, by which it goes the longer way.
    third.writer.write(HEAD)
    await asyncio.sleep(0)
    assert await third.ask(LENGTH + b"\r\n" + BODY) == 429
    hold.set()
    assert [(await connection.read())[0] for connection in (first, second)] == [200, 200]
    await served.gateway.wait_until_idle()
    assert await third.ask() == 200
    assert await first.ask() == 200
    refusal_head = WHOLE.replace(b"host: x\r\n", b"host: x\r\nconnection: close\r\n")
    assert await first.ask(refusal_head) == 200
    assert await first.is_closed()
    for connection in (first, second, third):
        await connection.close()
    await served.gateway.wait_until_idle()


async def test_a_refused_connection_that_was_to_close_is_closed(full: tuple[Served, asyncio.Event]) -> None:
    served, hold = full
    others = [await connect(served) for _ in range(2)]
    for other in others:
        other.writer.write(WHOLE)
    while await served.metric("allroads_requests_waiting") != 1:
        pass
    connection = await connect(served)
    assert await connection.ask(WHOLE.replace(b"host: x\r\n", b"host: x\r\nConnection: Close\r\n")) == 429
    assert await connection.is_closed()
    hold.set()
    for closing in (connection, *others):
        await closing.close()
    await served.gateway.wait_until_idle()


async def test_a_body_that_is_on_its_way_keeps_no_place(full: tuple[Served, asyncio.Event]) -> None:
    served, hold = full
    hold.set()
    slow = [await connect(served) for _ in range(4)]
    for connection in slow:
        connection.writer.write(HEAD + LENGTH + b"\r\n" + BODY[:5])
    quick = await connect(served)
    assert await quick.ask() == 200
    for connection in slow[:2]:
        assert await connection.ask(BODY[5:]) == 200
    for connection in (*slow, quick):
        await connection.close()
    await served.gateway.wait_until_idle()


async def test_what_the_parser_turns_down_gives_its_place_back(full: tuple[Served, asyncio.Event]) -> None:
    served, hold = full
    hold.set()
    for bad, status in (
        (WHOLE.replace(b"host: x", b"host: \x01"), 400),
        (WHOLE.replace(BODY, b"?" * len(BODY)), 400),
        (WHOLE.replace(b"json", b"text"), 415),
        (WHOLE.replace(b'"x"', b'"" '), 400),
    ):
        for _ in range(3):
            connection = await connect(served)
            assert await connection.ask(bad) == status
            await connection.close()
    await served.gateway.wait_until_idle()
    assert await served.metric("allroads_requests_running") == 0


@pytest.mark.parametrize(
    "data",
    [
        WHOLE[:-1],
        WHOLE + b"x",
        WHOLE + WHOLE,
        b"GET" + WHOLE[4:],
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        WHOLE.replace(b"/v1/completions", b"/v1/other"),
        WHOLE.replace(LENGTH, b""),
        WHOLE.replace(LENGTH, LENGTH + LENGTH),
        WHOLE.replace(LENGTH, LENGTH + b"transfer-encoding: chunked\r\n"),
        WHOLE.replace(LENGTH, LENGTH + b"Expect: 100-continue\r\n"),
        WHOLE.replace(LENGTH, LENGTH + b" folded: x\r\n"),
        WHOLE.replace(LENGTH, LENGTH + b"no colon\r\n"),
        b"",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(data: bytes) -> None:
    assert read_head(data) is None


def test_a_plain_head_is_read() -> None:
    head = read_head(WHOLE.replace(LENGTH, LENGTH + b"Authorization:  Bearer a:b \r\n"))
    assert head is not None
    assert head[b"authorization"] == b"Bearer a:b"
