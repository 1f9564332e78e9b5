"""Conversations made of real texts, the same for the same seed. Pure.

    agent       tools, a policy, and a recorded conversation that grows answer by answer and tool result by tool result
    chat        one system prompt for all; each talk keeps the answers that the server gave
    document    many questions about one long document
    few-shot    worked examples of some subjects, and one more question
    no-sharing  no two prompts open alike
    mixed       all of them, drawn at random

Every text opens with a salt. Rounds with different salts share nothing, so that each begins with a cold cache;
servers that are compared get the same salt. What follows the salt depends on the seed alone.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from anaphora.bench.load.calls import Conversation, Message, Tool, Turn
from anaphora.bench.load.material import Desk, Material

NUM_SUBJECTS = 5
"""Subjects that few-shot prompts are about: some prefixes are warm while others are not yet."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a workload is written for."""

    material: Material
    salt: str
    seed: int
    chars_per_token: float
    max_tokens: int
    prefix_tokens: int | None = None  # length of what prompts share; None: the workload's own
    own_tokens: int | None = None  # length of what they don't; None: as long as the texts are
    document: str | None = None  # the document to ask about; None: one made of the material

    def chars(self, num_tokens: int) -> int:
        return round(num_tokens * self.chars_per_token)

    def cut(self, text: str, num_tokens: int | None) -> str:
        """Shorten a text to about so many tokens, at a word's end."""
        if num_tokens is None or len(text) <= self.chars(num_tokens):
            return text
        return text[: self.chars(num_tokens)].rpartition(" ")[0] or text[: self.chars(num_tokens)]

    def random(self) -> random.Random:
        return random.Random(self.seed)


Workload = Callable[[Brief], Iterator[Conversation]]
"""Answers conversations without end."""


def take(conversations: Iterator[Conversation], num_requests: int) -> tuple[Conversation, ...]:
    """Give the first conversations that make up `num_requests` turns; the last one may lose some of its own."""
    taken: list[Conversation] = []
    num_left = num_requests
    while num_left > 0:
        one = next(conversations)
        turns = one.turns[:num_left]
        taken.append(Conversation(one.kind, one.system, turns, one.tools, one.keeps_answers))
        num_left -= len(turns)
    return tuple(taken)


def agent(brief: Brief) -> Iterator[Conversation]:
    desk = _fitting(brief, brief.material.airline)
    talks = list(desk.conversations)
    brief.random().shuffle(talks)
    for number in count(1):
        talk = talks[number % len(talks)]
        first = {**talk[0], "content": f"Ticket {number}. {talk[0]['content']}"}
        turns = tuple(_recorded_turns((first, *talk[1:]), brief.max_tokens))
        yield Conversation("agent", salted(brief, desk.policy), turns, desk.tools)


def _fitting(brief: Brief, desk: Desk) -> Desk:
    """A desk whose tools and policy have about the length that was asked for, half and half."""
    half = None if brief.prefix_tokens is None else brief.prefix_tokens // 2
    tools = list(desk.tools)
    if half is not None:
        tools = _within(desk.tools, brief.chars(half)) or [min(desk.tools, key=_length)]
    # Templates may write tools in front of the system text.
    tools[0] = {**tools[0], "description": f"{tools[0]['description']} ({brief.salt})"}
    return Desk(brief.cut(desk.policy, half), tuple(tools), desk.conversations)


def _within(tools: Sequence[Tool], num_chars: int) -> list[Tool]:
    """The tools, in their order, that fit into so many characters together."""
    chosen: list[Tool] = []
    for tool in tools:
        if _length(tool) <= num_chars:
            chosen.append(tool)
            num_chars -= _length(tool)
    return chosen


def _length(tool: Tool) -> int:
    return len(json.dumps(tool))


def _recorded_turns(talk: tuple[Message, ...], max_tokens: int) -> Iterator[Turn]:
    """A turn before each recorded answer, which the turn after it brings along."""
    begin = 0
    for index, message in enumerate(talk):
        if message["role"] == "assistant":
            yield Turn(talk[begin:index], max_tokens)
            begin = index


def chat(brief: Brief) -> Iterator[Conversation]:
    system = salted(brief, brief.cut(brief.material.retail.policy, brief.prefix_tokens))
    talks = list(brief.material.dialogues)
    brief.random().shuffle(talks)
    for number in count():
        said = (f"({number + 1}) {talks[number % len(talks)][0]}", *talks[number % len(talks)][1:])
        turns = tuple(Turn((user(brief.cut(text, brief.own_tokens)),), brief.max_tokens) for text in said)
        yield Conversation("chat", system, turns, keeps_answers=True)


def document(brief: Brief) -> Iterator[Conversation]:
    text = brief.document or "\n\n".join(brief.material.paragraphs())
    system = salted(brief, "Answer from this document.\n\n" + brief.cut(text, brief.prefix_tokens or 4000))
    for question in _questions(brief, None):
        yield one_question("document", system, question, brief.max_tokens)


def few_shot(brief: Brief) -> Iterator[Conversation]:
    draw = brief.random()
    subjects = draw.sample(sorted(brief.material.examples), NUM_SUBJECTS)
    asking = {subject: _questions(brief, subject) for subject in subjects}
    while True:
        subject = draw.choice(subjects)
        system = salted(brief, brief.cut(brief.material.examples[subject], brief.prefix_tokens))
        yield one_question("few-shot", system, next(asking[subject]), brief.max_tokens)


def no_sharing(brief: Brief) -> Iterator[Conversation]:
    draw = brief.random()
    for number, question in enumerate(_questions(brief, None)):
        opening = hashlib.sha256(f"{brief.salt} {number}".encode()).hexdigest()[:12]
        text = f"{opening}\n{long_text(brief, draw, brief.prefix_tokens or 600)}"
        yield one_question("no-sharing", text, question, brief.max_tokens)


def mixed(brief: Brief) -> Iterator[Conversation]:
    draw = brief.random()
    sources = [workload(brief) for workload in (agent, chat, document, few_shot, no_sharing)]
    while True:
        yield next(draw.choice(sources))


WORKLOADS: Mapping[str, Workload] = {
    "agent": agent,
    "chat": chat,
    "document": document,
    "few-shot": few_shot,
    "no-sharing": no_sharing,
    "mixed": mixed,
}


def salted(brief: Brief, text: str) -> str:
    return f"{brief.salt}\n{text}"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def one_question(kind: str, system: str, question: str, max_tokens: int) -> Conversation:
    return Conversation(kind, system, (Turn((user(question),), max_tokens),))


def long_text(brief: Brief, draw: random.Random, num_tokens: int) -> str:
    """Write about so many tokens of real prose, in an order of paragraphs drawn at random."""
    paragraphs = brief.material.paragraphs()
    text = ""
    while len(text) < brief.chars(num_tokens):
        draw.shuffle(paragraphs)
        text += "\n\n".join(paragraphs) + "\n\n"
    return brief.cut(text, num_tokens)


def _questions(brief: Brief, subject: str | None) -> Iterator[str]:
    """Questions in an order drawn at random, numbered, so that none comes twice."""
    found = brief.material.questions_beside(subject)
    brief.random().shuffle(found)
    for number in count():
        yield brief.cut(f"{number + 1}. {found[number % len(found)]}", brief.own_tokens)
