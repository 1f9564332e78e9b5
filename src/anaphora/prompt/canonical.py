"""The neutral form of a request's content: what both wire protocols translate into and out of.

    Prompt
    ├── tools      Tool, Tool, ...                    tools[2]
    ├── system     Text, Text, ...                    system[0]
    └── messages   Message(role, parts), ...          messages[3]
                     └── Text | Thinking | ToolUse | ToolResult      messages[3].content[1]

Order is kept as sent: a system message in the middle of a conversation stays there, because moving it would
change the prefix of every later turn. Every part knows its path in the request, so that an error, a
cache mark or a miss can name it. Cache marks are carried here and read by the accounting.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class CacheMark:
    """A breakpoint asked for by the client, with the lifetime it asked for."""

    ttl: str | None = None  # "5m", "1h", "30m", "12h"; None: the API's own default


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    path: str
    mark: CacheMark | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning that an earlier answer carried apart from its text."""

    text: str
    path: str
    mark: CacheMark | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool in an earlier answer. `arguments` is JSON text, key order as the client sent it."""

    call_id: str
    name: str
    arguments: str
    path: str
    mark: CacheMark | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered. `name` is empty where the protocol does not repeat the tool's name."""

    call_id: str
    text: str
    path: str
    name: str = ""
    is_error: bool = False
    mark: CacheMark | None = None


Part = Text | Thinking | ToolUse | ToolResult


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model may call. `schema` is JSON text, key order as the client sent it."""

    name: str
    description: str
    schema: str
    path: str
    mark: CacheMark | None = None
    schema_path: str = ""
    is_strict: bool = False  # True: calls keep to the whole schema, or the request is refused


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether and what the model should call. `tool`: exactly `name`; `any`: some tool."""

    mode: Literal["auto", "none", "any", "tool"] = "auto"
    name: str | None = None
    parallel: bool = True  # False: at most one call in an answer
    allowed: tuple[str, ...] | None = None  # auto, any: the tools to choose from; None: all


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """The JSON schema that the answer's text has to satisfy, as JSON text. `path` names it in the request."""

    schema: str
    path: str
    is_strict: bool = True  # False: keywords that can't be enforced are passed over


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    parts: tuple[Part, ...]
    path: str

    @property
    def text(self) -> str:
        """The message's text parts, put together; calls and results are left out."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Prompt:
    messages: tuple[Message, ...]
    system: tuple[Text, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    answer: AnswerSchema | None = None

    @property
    def parts(self) -> Iterator[Tool | Part]:
        """Every part in prefix order: tools, system, messages."""
        yield from self.tools
        yield from self.system
        for message in self.messages:
            yield from message.parts

    @property
    def continues_answer(self) -> bool:
        """Whether the last message is the beginning of the answer, to be continued by the model."""
        return bool(self.messages) and self.messages[-1].role == "assistant" and not self.ends_with_call

    @property
    def ends_with_call(self) -> bool:
        """Whether the last message is an assistant's that calls a tool."""
        return bool(self.messages) and any(isinstance(part, ToolUse) for part in self.messages[-1].parts)
