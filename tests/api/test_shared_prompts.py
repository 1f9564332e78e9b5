"""System prompts in files become the tokens that requests open with, in both protocols' form."""

import pytest

from anaphora.api.model_text import renderer_of
from anaphora.api.shared_prompts import opening_of, share_prompts
from anaphora.core.index import common_length
from anaphora.errors import SettingsError
from anaphora.prompt.canonical import Message, Prompt, Text
from anaphora.testing.random_models import random_model


class _Engine:
    """What `share_prompts` needs of an engine."""

    def __init__(self) -> None:
        self.tokenizer = random_model("llama").tokenizer
        self.shared = []

    def share(self, tokens) -> None:
        self.shared.append(tokens)


def conversation(system: str, question: str) -> Prompt:
    return Prompt(
        messages=(Message("user", (Text(question, "messages[0].content"),), "messages[0]"),),
        system=(Text(system, "system"),),
    )


def test_a_file_becomes_the_opening_of_every_conversation_with_that_system_prompt(tmp_path):
    path = tmp_path / "assistant.txt"
    path.write_text("You answer in one word.")
    engine = _Engine()
    (line,) = share_prompts(engine, [path])
    (tokens,) = engine.shared
    assert f"{len(tokens)} tokens" in line
    renderer = renderer_of(engine.tokenizer)
    for question in ("Hello?", "0", "Ztt"):
        rendered = renderer.render(conversation("You answer in one word.", question), lambda message: None)
        assert common_length(rendered.tokens, tokens) == len(tokens)
    other = renderer.render(conversation("You answer in two words.", "Hello?"), lambda message: None)
    assert common_length(other.tokens, tokens) < len(tokens)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SettingsError, match="shared_prompts"):
        share_prompts(_Engine(), [tmp_path / "missing.txt"])


def test_the_opening_ends_where_the_question_begins():
    renderer = renderer_of(random_model("llama").tokenizer)
    short, long = opening_of(renderer, "Be brief."), opening_of(renderer, "Be brief and kind.")
    assert 0 < len(short) < len(long)
