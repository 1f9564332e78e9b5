"""Anthropic Messages requests: wire -> canonical. Pure.

Beta headers and fields nobody here knows are left alone; fields that would change the answer and can't be
honoured are refused by name. Cache marks are read and carried along.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

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
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from anaphora.prompt.front_nonces import FRONT_NONCES, Rules, cleaned_system

MAX_STOPS = 8191
"""Ours; hosted, the number is limited too, but nowhere documented."""

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


class CountRequest(WireModel):
    """What `count_tokens` reads."""

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    system: Any = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)]
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """One Messages request, translated."""

    model: str
    prompt: Prompt
    sampling: Sampling
    is_streamed: bool

    def sampling_within(self, room: int) -> tuple[Sampling, bool]:
        """The sampling with max_tokens cut to the room the context leaves, and whether it was cut.

        As hosted: an answer that fills the context ends there and says so, it is no error. A prompt that
        leaves no room at all is the engine's to refuse.
        """
        wanted = self.sampling.max_tokens or 0
        if wanted <= room or room < 1:
            return self.sampling, False
        return replace(self.sampling, max_tokens=room), True


@dataclass(frozen=True, slots=True)
class CountCall:
    """One count_tokens request, translated."""

    model: str
    prompt: Prompt


def read_messages(body: dict[str, Any], front_nonces: Rules = FRONT_NONCES) -> MessagesCall:
    """The request, translated. `front_nonces` say what is taken out in front of the system prompt.

    Raises: RequestError naming the field.
    """
    request = validated(MessagesRequest, body)
    prompt = _prompt(request, body, front_nonces)
    if request.max_tokens == 0:
        _check_prefill_only(request, prompt)
    if any(not stop.strip() for stop in request.stop_sequences or ()):
        refuse("stop_sequences", "each stop sequence must contain non-whitespace.")
    top_p, top_k = request.top_p, request.top_k or 0
    if top_p == 0:
        top_p, top_k = None, 1
    sampling = Sampling(
        max_tokens=request.max_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k,
        stop=tuple(request.stop_sequences or ()),
    )
    return MessagesCall(request.model, prompt, sampling, bool(request.stream))


def read_count(body: dict[str, Any], front_nonces: Rules = FRONT_NONCES) -> CountCall:
    """The request, translated.

    Raises: RequestError naming the field.
    """
    request = validated(CountRequest, body)
    return CountCall(request.model, _prompt(request, body, front_nonces))


def _prompt(request: CountRequest, body: dict[str, Any], front_nonces: Rules) -> Prompt:
    if body.get("mcp_servers"):
        refuse("mcp_servers", "is not supported: this server calls no other servers.")
    if request.thinking is not None:
        want_text(request.thinking.get("type"), "thinking.type")
    _mark(body, "")
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ()))
    last = len(request.messages) - 1
    messages = tuple(
        _message(value, f"messages[{index}]", is_last=index == last) for index, value in enumerate(request.messages)
    )
    prompt = Prompt(
        messages=messages,
        system=cleaned_system(_system(request.system), front_nonces),
        tools=tools,
        tool_choice=_tool_choice(request.tool_choice, tools),
        answer=_answer_schema(request),
    )
    if prompt.answer is not None and prompt.continues_answer:
        refuse(prompt.answer.path.removesuffix(".schema"), "can't go with a last message from the assistant.")
    return prompt


def _answer_schema(request: CountRequest) -> AnswerSchema | None:
    """The schema of the answer, where it stands now or where the beta had it."""
    in_config, path = (request.output_config or {}).get("format"), "output_config.format"
    if in_config is not None and request.output_format is not None:
        refuse("output_format", "is the older name of output_config.format: give one of them.")
    if in_config is None:
        in_config, path = request.output_format, "output_format"
    if in_config is None:
        return None
    given = want_object(in_config, path)
    if given.get("type") != "json_schema":
        refuse(f"{path}.type", 'must be "json_schema".')
    return AnswerSchema(json_text(want_object(given.get("schema"), f"{path}.schema")), f"{path}.schema")


def _check_prefill_only(request: MessagesRequest, prompt: Prompt) -> None:
    """Refuse what can't go with an answer of no tokens, as hosted."""
    if request.stream:
        refuse("max_tokens", "must be at least 1 when stream is true.")
    if prompt.tool_choice.mode in ("any", "tool"):
        refuse("max_tokens", "must be at least 1 when tool_choice demands a call.")
    if request.thinking and request.thinking.get("type") == "enabled":
        refuse("max_tokens", "must be at least 1 when thinking is enabled.")
    if prompt.answer is not None:
        refuse("max_tokens", "must be at least 1 when the answer has a format.")
    last = prompt.messages[-1]
    if last.role == "user" and all(isinstance(part, Text) and not part.text.strip() for part in last.parts):
        refuse(f"{last.path}.content", "must contain non-whitespace text when max_tokens is 0.")


def _system(value: object) -> tuple[Text, ...]:
    if value is None or value in ("", []):
        return ()
    if isinstance(value, str):
        texts = [Text(value, "system")]
    elif isinstance(value, list):
        texts = [_system_block(block, f"system[{index}]") for index, block in enumerate(value)]
    else:
        refuse("system", "must be a string or a list of text blocks.")
    return tuple(texts)


def _system_block(value: object, path: str) -> Text:
    block = want_object(value, path)
    if block.get("type") != "text":
        refuse(f"{path}.type", 'must be "text".')
    return _text(block, path)


def _tool(value: dict[str, Any], path: str) -> Tool:
    kind = value.get("type")
    if kind is not None and kind != "custom":
        refuse(f"{path}.type", f"{str(kind)[:60]!r} is not supported: only custom tools are.")
    name = want_text(value.get("name"), f"{path}.name")
    if not name:
        refuse(f"{path}.name", "must not be empty.")
    return Tool(
        name=name,
        description=optional_text(value, "description", path),
        schema=json_text(want_object(value.get("input_schema"), f"{path}.input_schema")),
        path=path,
        mark=_mark(value, path),
        schema_path=f"{path}.input_schema",
        is_strict=yes_or_no(value, "strict", path),
    )


def _tool_choice(value: dict[str, Any] | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    kind = value.get("type")
    parallel = not yes_or_no(value, "disable_parallel_tool_use", "tool_choice")
    if kind == "auto":
        return ToolChoice("auto", parallel=parallel)
    if kind == "none":
        return ToolChoice("none", parallel=parallel)
    if kind not in ("any", "tool"):
        refuse("tool_choice.type", "must be one of auto, any, tool, none.")
    if not tools:
        refuse("tool_choice", "needs tools.")
    if kind == "any":
        return ToolChoice("any", parallel=parallel)
    name = want_text(value.get("name"), "tool_choice.name")
    if name not in {tool.name for tool in tools}:
        refuse("tool_choice.name", f"there is no tool named {name[:80]!r}.")
    return ToolChoice("tool", name, parallel)


def _message(value: dict[str, Any], path: str, *, is_last: bool) -> Message:
    role = _ROLES.get(want_text(value.get("role"), f"{path}.role"))
    if role is None:
        refuse(f"{path}.role", "must be one of user, assistant, system.")
    content = value.get("content")
    if isinstance(content, str):
        parts: tuple[Part, ...] = (Text(content, f"{path}.content"),) if content else ()
    elif isinstance(content, list):
        parts = tuple(
            part
            for index, block in enumerate(content)
            for part in _parts(want_object(block, f"{path}.content[{index}]"), f"{path}.content[{index}]", role)
        )
    else:
        refuse(f"{path}.content", "must be a string or a list of content blocks.")
    if not content and not (is_last and role == "assistant"):
        refuse(f"{path}.content", "must not be empty (only a last assistant message may be).")
    return Message(role, parts, path)


def _parts(block: dict[str, Any], path: str, role: Role) -> Iterator[Part]:
    """The parts of one content block: one, or none where it says nothing to this model."""
    kind = want_text(block.get("type"), f"{path}.type")
    if kind == "text":
        yield _text(block, path)
    elif kind == "tool_use" and role == "assistant":
        yield ToolUse(
            call_id=want_text(block.get("id"), f"{path}.id"),
            name=want_text(block.get("name"), f"{path}.name"),
            arguments=json_text(want_object(block.get("input"), f"{path}.input")),
            path=path,
            mark=_mark(block, path),
        )
    elif kind == "thinking" and role == "assistant":
        yield Thinking(want_text(block.get("thinking"), f"{path}.thinking"), path)
    elif kind == "tool_result" and role == "user":
        yield ToolResult(
            call_id=want_text(block.get("tool_use_id"), f"{path}.tool_use_id"),
            text=_result_text(block.get("content"), f"{path}.content"),
            path=path,
            is_error=yes_or_no(block, "is_error", path),
            mark=_mark(block, path),
        )
    elif kind in ("document", "search_result") and role == "user":
        yield Text(_document_text(block, path), path, _mark(block, path))
    elif not (kind == "redacted_thinking" and role == "assistant"):
        refuse(f"{path}.type", f"{kind[:60]!r} is not supported in a {role} message: this model takes text only.")


def _text(block: dict[str, Any], path: str) -> Text:
    text = want_text(block.get("text"), f"{path}.text")
    mark = _mark(block, path)
    if not text:
        problem = "text content blocks must be non-empty." if mark is None else _EMPTY_MARKED
        refuse(f"{path}.text", problem)
    return Text(text, path, mark)


_EMPTY_MARKED = "cache_control cannot be set for empty text blocks."


def _result_text(content: object, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, block in enumerate(want_list(content, path)):
        here = f"{path}[{index}]"
        entry = want_object(block, here)
        kind = want_text(entry.get("type"), f"{here}.type")
        mark = _mark(entry, here)
        if kind == "text":
            text = want_text(entry.get("text"), f"{here}.text")
            if mark is not None and not text:
                refuse(f"{here}.text", _EMPTY_MARKED)
            texts.append(text)
        elif kind in ("document", "search_result"):
            texts.append(_document_text(entry, here))
        else:
            refuse(f"{here}.type", f"{kind[:60]!r} is not supported: this model takes text only.")
    return "\n".join(texts)


def _document_text(block: dict[str, Any], path: str) -> str:
    """A document or search result as text: what it is called, where it is from, what it says."""
    heads = [optional_text(block, name, path) for name in ("title", "context")]
    if block["type"] == "search_result":
        heads.append(optional_text(block, "source", path))
        body = _result_text(block.get("content"), f"{path}.content")
    else:
        source = want_object(block.get("source"), f"{path}.source")
        kind = source.get("type")
        if kind == "text":
            body = want_text(source.get("data"), f"{path}.source.data")
        elif kind == "content":
            body = _result_text(source.get("content"), f"{path}.source.content")
        else:
            refuse(f"{path}.source.type", f"{str(kind)[:60]!r} is not supported: only text documents are.")
    return "\n".join([*(head for head in heads if head), body])


def _mark(block: dict[str, Any], path: str) -> CacheMark | None:
    value = block.get("cache_control")
    if value is None:
        return None
    here = f"{path}.cache_control" if path else "cache_control"
    mark = want_object(value, here)
    if mark.get("type") != "ephemeral":
        refuse(f"{here}.type", 'must be "ephemeral".')
    ttl = mark.get("ttl")
    if ttl is not None and ttl not in ("5m", "1h"):
        refuse(f"{here}.ttl", 'must be "5m" or "1h".')
    return CacheMark(ttl)
