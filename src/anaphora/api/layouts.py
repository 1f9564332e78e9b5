"""A rendered prompt as the contracts' ledgers see it: blocks in prefix order, with the tokens up to each end. Pure.

A block's size is its own tokens and those of the template in front of it, so that sizes add up to the prompt
whichever order the template writes things in. What the template adds behind the last block belongs to none.

    text     <|im_start|>system\\nYou are kind.<|im_end|>\\n<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    sizes    [ system[0]                     )[ messages[0].content         )[ no block's                        )
"""

from collections.abc import Callable, Iterator, Mapping

from anaphora.contract.layout import Block, Kind, Layout, Level, Levels, content_of
from anaphora.prompt.canonical import Message, Part, Prompt, Text, Thinking, Tool, ToolResult, ToolUse
from anaphora.prompt.render import Rendered

TtlOf = Callable[[Tool | Part], str | None]
"""The lifetime of the breakpoint at the end of a part, or None where there is none."""


def layout_of(prompt: Prompt, rendered: Rendered, levels: Levels, ttl_of: TtlOf) -> Layout:
    """The layout of a prompt. A part that can't be found in the text has no tokens of its own.

    Cost: one pass over the parts.
    """
    sizes = _sizes(rendered)
    blocks: list[Block] = []
    end = 0
    for part, level, message, message_index in _placed(prompt):
        end += sizes.pop(part.path, 0)
        if message is not None and part is message.parts[-1]:
            end += sizes.pop(message.path, 0)  # a remembered turn is one piece of text
        blocks.append(
            Block(
                level=level,
                kind=_kind(part),
                content=_content(part),
                end=end,
                path=part.path,
                message_index=message_index,
                role=message.role if message is not None else "",
                ttl=ttl_of(part),
                can_be_marked=not isinstance(part, Thinking) and not (isinstance(part, Text) and not part.text.strip()),
            )
        )
    layout = Layout(tuple(blocks), len(rendered.tokens), levels)
    layout.check()
    return layout


def _placed(prompt: Prompt) -> Iterator[tuple[Tool | Part, Level, Message | None, int]]:
    """Every part in prefix order, with its level, its message and that message's number."""
    for tool in prompt.tools:
        yield tool, "tools", None, -1
    for text in prompt.system:
        yield text, "system", None, -1
    for index, message in enumerate(prompt.messages):
        for part in message.parts:
            yield part, "messages", message, index


def _sizes(rendered: Rendered) -> dict[str, int]:
    """Tokens of each part, with those of the template in front of it."""
    sizes: dict[str, int] = {}
    between = 0
    for span in rendered.token_spans():
        num_tokens = span.stop - span.start
        if span.path is None or span.path == "tool_choice":
            between += num_tokens
        else:
            sizes[span.path] = sizes.get(span.path, 0) + between + num_tokens
            between = 0
    return sizes


def _kind(part: Tool | Part) -> Kind:
    return _KINDS[type(part)]


_KINDS: Mapping[type[Tool | Part], Kind] = {
    Tool: "tool",
    Text: "text",
    ToolUse: "tool_use",
    ToolResult: "tool_result",
    Thinking: "thinking",
}


def _content(part: Tool | Part) -> bytes:
    """What a host would hash: what the part says. Call ids are left out, as models never see them."""
    if isinstance(part, Tool):
        return content_of(part.name, part.description, part.schema)
    if isinstance(part, ToolUse):
        return content_of(part.name, part.arguments)
    if isinstance(part, ToolResult):
        return content_of(part.text, str(part.is_error))
    return content_of(part.text)
