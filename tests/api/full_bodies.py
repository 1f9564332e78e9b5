"""One valid body per endpoint with every field it knows, and ways to spoil them."""

import json
from collections.abc import Iterator
from typing import Any

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
COUNT = "/v1/messages/count_tokens"

Path = tuple[str | int, ...]

_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
_SAMPLING: dict[str, Any] = {
    "model": "tiny",
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "seed": 1,
    "logit_bias": {"5": 1.0},
    "stop": ["zz"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "top_k": 4,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "ignore_eos": True,
    "stop_token_ids": [7],
    "max_tokens": 2,
    "user": "u",
}
_CHAT: dict[str, Any] = {
    **_SAMPLING,
    "messages": [
        {"role": "system", "content": "S"},
        {"role": "developer", "content": [{"type": "text", "text": "D"}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi", "prompt_cache_breakpoint": {"ttl": "5m"}}]},
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "7", "name": "f"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "Hi", "name": "u"},
    ],
    "max_completion_tokens": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "metadata": {"a": "b"},
}
_COMPLETION: dict[str, Any] = {
    **_SAMPLING,
    "prompt": [[65, 66], "ab"],
    "logprobs": 2,
    "echo": True,
    "best_of": 2,
    "suffix": "",
}
_MARK = {"type": "ephemeral", "ttl": "5m"}
_SEARCH = {"type": "search_result", "title": "S", "source": "src", "content": [{"type": "text", "text": "R"}]}
_COUNTED: dict[str, Any] = {
    "model": "tiny",
    "system": [{"type": "text", "text": "S", "cache_control": _MARK}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi", "cache_control": _MARK},
                {
                    "type": "document",
                    "title": "T",
                    "context": "c",
                    "source": {"type": "text", "media_type": "text/plain", "data": "D"},
                },
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "q"}]}},
                _SEARCH,
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "x"}, _SEARCH],
                }
            ],
        },
        {"role": "system", "content": "late"},
        {"role": "user", "content": "go"},
    ],
    "tools": [{"type": "custom", "name": "f", "description": "d", "input_schema": _SCHEMA, "cache_control": _MARK}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "disabled"},
    "cache_control": {"type": "ephemeral"},
}
_MESSAGE: dict[str, Any] = {
    **_COUNTED,
    "max_tokens": 2,
    "stop_sequences": ["zz"],
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "metadata": {"user_id": "u"},
}

FULL: dict[str, dict[str, Any]] = {CHAT: _CHAT, COMPLETIONS: _COMPLETION, MESSAGES: _MESSAGE, COUNT: _COUNTED}


def paths_of(value: object, path: Path = ()) -> Iterator[Path]:
    """The path of every value inside this one."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, entry in inner:
        yield from paths_of(entry, (*path, step))


def value_at(body: Any, path: Path) -> Any:
    for step in path:
        body = body[step]
    return body


def with_value(body: dict[str, Any], path: Path, value: object) -> dict[str, Any]:
    """A copy of the body in which another value stands at `path`."""
    changed: Any = json.loads(json.dumps(body))  # values that stand in several places become several
    value_at(changed, path[:-1])[path[-1]] = value
    return dict(changed)


def spelled(path: Path) -> str:
    """The path as Anthropic spells it, which both can be brought to: `messages.3.content.1`."""
    return ".".join(map(str, path))
