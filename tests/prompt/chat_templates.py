"""Chat templates of the kinds in use, short forms, and a renderer for them with the filters templates expect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anaphora.prompt.render import Encoded, Renderer
from anaphora.prompt.template import TemplateRefused

# As SmolLM2's: any role, no tools, a default system message.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a bot.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# As Qwen's: tools in the system message, calls and results between tags.
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n\n' }}{% endif %}{{ '<tools>' }}"
    "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}"
    "{% elif messages[0]['role'] == 'system' %}"
    "{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{% elif message.role != 'system' or not loop.first %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    '{% for call in message.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + call.function.name + '
    "'\", \"arguments\": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# As Qwen's thinking models, but for every turn: kept reasoning stands in front of the answer it led to.
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ message.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)

# As Gemma's: no system role, strict alternation, text stripped.
STRICT = (
    "{{ '<bos>' }}{% for message in messages %}{% if message.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}"
    "{% endif %}{{ '<turn>' + message.role + '\n' + message.content | trim + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"
)


class JinjaTemplate:
    """A chat template from its text."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(source)

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None, opens_answer: bool
    ) -> str:
        try:
            return self._template.render(messages=messages, tools=tools, add_generation_prompt=opens_answer)
        except TemplateError as error:
            raise TemplateRefused(str(error)) from error


def characters(text: str, *, opens_text: bool) -> Encoded:
    """One token per character: the token's place is the character's place."""
    places = np.arange(len(text), dtype=np.int64)
    tokens = np.array([ord(character) for character in text], dtype=np.int32)
    return Encoded(tokens=tokens, offsets=np.stack([places, places + 1], axis=1))


def renderer(source: str | None) -> Renderer:
    return Renderer(None if source is None else JinjaTemplate(source), characters)


def _refuse(message: str) -> None:
    raise TemplateError(message)
