"""The REST API: routes, and what happens to errors on their way out."""

import logging
import time
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ... import __version__
from ...errors import AllroadsError, InvalidArgument, Unavailable
from ..gateway import Gateway
from ..request import Plan
from .body import read_object
from .choices import Choices
from .disconnect import unless_gone
from .errors import HttpError, error_response, internal_error
from .model_card import model_card
from .reply import ChatReply, CompletionReply, Reply
from .schema import ChatBody, CompletionBody, GenerationBody
from .stream import EventStream, await_first

logger = logging.getLogger(__name__)


def make_app(gateway: Gateway) -> FastAPI:
    """The application over a gateway."""
    app = FastAPI(title="allroads", version=__version__, openapi_url=None)
    app.add_exception_handler(AllroadsError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)
    routes = _Routes(gateway)
    for path, endpoint, method in (
        ("/v1/chat/completions", routes.chat, "POST"),
        ("/v1/completions", routes.complete, "POST"),
        ("/v1/models", routes.list_models, "GET"),
        ("/v1/models/{name:path}", routes.show_model, "GET"),
        ("/health", routes.health, "GET"),
        ("/ready", routes.ready, "GET"),
        ("/metrics", routes.metrics, "GET"),
        ("/version", routes.version, "GET"),
    ):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    return app


class _Routes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.gateway
        self._started_unix_s = int(time.time())

    async def chat(self, request: Request) -> Response:
        body = ChatBody.parse(await self._read(request))
        messages = body.conversation()
        reply = ChatReply(body.model, self._gateway.token_texts, report_tokens=body.routing.report_tokens)
        return await unless_gone(
            request, self._answer(reply, body, [await self._gateway.plan_chat(messages, body.params(reply.id))])
        )

    async def complete(self, request: Request) -> Response:
        body = CompletionBody.parse(await self._read(request))
        prompts = body.prompts()
        most = self._settings.max_running + self._settings.max_waiting
        if len(prompts) > most:
            raise InvalidArgument(f"prompt may hold {most} prompts at most, not {len(prompts)}", field="prompt")
        reply = CompletionReply(body.model, self._gateway.token_texts, report_tokens=body.routing.report_tokens)
        params = body.params(reply.id)
        plans = [await self._gateway.plan_prompt(prompt, params) for prompt in prompts]
        return await unless_gone(request, self._answer(reply, body, plans))

    async def list_models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._model_card()]}

    async def show_model(self, name: str) -> dict[str, Any]:
        self._gateway.check_model(name)
        return self._model_card()

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def ready(self) -> dict[str, str]:
        if not self._gateway.is_ready:
            raise Unavailable("not ready: the small model's service is not there, or the gateway is stopping")
        return {"status": "ready"}

    async def metrics(self) -> Response:
        return Response(self._gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def version(self) -> dict[str, str]:
        return {"version": __version__}

    async def _read(self, request: Request) -> dict[str, Any]:
        """A request's fields, of which the model is looked at first: it is the most common mistake."""
        content = await read_object(request, self._settings.max_body_bytes)
        if isinstance(model := content.get("model"), str):
            self._gateway.check_model(model)
        return content

    async def _answer(self, reply: Reply, body: GenerationBody, plans: list[Plan]) -> Response:
        choices = Choices(self._gateway.prepare(plans))
        try:
            if body.stream:
                return EventStream(
                    reply,
                    choices,
                    await await_first(choices),
                    include_usage=body.stream_options.include_usage,
                    reader_timeout_s=self._settings.reader_timeout_s,
                )
            pieces: list[list[Any]] = [[] for _ in plans]
            async for index, piece in choices:
                pieces[index].append(piece)
            content = reply.whole(choices.generations, pieces)
        except BaseException:
            await choices.close()
            raise
        await choices.close()
        return JSONResponse(content)

    def _model_card(self) -> dict[str, Any]:
        return model_card(self._gateway.settings.model_name, self._started_unix_s, self._gateway.mesh)


async def _on_error(_: Request, error: Exception) -> Response:
    return error_response(error if isinstance(error, AllroadsError) else internal_error())


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the framework refuses: an unknown path or a wrong method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return error_response(HttpError(status, f"{request.method} {request.url.path} is not served", code="not_found"))


async def _on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours. The server logs its trace; the client learns only that it was ours."""
    logger.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    return error_response(internal_error())
