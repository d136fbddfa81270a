"""The REST API: routes, and what happens to errors on their way out."""

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
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
from .admission_view import admission_view
from .body import read_object
from .chat_body import ChatBody
from .choices import Choices
from .completion_body import CompletionBody
from .disconnect import unless_gone
from .doorkeeper import Doorkeeper, places_of
from .errors import HttpError, error_response, internal_error
from .model_card import model_card
from .openapi import openapi_document
from .playground_page import add_playground
from .reply import ChatReply, CompletionReply, Reply
from .schema import GenerationBody
from .security_layers import add_security
from .stream import EventStream, await_first
from .tokenize import detokenize, tokenize, tokenizer_info
from .tool_reply import ToolReply
from .traced import Traced

logger = logging.getLogger(__name__)


def make_app(gateway: Gateway) -> FastAPI:
    """The application over a gateway."""
    app = FastAPI(title="allroads", version=__version__, openapi_url=None)
    app.add_exception_handler(AllroadsError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)
    app.add_middleware(Traced, tracer=gateway.tracer)
    app.add_middleware(Doorkeeper, gateway=gateway)
    routes = _Routes(gateway)
    for path, endpoint, method in (
        ("/v1/chat/completions", routes.chat, "POST"),
        ("/v1/completions", routes.complete, "POST"),
        ("/tokenize", routes.tokenize, "POST"),
        ("/detokenize", routes.detokenize, "POST"),
        ("/tokenizer_info", routes.tokenizer_info, "GET"),
        ("/v1/models", routes.list_models, "GET"),
        ("/v1/models/{name:path}", routes.show_model, "GET"),
        ("/v1/admission", routes.admission, "GET"),
        ("/health", routes.health, "GET"),
        ("/ready", routes.ready, "GET"),
        ("/metrics", routes.metrics, "GET"),
        ("/version", routes.version, "GET"),
        ("/openapi.json", routes.openapi, "GET"),
    ):
        methods = ["GET", "HEAD"] if method == "GET" else [method]
        app.add_api_route(path, endpoint, methods=methods, response_model=None)
    if gateway.settings.gateway.playground:
        add_playground(app)
    add_security(app, gateway)
    return app


class _Routes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.gateway
        self._started_unix_s = int(time.time())
        self._openapi = openapi_document()

    async def chat(self, request: Request) -> Response:
        body = ChatBody.parse(await self._read(request))
        messages, tools = body.conversation(), body.tool_use()
        options = body.template_options(() if tools is None else tools.tools)
        self._check_places(body.n, "n")
        reply = self._reply(ChatReply if tools is None else partial(ToolReply, use=tools), body)
        params = body.params(reply.id)

        async def plan() -> list[Plan]:
            return (await self._gateway.plan_chat(messages, params, options)).choices(body.n)

        return await unless_gone(request, self._answer(request, reply, body, body.n, plan))

    async def complete(self, request: Request) -> Response:
        body = CompletionBody.parse(await self._read(request))
        prompts = body.prompts()
        self._check_places(len(prompts), "prompt")
        self._check_places(len(prompts) * body.n, "n")
        reply = self._reply(CompletionReply, body)
        params = body.params(reply.id)

        async def plan() -> list[Plan]:
            plans = [await self._gateway.plan_prompt(prompt, params) for prompt in prompts]
            return [choice for plan in plans for choice in plan.choices(body.n)]

        return await unless_gone(request, self._answer(request, reply, body, len(prompts) * body.n, plan))

    async def tokenize(self, request: Request) -> dict[str, Any]:
        return await tokenize(self._gateway, await self._read(request))

    async def detokenize(self, request: Request) -> dict[str, Any]:
        return await detokenize(self._gateway, await self._read(request))

    async def tokenizer_info(self) -> dict[str, Any]:
        return tokenizer_info(self._gateway)

    async def list_models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._model_card()]}

    async def show_model(self, name: str) -> dict[str, Any]:
        self._gateway.check_model(name)
        return self._model_card()

    async def admission(self) -> dict[str, Any]:
        return admission_view(self._gateway.controller)

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

    async def openapi(self) -> dict[str, Any]:
        return self._openapi

    async def _read(self, request: Request) -> dict[str, Any]:
        """A request's fields, of which the model is looked at first: it is the most common mistake."""
        content = await read_object(request, self._settings.max_body_bytes)
        if isinstance(model := content.get("model"), str):
            self._gateway.check_model(model)
        return content

    async def _answer(
        self,
        request: Request,
        reply: Reply,
        body: GenerationBody,
        num_places: int,
        plan: Callable[[], Awaitable[list[Plan]]],
    ) -> Response:
        """The places come first: who is refused costs no planning, and who leaves meanwhile gives them back."""
        with places_of(request, self._gateway, num_places) as places:
            choices = Choices(self._gateway.prepare(await plan(), places))
        try:
            if body.stream:
                return EventStream(
                    reply,
                    choices,
                    await await_first(choices),
                    include_usage=body.stream_options.include_usage,
                    reader_timeout_s=self._settings.reader_timeout_s,
                )
            pieces: list[list[Any]] = [[] for _ in choices.generations]
            async for index, piece in choices:
                pieces[index].append(piece)
            content = reply.whole(choices.generations, pieces)
        except BaseException:
            await choices.close()
            raise
        await choices.close()
        return JSONResponse(content)

    def _reply(self, kind: Callable[..., Reply], body: GenerationBody) -> Reply:
        routing = body.routing
        return kind(
            body.model,
            self._gateway.token_texts,
            report_tokens=routing.report_tokens,
            report_scores=routing.report_scores,
            return_token_ids=body.return_token_ids,
            continuous_usage=body.stream_options.include_usage and body.stream_options.continuous_usage_stats,
        )

    def _check_places(self, num_choices: int, field: str) -> None:
        """More choices than there are places could never be let in."""
        most = self._gateway.door.limiter.most_places
        if num_choices > most:
            raise InvalidArgument(f"a request may have {most} choices at most, not {num_choices}", field=field)

    def _model_card(self) -> dict[str, Any]:
        return model_card(self._gateway.settings.model_name, self._started_unix_s, self._gateway.mesh)


async def _on_error(_: Request, error: Exception) -> Response:
    return error_response(error if isinstance(error, AllroadsError) else internal_error())


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the framework refuses: an unknown path or a wrong method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = error_response(HttpError(status, f"{request.method} {request.url.path} is not served", code="not_found"))
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


async def _on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours. The server logs its trace; the client learns only that it was ours."""
    logger.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    return error_response(internal_error())
