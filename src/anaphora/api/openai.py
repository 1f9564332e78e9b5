"""OpenAI Chat Completions requests: wire -> canonical. Pure.

Fields that would change the answer and can't be honoured are refused by name; fields that can't change it
(`user`, `metadata`, `store`, `service_tier`, ...) and fields nobody here knows are left alone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from anaphora.api.wire import (
    WireModel,
    json_text,
    optional_text,
    refuse,
    validated,
    want_list,
    want_object,
    want_text,
    yes_or_no,
)
from anaphora.engine.request import Sampling
from anaphora.prompt.canonical import (
    AnswerSchema,
    CacheMark,
    Message,
    Part,
    Prompt,
    Role,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from anaphora.prompt.front_nonces import FRONT_NONCES, Rules, cleaned_messages

Given = TypeVar("Given")

MAX_STOPS = 4
MAX_SEQUENCES = 128
MAX_TOP_LOGPROBS = 20

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Stops = Annotated[Annotated[list[str], Field(max_length=MAX_STOPS)] | None, BeforeValidator(_as_list)]


class StreamOptions(WireModel):
    include_usage: bool = False


class SamplingFields(WireModel):
    """What Chat Completions and Completions share. The last five are extensions other engines have too."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=64)] | None = None


class ChatRequest(SamplingFields):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One Chat Completions request, translated."""

    model: str
    prompt: Prompt
    sampling: Sampling
    is_streamed: bool
    includes_usage: bool


def read_chat(body: dict[str, Any], front_nonces: Rules = FRONT_NONCES) -> ChatCall:
    """The request, translated. `front_nonces` say what is taken out in front of the system prompt.

    Raises: RequestError naming the field.
    """
    request = validated(ChatRequest, body)
    _refuse_what_cant_be_honoured(request, body)
    if request.top_logprobs is not None and not request.logprobs:
        refuse("top_logprobs", "needs logprobs to be true.")
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    max_tokens = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ()))
    messages = tuple(_message(value, f"messages[{index}]") for index, value in enumerate(request.messages))
    choice = tool_choice_of(request.tool_choice, tools, parallel=request.parallel_tool_calls is not False, nested=True)
    answer = answer_of(request.response_format, "response_format", inside="json_schema")
    prompt = Prompt(messages=cleaned_messages(messages, front_nonces), tools=tools, tool_choice=choice, answer=answer)
    refuse_begun_json(prompt, "response_format")
    return ChatCall(
        model=request.model,
        prompt=prompt,
        sampling=sampling_of(request, max_tokens=max_tokens, num_logprobs=num_logprobs),
        is_streamed=bool(request.stream),
        includes_usage=bool(request.stream_options and request.stream_options.include_usage),
    )


def sampling_of(
    request: SamplingFields,
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None = None,
) -> Sampling:
    """The request's sampling fields in the engine's terms."""
    if request.stream_options is not None and not request.stream:
        refuse("stream_options", "is only allowed when stream is true.")
    if any(not stop for stop in request.stop or ()):
        refuse("stop", "must not contain an empty string.")
    top_p, top_k = _value(request.top_p, 1.0), _value(request.top_k, 0)
    if top_p == 0:  # as hosted: nothing but the likeliest token is left
        top_p, top_k = 1.0, 1
    return Sampling(
        max_tokens=max_tokens,
        temperature=_value(request.temperature, 1.0),
        top_p=top_p,
        top_k=top_k,
        min_p=_value(request.min_p, 0.0),
        presence_penalty=_value(request.presence_penalty, 0.0),
        frequency_penalty=_value(request.frequency_penalty, 0.0),
        repetition_penalty=_value(request.repetition_penalty, 1.0),
        seed=request.seed,
        logit_bias=_logit_bias(request.logit_bias),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        stop=tuple(request.stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_end=bool(request.ignore_eos),
        num_sequences=_value(request.n, 1),
    )


def _value(given: Given | None, default: Given) -> Given:
    return default if given is None else given


def _logit_bias(given: dict[str, float] | None) -> dict[int, float]:
    bias: dict[int, float] = {}
    for token, value in (given or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            refuse("logit_bias", f"has the key {token[:40]!r}, which is no token id.")
        bias[int(token)] = value
    return bias


def _refuse_what_cant_be_honoured(request: ChatRequest, body: dict[str, Any]) -> None:
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if body.get(name):
            refuse(name, f"is not supported; use {instead}.")
    for name in ("audio", "web_search_options"):
        if body.get(name) is not None:
            refuse(name, "is not supported: this server generates text with its own model only.")
    if request.modalities is not None and request.modalities != ["text"]:
        refuse("modalities", 'only ["text"] is supported.')


def _tool(value: dict[str, Any], path: str) -> Tool:
    if value.get("type") != "function":
        refuse(f"{path}.type", 'must be "function".')
    return function_of(want_object(value.get("function"), f"{path}.function"), path, inside=".function")


def function_of(value: Mapping[str, Any], path: str, *, inside: str = "") -> Tool:
    """The tool at `path`, whose name and schema stand `inside` it: Chat Completions nests them, Responses does not.

    Raises: RequestError naming the field.
    """
    here = f"{path}{inside}"
    name = want_text(value.get("name"), f"{here}.name")
    if not name:
        refuse(f"{here}.name", "must not be empty.")
    parameters = value.get("parameters")
    schema = want_object({"type": "object"} if parameters is None else parameters, f"{here}.parameters")
    return Tool(
        name=name,
        description=optional_text(value, "description", here),
        schema=json_text(schema),
        path=path,
        schema_path=f"{here}.parameters",
        is_strict=yes_or_no(value, "strict", here),
    )


def answer_of(value: Mapping[str, Any] | None, path: str, *, inside: str = "") -> AnswerSchema | None:
    """The schema that the format at `path` asks of the answer. `inside`: the object of it that has the schema.

    Raises: RequestError naming the field.
    """
    kind = "text" if value is None else want_text(value.get("type"), f"{path}.type")
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return AnswerSchema('{"type": "object"}', path)
    if kind != "json_schema":
        refuse(f"{path}.type", "must be one of text, json_object, json_schema.")
    here = f"{path}.{inside}" if inside else path
    holder = want_object(value.get(inside), here) if inside else value
    if not want_text(holder.get("name"), f"{here}.name"):
        refuse(f"{here}.name", "must not be empty.")
    given = holder.get("schema")
    schema = want_object({} if given is None else given, f"{here}.schema")
    return AnswerSchema(json_text(schema), f"{here}.schema", yes_or_no(holder, "strict", here))


def refuse_begun_json(prompt: Prompt, path: str) -> None:
    """Refuse a format for an answer whose beginning is in the request: it would begin twice."""
    if prompt.answer is not None and prompt.continues_answer:
        refuse(path, "can't go with a last message from the assistant, which is the beginning of the answer.")


def tool_choice_of(choice: Any, tools: tuple[Tool, ...], *, parallel: bool, nested: bool) -> ToolChoice:
    """How a request wants its tools called. `nested`: a chosen function is named in an object of its own.

    Raises: RequestError naming the field.
    """
    if choice is None or choice == "auto":
        return ToolChoice("auto", parallel=parallel)
    if choice == "none":
        return ToolChoice("none", parallel=parallel)
    if choice != "required" and not isinstance(choice, dict):
        refuse("tool_choice", "must be none, auto, required, or an object that names a function.")
    if not tools:
        refuse("tool_choice", "needs tools.")
    if choice == "required":
        return ToolChoice("any", parallel=parallel)
    names = {tool.name for tool in tools}
    if choice.get("type") == "allowed_tools":
        return _allowed_tools(choice, names, parallel=parallel, nested=nested)
    return ToolChoice("tool", _function_named(choice, "tool_choice", names, nested=nested), parallel)


def _function_named(value: Mapping[str, Any], path: str, names: Collection[str], *, nested: bool) -> str:
    """The name of the function that the object at `path` means."""
    if value.get("type") != "function":
        refuse(f"{path}.type", 'must be "function".')
    here = f"{path}.function" if nested else path
    chosen = want_object(value.get("function"), here) if nested else value
    name = want_text(chosen.get("name"), f"{here}.name")
    if name not in names:
        refuse(f"{here}.name", f"there is no tool named {name[:80]!r}.")
    return name


def _allowed_tools(choice: Mapping[str, Any], names: Collection[str], *, parallel: bool, nested: bool) -> ToolChoice:
    path = "tool_choice.allowed_tools" if nested else "tool_choice"
    holder = want_object(choice.get("allowed_tools"), path) if nested else choice
    mode = holder.get("mode")
    if mode not in ("auto", "required"):
        refuse(f"{path}.mode", "must be auto or required.")
    allowed = tuple(
        _function_named(want_object(tool, f"{path}.tools[{index}]"), f"{path}.tools[{index}]", names, nested=nested)
        for index, tool in enumerate(want_list(holder.get("tools"), f"{path}.tools"))
    )
    if not allowed:
        refuse(f"{path}.tools", "must not be empty.")
    return ToolChoice("any" if mode == "required" else "auto", parallel=parallel, allowed=allowed)


def _message(value: dict[str, Any], path: str) -> Message:
    role = _ROLES.get(want_text(value.get("role"), f"{path}.role"))
    if role is None:
        refuse(f"{path}.role", "must be one of system, developer, user, assistant, tool.")
    if role == "tool":
        return Message(role, (_tool_result(value, path),), path)
    content = value.get("content")
    calls = value.get("tool_calls") if role == "assistant" else None
    calls = [] if calls is None else want_list(calls, f"{path}.tool_calls")
    if content is None and not calls:
        refuse(f"{path}.content", "must be a string or a list of content parts.")
    parts: list[Part] = [] if content is None else list(_texts(content, f"{path}.content", role))
    for index, call in enumerate(calls):
        parts.append(_tool_use(call, f"{path}.tool_calls[{index}]"))
    return Message(role, tuple(parts), path)


def _texts(content: object, path: str, role: Role) -> tuple[Text, ...]:
    if isinstance(content, str):
        return (Text(content, path),)
    if not isinstance(content, list):
        refuse(path, "must be a string or a list of content parts.")
    if not content:
        refuse(path, "must not be an empty list.")
    return tuple(_text_part(part, f"{path}[{index}]", role) for index, part in enumerate(content))


def _text_part(value: object, path: str, role: Role) -> Text:
    part = want_object(value, path)
    kind = want_text(part.get("type"), f"{path}.type")
    if kind == "refusal" and role == "assistant":
        return Text(want_text(part.get("refusal"), f"{path}.refusal"), path)
    if kind != "text":
        refuse(f"{path}.type", f"{kind[:40]!r} is not supported: this model takes text only.")
    mark = part.get("prompt_cache_breakpoint")
    ttl = mark.get("ttl") if isinstance(mark, dict) else None
    marked = CacheMark(ttl if isinstance(ttl, str) else None) if isinstance(mark, dict) else None
    return Text(want_text(part.get("text"), f"{path}.text"), path, marked)


def _tool_use(value: object, path: str) -> ToolUse:
    call = want_object(value, path)
    function = want_object(call.get("function"), f"{path}.function")
    return ToolUse(
        call_id=want_text(call.get("id"), f"{path}.id"),
        name=want_text(function.get("name"), f"{path}.function.name"),
        arguments=want_text(function.get("arguments"), f"{path}.function.arguments"),
        path=path,
    )


def _tool_result(value: dict[str, Any], path: str) -> ToolResult:
    texts = _texts(value.get("content"), f"{path}.content", "tool")
    return ToolResult(
        call_id=want_text(value.get("tool_call_id"), f"{path}.tool_call_id"),
        text="\n".join(text.text for text in texts),
        path=f"{path}.content",
        name=optional_text(value, "name", path),
    )
