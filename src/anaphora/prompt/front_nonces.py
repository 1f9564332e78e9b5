"""Lines that clients put in front of a system prompt and change with every request: known ones are taken out.

Such a line says nothing to a model, and as the first thing of a prompt it would keep all of it from being reused.
Only what is listed here is taken out, only at the very front, and only as long as the operator wants it
(setting `drop_front_nonces`).
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from anaphora.prompt.canonical import Message, Text

Rules = tuple[re.Pattern[str], ...]

BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""A coding agent's line for the host's billing, with a hash of each request."""

FRONT_NONCES: Rules = (BILLING_LINE,)
NOTHING: Rules = ()


def cleaned_system(system: Sequence[Text], rules: Rules) -> tuple[Text, ...]:
    """A system prompt without a nonce in front. A part with nothing else in it goes."""
    if not system:
        return ()
    rest = _without(system[0].text, rules)
    return (*([replace(system[0], text=rest)] if rest else []), *system[1:])


def cleaned_messages(messages: Sequence[Message], rules: Rules) -> tuple[Message, ...]:
    """The same for a conversation whose first message is the system prompt. A message with nothing else in it goes."""
    first = messages[0] if messages else None
    if first is None or first.role != "system" or not first.parts or not isinstance(first.parts[0], Text):
        return tuple(messages)
    rest = _without(first.parts[0].text, rules)
    parts = (*([replace(first.parts[0], text=rest)] if rest else []), *first.parts[1:])
    return (*([replace(first, parts=parts)] if parts else []), *messages[1:])


def _without(text: str, rules: Rules) -> str:
    for rule in rules:
        text = rule.sub("", text)
    return text
