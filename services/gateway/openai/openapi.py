"""The OpenAPI document: made of the types that bodies are checked by, and of those that the tests hold replies to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ... import __version__
from .chat_body import ChatBody
from .completion_body import CompletionBody
from .reply_schema import (
    ChatCompletion,
    Completion,
    Detokenized,
    ErrorReply,
    ModelCard,
    ModelList,
    Status,
    Tokenized,
    Version,
)
from .tokenize import DetokenizeBody, TokenizeBody

_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "A field is wrong or not served, or the prompt does not fit the context window.",
    401: "An API key is needed, and none came or it is not known.",
    404: "There is no such model.",
    413: "The body is too large.",
    415: "The body is not JSON by its content type.",
    429: "There is no room, or not in time; `Retry-After` says when to come back.",
    500: "A fault of ours, or the model gave NaN for this request.",
    503: "The mesh is not ready, is stopping, or a service stayed out of reach.",
    504: "The time for the request is over.",
}
_BODY_ERRORS, _MODEL_ERRORS = (400, 401, 404, 413, 415, 500), (429, 503, 504)


@dataclass(frozen=True, slots=True)
class _Operation:
    path: str
    name: str
    summary: str
    reply: type[BaseModel] | str
    """Its type, or the media type of what is no JSON; "object" is JSON without a type of ours."""
    body: type[BaseModel] | None = None
    errors: Sequence[int] = ()
    streams: bool = False
    is_open: bool = False
    """Whether no API key is needed even where keys are."""


_OPERATIONS = (
    _Operation(
        "/v1/chat/completions", "chat", "Answer a conversation", ChatCompletion, ChatBody,
        (*_BODY_ERRORS, *_MODEL_ERRORS), streams=True,
    ),
    _Operation(
        "/v1/completions", "complete", "Continue prompts", Completion, CompletionBody,
        (*_BODY_ERRORS, *_MODEL_ERRORS), streams=True,
    ),
    _Operation("/tokenize", "tokenize", "Turn a text into tokens", Tokenized, TokenizeBody, _BODY_ERRORS),
    _Operation("/detokenize", "detokenize", "Turn tokens into text", Detokenized, DetokenizeBody, _BODY_ERRORS),
    _Operation("/tokenizer_info", "tokenizer_info", "The tokenizer's configuration", "object", errors=(401,)),
    _Operation("/v1/models", "list_models", "The models that are served", ModelList, errors=(401,)),
    _Operation("/v1/models/{name}", "show_model", "One of them", ModelCard, errors=(401, 404)),
    _Operation("/v1/admission", "admission", "What the gateway knows of the mesh's load", "object", errors=(401,)),
    _Operation("/health", "health", "Whether the process is alive", Status, is_open=True),
    _Operation("/ready", "ready", "Whether requests may come", Status, errors=(503,), is_open=True),
    _Operation("/metrics", "metrics", "Metrics for Prometheus", "text/plain", errors=(401,)),
    _Operation("/version", "version", "What is running", Version, is_open=True),
    _Operation("/openapi.json", "openapi", "This document", "object", is_open=True),
)  # fmt: skip


def openapi_document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for operation in _OPERATIONS:
        method = "get" if operation.body is None else "post"
        paths.setdefault(operation.path, {})[method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "allroads",
            "version": __version__,
            "summary": "A small and a large language model served as one, routed token by token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "Where keys are needed."}},
        },
    }


def _operation(operation: _Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {"200": _success(operation), **{str(status): _error(status) for status in operation.errors}},
    }
    if not operation.is_open:
        described["security"] = [{}, {"key": []}]
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(operation.body)}},
        }
    if "{name}" in operation.path:
        schema = {"type": "string", "minLength": 1}
        described["parameters"] = [
            {"name": "name", "in": "path", "required": True, "description": "The model's name.", "schema": schema}
        ]
    return described


def _success(operation: _Operation) -> dict[str, Any]:
    content: dict[str, Any]
    if operation.reply == "object":
        content = {"application/json": {"schema": {"type": "object"}}}
    elif isinstance(operation.reply, str):
        content = {operation.reply: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": _reference(operation.reply)}}
    if operation.streams:
        told = (
            "With `stream`: events `data: {…}`, each a chunk of the reply in OpenAI's form, then `data: [DONE]`. "
            'A failure after the first byte is one event `data: {"error": …}`.'
        )
        content["text/event-stream"] = {"schema": {"type": "string", "description": told}}
    return {"description": operation.summary, "content": content}


def _error(status: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": _reference(ErrorReply)}},
    }
    if status == 429:
        described["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return described


def _schemas() -> dict[str, Any]:
    bodies = [operation.body for operation in _OPERATIONS if operation.body is not None]
    replies = [operation.reply for operation in _OPERATIONS if not isinstance(operation.reply, str)]
    asked = {name: _nullable(schema) for name, schema in _definitions(bodies).items()}
    return asked | _definitions([*replies, ErrorReply])


def _definitions(models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    _, schema = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    found: dict[str, Any] = schema["$defs"]
    return found


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Null means absent: whatever may be left out may be null."""
    required = schema.get("required", ())
    properties = {
        name: field if name in required else _or_null(field) for name, field in schema.get("properties", {}).items()
    }
    return schema | {"properties": properties}


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if null in field.get("anyOf", ()):
        return field
    kept = {key: value for key, value in field.items() if key in ("description", "default", "title")}
    inner = {key: value for key, value in field.items() if key not in kept}
    return {**kept, "anyOf": [inner, null]}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
