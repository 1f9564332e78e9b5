"""Request bodies as text: what a model would read, in the order in which it would read it.

    tools | system | messages

This is no model's template. It keeps what caching depends on: equal openings of bodies give equal openings of text.
"""

import json
from typing import Any


def render_body(body: dict[str, Any]) -> str:
    """Write a body of the OpenAI (Chat Completions, Responses, Completions) or Anthropic API as text.

    Raises ValueError, with the reason, for what is none of these.
    """
    pieces = [f"<tool>{_json(tool)}\n" for tool in _list(body, "tools")]
    for name in ("system", "instructions"):
        if body.get(name):
            pieces.append(f"<system>{_content(body[name])}\n")
    if "messages" in body:
        pieces += [_message(message) for message in _list(body, "messages")]
    elif "input" in body:
        turns = body["input"]
        pieces += [f"<user>{turns}\n"] if isinstance(turns, str) else [_message(one) for one in _list(body, "input")]
    elif "prompt" in body:
        pieces.append(_content(body["prompt"]))
    else:
        raise ValueError("a body without messages, input or prompt")
    text = "".join(pieces)
    if not text:
        raise ValueError("a body without a prompt")
    return text


def _list(body: dict[str, Any], name: str) -> list[Any]:
    value = body.get(name) or []
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")
    return value


def _message(message: Any) -> str:
    if not isinstance(message, dict):
        raise ValueError("a message is not an object")
    extra = {key: value for key, value in message.items() if key not in ("role", "content")}
    tail = _json(extra) if extra else ""
    return f"<{message.get('role', message.get('type', ''))}>{_content(message.get('content'))}{tail}\n"


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(one, dict) and set(one) >= {"text"} for one in content):
        return "".join(str(one["text"]) for one in content)
    return _json(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
