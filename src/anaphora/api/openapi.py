"""The API as an OpenAPI document: what each path takes, made from the models that read it, and what it answers. Pure.

The hosts' own documents say all of their APIs; this one says what is read here. Fields of several types are `Any` in
the models, and so they are here: what they may hold is told where they are refused.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from anaphora.api import anthropic_batches, openai_batches
from anaphora.api.anthropic import CountRequest, MessagesRequest
from anaphora.api.openai import ChatRequest
from anaphora.api.openai_completions import CompletionRequest
from anaphora.api.responses import InputTokensRequest, ResponsesRequest

Schema = dict[str, Any]
Host = Literal["openai", "anthropic", "either"]

_REF = "#/components/schemas/{model}"
_STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_ERRORS = ("400", "401", "404", "405", "408", "413", "429", "500", "503", "504", "529")


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    summary: str
    host: Host
    answer: tuple[str, ...] = ()  # keys of the answer that are always there
    takes: type[BaseModel] | None = None
    query: tuple[str, ...] = ()
    media_type: str = "application/json"


_BATCH = ("id", "processing_status", "request_counts")
_LIST = ("data", "has_more", "first_id", "last_id")
_MESSAGES, _BATCHES, _FILES = "/v1/messages", "/v1/batches", "/v1/files"

OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Chat Completions", "openai", ("choices", "usage"), ChatRequest),
    Operation("post", "/v1/completions", "Completions", "openai", ("choices", "usage"), CompletionRequest),
    Operation("post", "/v1/responses", "Responses", "openai", ("output", "usage"), ResponsesRequest),
    Operation("post", "/v1/responses/input_tokens", "Count", "openai", ("input_tokens",), InputTokensRequest),
    Operation("get", "/v1/responses/{response_id}", "A kept response", "openai", ("output",)),
    Operation("delete", "/v1/responses/{response_id}", "Forget a response", "openai", ("deleted",)),
    Operation("post", _MESSAGES, "Messages", "anthropic", ("content", "usage"), MessagesRequest),
    Operation("post", f"{_MESSAGES}/count_tokens", "Count", "anthropic", ("input_tokens",), CountRequest),
    Operation("post", f"{_MESSAGES}/batches", "Batch", "anthropic", _BATCH, anthropic_batches.MessageBatchRequest),
    Operation("get", f"{_MESSAGES}/batches", "Batches", "anthropic", _LIST, query=("limit", "after_id", "before_id")),
    Operation("get", f"{_MESSAGES}/batches/{{batch_id}}", "A batch", "anthropic", _BATCH),
    Operation("delete", f"{_MESSAGES}/batches/{{batch_id}}", "Forget a batch", "anthropic", ("id", "type")),
    Operation("post", f"{_MESSAGES}/batches/{{batch_id}}/cancel", "Cancel a batch", "anthropic", _BATCH),
    Operation(
        "get",
        f"{_MESSAGES}/batches/{{batch_id}}/results",
        "A batch's results",
        "anthropic",
        media_type="application/x-jsonl",
    ),
    Operation("post", _BATCHES, "Batch", "openai", ("id", "status"), openai_batches.BatchRequest),
    Operation("get", _BATCHES, "Batches", "openai", _LIST, query=("limit", "after")),
    Operation("get", f"{_BATCHES}/{{batch_id}}", "A batch", "openai", ("id", "status")),
    Operation("post", f"{_BATCHES}/{{batch_id}}/cancel", "Cancel a batch", "openai", ("id", "status")),
    Operation("get", _FILES, "Files", "openai", _LIST, query=("limit", "after", "purpose")),
    Operation("get", f"{_FILES}/{{file_id}}", "A file", "openai", ("id", "bytes")),
    Operation("delete", f"{_FILES}/{{file_id}}", "Forget a file", "openai", ("id", "deleted")),
    Operation(
        "get", f"{_FILES}/{{file_id}}/content", "A file's content", "openai", media_type="application/octet-stream"
    ),
    Operation("get", "/v1/models", "Models", "either", ("data",), query=("limit", "after_id", "before_id")),
    Operation("get", "/v1/models/{model_id}", "A model", "either", ("id",)),
)


def document(version: str) -> Schema:
    """The whole document."""
    models = [one.takes for one in OPERATIONS if one.takes is not None]
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _shown(operation)
    paths[_FILES]["post"] = _upload()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Anaphora",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {**definitions["$defs"], "OpenAIError": _OPENAI_ERROR, "AnthropicError": _ANTHROPIC_ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}],
    }


_TEXT = {"type": "string"}
_OPENAI_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": _TEXT, "type": _TEXT},
        }
    },
}
_ANTHROPIC_ERROR: Schema = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "request_id": _TEXT,
        "error": {"type": "object", "required": ["type", "message"], "properties": {"type": _TEXT, "message": _TEXT}},
    },
}


def _shown(operation: Operation) -> Schema:
    shown: Schema = {"summary": operation.summary, "parameters": _parameters(operation)}
    if operation.takes is not None:
        body: Schema = {"application/json": {"schema": {"$ref": _REF.format(model=operation.takes.__name__)}}}
        shown["requestBody"] = {"required": True, "content": body}
    schema: Schema = {"type": "object", "required": list(operation.answer)}
    content: Schema = {operation.media_type: {"schema": schema} if operation.answer else {}}
    if operation.path in _STREAMS:
        content["text/event-stream"] = {}
    shown["responses"] = {"200": {"description": "As asked.", "content": content}, **_errors(operation.host)}
    return shown


def _parameters(operation: Operation) -> list[Schema]:
    named = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    own: list[Schema] = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in named]
    return own + [{"name": name, "in": "query", "schema": _TEXT} for name in operation.query]


def _errors(host: Host) -> dict[str, Schema]:
    schemas: dict[str, Schema] = {
        "openai": {"$ref": _REF.format(model="OpenAIError")},
        "anthropic": {"$ref": _REF.format(model="AnthropicError")},
    }
    schema = schemas.get(host) or {"anyOf": list(schemas.values())}
    content = {"application/json": {"schema": schema}}
    return {status: {"description": "An error.", "content": content} for status in _ERRORS}


def _upload() -> Schema:
    form = {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"const": "batch"}},
    }
    schema: Schema = {"type": "object", "required": ["id", "bytes"]}
    return {
        "summary": "Send a file",
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}},
        "responses": {
            "200": {"description": "As asked.", "content": {"application/json": {"schema": schema}}},
            **_errors("openai"),
        },
    }
