"""What a model's chat template can do, found out by asking it, and how a conversation is fitted to it.

Templates differ in what they refuse: some have no system role, some want user and assistant to alternate,
most do not know tools. `probe` renders small conversations once at load and notes what happened, so that
how a prompt is fitted depends on the template alone and never on the length of the conversation: a choice
that flipped between two turns would change the prefix.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anaphora.prompt.tool_calls import CallStyle

TemplateMessage = Mapping[str, Any]
"""One message in the form chat templates take: role, content, and where there are any tool_calls."""


class TemplateRefused(ValueError):
    """The template can't render this conversation. The message is the template's own."""


class ChatTemplate(Protocol):
    """Render messages to text as the model was trained to see them.

    Raises: TemplateRefused.
    """

    def __call__(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        opens_answer: bool,
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template does. Facts about one template, the same for every request."""

    takes_system: bool  # a system message may open the conversation
    takes_late_system: bool  # a system message may stand further back
    takes_repeated_roles: bool  # two user messages may follow each other
    knows_tools: bool  # tools, calls and results are rendered by the template itself
    wants_short_ids: bool  # call ids must have nine letters or digits
    call_style: CallStyle  # how the model writes calls


PLAIN_TRAITS = TemplateTraits(
    takes_system=True,
    takes_late_system=True,
    takes_repeated_roles=True,
    knows_tools=False,
    wants_short_ids=False,
    call_style="hermes",
)

PLAIN_STOPS = ("\n\nUser:", "\n\nSystem:")
"""Where an answer ends under the plain rendering: a base model goes on with the next speaker."""

_NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


def plain_template(
    messages: Sequence[TemplateMessage], *, tools: Sequence[Mapping[str, Any]] | None, opens_answer: bool
) -> str:
    """The rendering for models without a chat template: `Speaker: text`, an empty line between speakers.

    A space follows the colon unless the text brings its own, so that an answer generated after
    `Assistant:` is rendered again byte for byte.
    """
    assert tools is None, "the plain rendering gets tools as system text"
    turns = [f"{_NAMES[message['role']]}:{_spaced(message['content'])}" for message in messages]
    return "\n\n".join([*turns, "Assistant:"] if opens_answer else turns)


def probe(template: ChatTemplate) -> TemplateTraits:
    """Find out what a template does by rendering small conversations with it."""
    user, answer, system = _said("user", "a"), _said("assistant", "b"), _said("system", "word")
    knows_tools, wants_short_ids, style = _probe_tools(template)
    return TemplateTraits(
        takes_system=_shows(template, [system, user], "word"),
        takes_late_system=_shows(template, [user, answer, system, user], "word"),
        takes_repeated_roles=_shows(template, [user, _said("user", "word")], "word"),
        knows_tools=knows_tools,
        wants_short_ids=wants_short_ids,
        call_style=style,
    )


def _spaced(text: str) -> str:
    return text if not text or text[0].isspace() else f" {text}"


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _shows(template: ChatTemplate, messages: list[dict[str, Any]], word: str) -> bool:
    try:
        return word in template(messages, tools=None, opens_answer=True)
    except TemplateRefused:
        return False


def _probe_tools(template: ChatTemplate) -> tuple[bool, bool, CallStyle]:
    for call_id, is_short in (("call_0123456789abcdef", False), ("abcdefghi", True)):
        text = _render_tool_round(template, call_id)
        if text is not None:
            knows = all(word in text for word in ("probe_tool", "probe_key", "probe_value", "probe_result"))
            return knows, is_short and knows, _style_of(text) if knows else "hermes"
    return False, False, "hermes"


def _render_tool_round(template: ChatTemplate, call_id: str) -> str | None:
    parameters = {"type": "object", "properties": {"probe_key": {"type": "string"}}}
    tool = {
        "type": "function",
        "function": {"name": "probe_tool", "description": "d", "parameters": parameters},
    }
    call = {"name": "probe_tool", "arguments": {"probe_key": "probe_value"}}
    messages = [
        _said("user", "a"),
        {**_said("assistant", ""), "tool_calls": [{"id": call_id, "type": "function", "function": call}]},
        {**_said("tool", "probe_result"), "tool_call_id": call_id, "name": "probe_tool"},
    ]
    try:
        return template(messages, tools=[tool], opens_answer=True)
    except TemplateRefused:
        return None


def _style_of(text: str) -> CallStyle:
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<tool_call>" in text:
        return "hermes"
    return "llama" if json.dumps("parameters") + ": {" + json.dumps("probe_key") in text else "hermes"
