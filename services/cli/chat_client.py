"""A client of a running mesh: one streamed answer at a time, with who wrote what."""

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ..errors import AllroadsError, Internal, InvalidArgument, Unavailable

Message = dict[str, str]
"""`{"role": …, "content": …}`."""

_CONNECT_TIMEOUT_S = 5.0
_DATA = "data:"


@dataclass(frozen=True)
class Piece:
    """Text that became certain at once. May be that of several tokens."""

    text: str
    tier: int
    """The largest model that wrote any of it; 0 is the SLM."""


@dataclass(frozen=True)
class Totals:
    """What came with the end of an answer."""

    finish_reason: str
    num_tokens: dict[str, int]
    """By the name of the model's tier, the SLM's first."""
    is_degraded: bool
    """Whether the SLM had to go on alone because the LLM or the router was out of reach."""


class ChatClient:
    """Speaks the REST API. `options` are fields of every request, `routing` among them."""

    def __init__(
        self,
        url: str,
        options: dict[str, Any],
        model: str | None = None,
        *,
        api_key: str | None = None,
        ca: Path | None = None,
    ) -> None:
        """`ca` holds the certificates to trust, in place of the system's.

        Raises:
            InvalidArgument: it cannot be read.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        self._options = options
        self._model = model
        # An answer may pause for as long as it likes; a server that is not there is told at once.
        self._http = httpx.Client(
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=_trusting(ca),
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def model(self) -> str:
        """The model that is talked to: the one asked for, else the first that is served.

        Raises:
            AllroadsError: the server cannot be reached, or serves no model.
        """
        if self._model is None:
            try:
                response = self._http.get(f"{self._url}/v1/models")
                _raise_for_status(response)
                self._model = str(response.json()["data"][0]["id"])
            except httpx.HTTPError as error:
                raise self._unreachable(error) from error
            except (ValueError, LookupError, TypeError) as error:
                raise Internal(f"{self._url} does not answer like an OpenAI-compatible server; check --url") from error
        return self._model

    def answer(self, messages: list[Message]) -> Iterator[Piece | Totals]:
        """Stream an answer. Closing the iterator ends the request on the server.

        Raises:
            AllroadsError: what the server said, or that it was lost.
        """
        body = {**self._options, "model": self.model(), "messages": messages, "stream": True}
        try:
            with self._http.stream("POST", f"{self._url}/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                _raise_for_status(response)
                yield from _parts(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.HTTPError) -> AllroadsError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Unavailable(f"the certificate of {self._url} is not one that is trusted; name its authority by --ca")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return Unavailable(f"nothing answers at {self._url}; start a mesh with `allroads up`, or check --url")
        return Unavailable(f"the connection to {self._url} was lost ({error or type(error).__name__}); try again")


def _raise_for_status(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = f"the server answered with status {response.status_code}; check --url"
    raise InvalidArgument(message) if response.is_client_error else Unavailable(message)


def _parts(lines: Iterator[str]) -> Iterator[Piece | Totals]:
    """Read server-sent events up to `[DONE]`."""
    reader = _ChunkReader()
    for line in lines:
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == "[DONE]":
            return
        try:
            parts = list(reader.read(json.loads(data)))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Internal("the server sent a chunk that is not in OpenAI's form; check --url") from error
        yield from parts
    raise Unavailable("the answer broke off: the server ended it without an end mark; try again")


class _ChunkReader:
    """Reads the chunks of one answer. A token whose text is held back counts for the text that comes later."""

    def __init__(self) -> None:
        self._pending_tier = 0

    def read(self, chunk: dict[str, Any]) -> Iterator[Piece | Totals]:
        if chunk.get("error"):
            raise Unavailable(str(chunk["error"].get("message", "the server failed")))
        routing = chunk.get("routing") or {}
        self._pending_tier = max(self._pending_tier, *(routing.get("tiers") or (0,)))
        for choice in chunk.get("choices") or ():
            text = choice.get("delta", {}).get("content")
            if text:
                yield Piece(text, self._pending_tier)
                self._pending_tier = 0
            if choice.get("finish_reason"):
                yield _totals(choice["finish_reason"], routing)


def _totals(finish_reason: str, routing: dict[str, Any]) -> Totals:
    num_tokens = {str(name): int(count) for name, count in (routing.get("tokens") or {}).items()}
    return Totals(finish_reason, num_tokens, is_degraded=bool(routing.get("degraded")))


def _trusting(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"cannot read certificates from {ca}: {error.strerror or error}", field="--ca") from None
