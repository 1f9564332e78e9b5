"""OpenAI Responses requests: wire -> canonical. Pure, but for the earlier items that are handed in.

    previous items + input --> items --read--> Prompt        instructions --> system, of this request alone

Items that belong to one answer of the model (its text, its calls) become one message again, so that a
conversation renders as it was generated. Fields that would change the answer and can't be honoured are refused by
name. Tools that only the host could run are left out: the model is not told of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from anaphora.api.openai import MAX_TOP_LOGPROBS, answer_of, function_of, refuse_begun_json, tool_choice_of
from anaphora.api.wire import WireModel, optional_text, refuse, validated, want_list, want_object, want_text
from anaphora.engine.request import Sampling
from anaphora.prompt.canonical import Message, Part, Prompt, Role, Text, Thinking, Tool, ToolResult, ToolUse
from anaphora.prompt.front_nonces import FRONT_NONCES, Rules, cleaned_messages, cleaned_system

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_LOGPROBS = "message.output_text.logprobs"

_HOSTS_OWN = ("web_search", "file_search", "code_interpreter", "image_generation", "tool_search", "programmatic_tool")
"""Openings of tool types that run at the host; a model here is not offered them."""

_NOT_HERE = {
    "background": "is not supported: answers are sent when they are ready.",
    "conversation": "is not supported; use previous_response_id.",
    "prompt": "is not supported: this server keeps no prompt templates.",
    "moderation": "is not supported.",
    "context_management": "is not supported: nothing is compacted here.",
}


class InputTokensRequest(WireModel):
    """What `input_tokens` reads."""

    model: str
    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None


class ResponsesRequest(InputTokensRequest):
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    stream: bool | None = None
    store: bool | None = None
    prompt_cache_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One input item and where it stands in the request."""

    value: Mapping[str, Any]
    path: str


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """One Responses request, translated."""

    model: str
    prompt: Prompt
    sampling: Sampling
    items: tuple[Item, ...]  # earlier ones first
    num_earlier: int
    is_streamed: bool
    is_stored: bool
    is_prewarm: bool  # nothing is to be generated
    echoed: Mapping[str, Any]  # fields that the answer repeats


def read_responses(
    body: dict[str, Any], earlier: Sequence[Mapping[str, Any]] = (), front_nonces: Rules = FRONT_NONCES
) -> ResponsesCall:
    """The request, translated. `earlier` are the items of the response that it continues.

    Raises: RequestError naming the field.
    """
    request = validated(ResponsesRequest, body)
    for name, problem in _NOT_HERE.items():
        if body.get(name):
            refuse(name, problem)
    prompt, items = _prompt(request, earlier, front_nonces)
    wants_logprobs = _LOGPROBS in (request.include or ())
    if request.top_logprobs is not None and not wants_logprobs:
        refuse("top_logprobs", f"needs {_LOGPROBS!r} in include.")
    options = request.prompt_cache_options or {}
    is_prewarm = options.get("prewarm") is True or body.get("generate") is False
    top_p, top_k = (1.0, 1) if request.top_p == 0 else (1.0 if request.top_p is None else request.top_p, 0)
    sampling = Sampling(
        max_tokens=0 if is_prewarm else request.max_output_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=top_p,
        top_k=top_k,
        num_logprobs=(request.top_logprobs or 0) if wants_logprobs else None,
    )
    return ResponsesCall(
        model=request.model,
        prompt=prompt,
        sampling=sampling,
        items=items,
        num_earlier=len(earlier),
        is_streamed=bool(request.stream),
        is_stored=request.store is not False,
        is_prewarm=is_prewarm,
        echoed=_echoed(request, body),
    )


def read_input_tokens(
    body: dict[str, Any], earlier: Sequence[Mapping[str, Any]] = (), front_nonces: Rules = FRONT_NONCES
) -> tuple[str, Prompt]:
    """The model and prompt of a request to count.

    Raises: RequestError naming the field.
    """
    request = validated(InputTokensRequest, body)
    return request.model, _prompt(request, earlier, front_nonces)[0]


def marked_parts(items: Sequence[Item]) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Content parts that may carry a breakpoint: the part, its own path, and the path of its block."""
    for item in items:
        is_output = item.value.get("type") == "function_call_output"
        name = "output" if is_output else "content"
        content = item.value.get(name)
        for number, part in enumerate(content if isinstance(content, list) else ()):
            path = f"{item.path}.{name}[{number}]"
            yield part, path, f"{item.path}.output" if is_output else path


def _prompt(
    request: InputTokensRequest, earlier: Sequence[Mapping[str, Any]], front_nonces: Rules
) -> tuple[Prompt, tuple[Item, ...]]:
    output = (request.text or {}).get("format")
    answer = answer_of(None if output is None else want_object(output, "text.format"), "text.format")
    items = (*(Item(value, f"previous[{index}]") for index, value in enumerate(earlier)), *_items(request.input))
    messages = _messages(items)
    if not messages and not request.instructions:
        refuse("input", "must not be empty.")
    tools = tuple(_tools(request.tools or []))
    system = cleaned_system((Text(request.instructions, "instructions"),) if request.instructions else (), front_nonces)
    messages = messages if request.instructions else cleaned_messages(messages, front_nonces)
    choice = tool_choice_of(request.tool_choice, tools, parallel=request.parallel_tool_calls is not False, nested=False)
    prompt = Prompt(messages=messages, system=system, tools=tools, tool_choice=choice, answer=answer)
    refuse_begun_json(prompt, "text.format")
    return prompt, items


def _items(value: object) -> Iterator[Item]:
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield Item({"type": "message", "role": "user", "content": value}, "input")
        return
    for index, item in enumerate(want_list(value, "input")):
        yield Item(want_object(item, f"input[{index}]"), f"input[{index}]")


def _messages(items: Sequence[Item]) -> tuple[Message, ...]:
    """Messages, with neighbouring items of one answer put together."""
    messages: list[Message] = []
    for item in items:
        role, parts = _read(item)
        if role == "assistant" and messages and messages[-1].role == "assistant":
            messages[-1] = Message(role, (*messages[-1].parts, *parts), messages[-1].path)
        elif parts:
            messages.append(Message(role, parts, item.path))
    return tuple(messages)


def _read(item: Item) -> tuple[Role, tuple[Part, ...]]:
    """Whose item this is, and its parts: none for what says nothing to this model."""
    value, path = item.value, item.path
    kind = want_text(value.get("type") or "message", f"{path}.type")
    if kind == "message":
        role = _ROLES.get(want_text(value.get("role"), f"{path}.role"))
        if role is None:
            refuse(f"{path}.role", "must be one of user, assistant, system, developer.")
        return role, _texts(value.get("content"), f"{path}.content")
    if kind == "function_call":
        call = ToolUse(
            call_id=want_text(value.get("call_id"), f"{path}.call_id"),
            name=want_text(value.get("name"), f"{path}.name"),
            arguments=want_text(value.get("arguments"), f"{path}.arguments"),
            path=path,
        )
        return "assistant", (call,)
    if kind == "function_call_output":
        texts = _texts(value.get("output"), f"{path}.output")
        result = ToolResult(
            call_id=want_text(value.get("call_id"), f"{path}.call_id"),
            text="\n".join(text.text for text in texts),
            path=f"{path}.output",
            name=optional_text(value, "name", path),
        )
        return "tool", (result,)
    if kind == "reasoning":
        return "assistant", tuple(_thoughts(value, path))
    refuse(f"{path}.type", f"{kind[:40]!r} is not supported: this model takes text, calls and their outputs.")


def _texts(content: object, path: str) -> tuple[Text, ...]:
    if isinstance(content, str):
        return (Text(content, path),)
    if not isinstance(content, list):
        refuse(path, "must be a string or a list of content parts.")
    return tuple(_text_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _text_part(value: object, path: str) -> Text:
    part = want_object(value, path)
    kind = want_text(part.get("type"), f"{path}.type")
    if kind == "refusal":
        return Text(want_text(part.get("refusal"), f"{path}.refusal"), path)
    if kind not in ("input_text", "output_text", "text"):
        refuse(f"{path}.type", f"{kind[:40]!r} is not supported: this model takes text only.")
    return Text(want_text(part.get("text"), f"{path}.text"), path)


def _thoughts(value: Mapping[str, Any], path: str) -> Iterator[Thinking]:
    """Reasoning that is readable. Encrypted reasoning says nothing to another model."""
    for index, part in enumerate(want_list(value.get("content") or [], f"{path}.content")):
        here = f"{path}.content[{index}]"
        yield Thinking(want_text(want_object(part, here).get("text"), f"{here}.text"), here)


def _tools(values: Sequence[dict[str, Any]]) -> Iterator[Tool]:
    for index, value in enumerate(values):
        path = f"tools[{index}]"
        kind = want_text(value.get("type"), f"{path}.type")
        if kind == "function":
            yield function_of(value, path)
        elif kind == "namespace":
            for number, tool in enumerate(want_list(value.get("tools"), f"{path}.tools")):
                yield function_of(want_object(tool, f"{path}.tools[{number}]"), f"{path}.tools[{number}]")
        elif not kind.startswith(_HOSTS_OWN):
            refuse(f"{path}.type", f"{kind[:40]!r} is not supported: only functions are.")


def _echoed(request: ResponsesRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    """What the answer repeats of the request, defaults filled in."""
    tools = [
        {"strict": True, "parameters": None, **tool} if tool.get("type") == "function" else tool
        for tool in request.tools or ()
    ]
    options = request.prompt_cache_options or {}
    names = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user", "max_tool_calls")
    return {
        "instructions": request.instructions,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": tools,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "max_output_tokens": request.max_output_tokens,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_options": {
            "mode": options.get("mode") or "implicit",
            "ttl": options.get("ttl") or "30m",
            **{name: options[name] for name in ("comparison_response_id",) if options.get(name) is not None},
        },
        "reasoning": {"effort": None, "summary": None, **(request.reasoning or {})},
        "text": {"format": {"type": "text"}, **(request.text or {})},
        "top_logprobs": request.top_logprobs or 0,
        "truncation": body.get("truncation") or "disabled",
        **{name: body[name] for name in names if body.get(name) is not None},
    }
