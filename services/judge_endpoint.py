"""A language model as a judge, behind any OpenAI-compatible endpoint: this mesh, a provider, a server next door."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

from .errors import AllroadsError, InvalidArgument, StartupError, Unavailable

_TIMEOUT = httpx.Timeout(300.0, connect=10.0)
_TOO_BUSY = (429, 502, 503, 504)
_NUM_TRIES = 6
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where a judge is reached."""

    url: str
    """With or without `/v1`."""
    model: str
    key_variable: str = ""
    """Name of the environment variable that holds the key; empty where none is needed. The key is written nowhere."""
    max_tokens: int = 16


class JudgeEndpoint:
    """Asks a judge, greedily. A context manager."""

    def __init__(self, settings: EndpointSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Check where the judge is; it is not called yet.

        Raises:
            StartupError: the address is none, or the variable of the key is not set.
        """
        url = settings.url.rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise StartupError(f"the judge's url must begin with http:// or https://, not {url!r}", field="judge.url")
        headers, self._key = {}, ""
        if settings.key_variable:
            if not (key := os.environ.get(settings.key_variable, "")):
                raise StartupError(
                    f"the environment variable {settings.key_variable} is not set; it should hold the judge's key",
                    field="judge.key_variable",
                )
            headers["Authorization"], self._key = f"Bearer {key}", key
        self._settings = settings
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ask(self, messages: Sequence[dict[str, str]]) -> str:
        """The judge's answer; an endpoint that is busy is asked again.

        Raises:
            InvalidArgument: it refuses the request.
            Unavailable: it is out of reach, or stays busy.
        """
        body = {
            "model": self._settings.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": self._settings.max_tokens,
        }
        fault: AllroadsError = Unavailable("the judge was not asked")
        for attempt in range(_NUM_TRIES):
            try:
                reply = await self._http.post("/v1/chat/completions", json=body)
            except httpx.HTTPError as error:
                fault = Unavailable(f"the judge is out of reach ({error or type(error).__name__}); check its url")
            else:
                if reply.is_success:
                    return _content(reply)
                if reply.status_code not in _TOO_BUSY:
                    raise InvalidArgument(f"the judge refuses: status {reply.status_code}: {self._said(reply)}")
                fault = Unavailable(f"the judge is busy: status {reply.status_code}")
            if attempt + 1 < _NUM_TRIES:
                await asyncio.sleep(min(2.0**attempt, _LONGEST_PAUSE_S))
        raise fault

    def _said(self, reply: httpx.Response) -> str:
        """What a refusal says, without the key, which some servers repeat."""
        text = reply.text.replace(self._key, "(key)") if self._key else reply.text
        return text[:200]


def _content(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["choices"][0]["message"]["content"] or "")
    except (ValueError, LookupError, TypeError) as error:
        raise Unavailable("the judge does not answer in OpenAI's form; check its url") from error
