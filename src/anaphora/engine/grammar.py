"""Which tokens may come next, so that an answer is a sentence of a grammar.

    grammar (Lark text) --compile, once--> prototype --copy, one a sequence--> Matcher
                                                        allowed tokens ^  |  took(token)
                                                                       └──┘

The grammars themselves are the `llguidance` package's: its dialect of Lark, with JSON schemas inline (`%json {...}`).
`prompt/answer_grammar.py` writes those that the HTTP APIs ask for. A grammar's text may come from anybody: what can't
be compiled, or takes too much to follow, is the caller's mistake, told by RequestError.
Source: constrained decoding with a lexer and an Earley parser over a trie of the vocabulary, as in Guidance
(github.com/guidance-ai/llguidance); the masks are its work, when an answer ends is ours.
"""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from anaphora.engine.detokenise import TokenTexts
from anaphora.engine.request import Sampling
from anaphora.errors import RequestError

MAX_COMPILED = 128
"""Grammars that stay compiled; the least lately used go first."""
MAX_JOINED_PATTERNS = 8
MAX_GRAMMAR_CHARACTERS = 4 * 2**20
"""Of one grammar: about the longest that the library takes."""

Tokens = NDArray[np.int64]

_NUM_NEIGHBOURS = 8
_LEAST_FORCED = 2  # bytes: of one there is nothing to cut

_LIMITS = LLParserLimits(verbose_errors=False)


class Matcher:
    """One sequence's place in its grammar. Not for several threads at once."""

    def __init__(self, prototype: LLMatcher, tokenizer: LLTokenizer, *, vocab_size: int, end_ids: Tokens) -> None:
        self._matcher = prototype.deep_copy()
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._written: list[int] = []  # the newest tokens
        self._forced: deque[int] = deque()  # tokens that have to follow, one after the other
        self._end_ids = end_ids  # [num_ends]
        self.is_finished = False  # True: nothing may follow, the answer is complete
        self.allowed: Tokens = end_ids  # [num_allowed], ascending; the model's end tokens where the answer may end
        self._look()
        if not len(self.allowed):
            raise RequestError("grammar: it allows no answer but an empty one.", field="grammar")

    def took(self, token_id: int) -> None:
        """Go on by a token that was allowed. Raises: RequestError where following the grammar takes too much."""
        if token_id in self._end_ids:
            self.is_finished = True
            return
        if not self._matcher.consume_token(token_id):
            raise _failed(self._matcher)
        self._written = [*self._written[-_NUM_NEIGHBOURS:], token_id]
        if self._matcher.is_stopped():
            self.is_finished = True
            self.allowed = self._end_ids
        else:
            self._look()

    def recut(self, token_id: int) -> int:
        """The token to take where this allowed one was chosen: of the same text, cut as the vocabulary would cut it.

        A token may end free text and begin what has to follow, such as a quote and a bracket. The text is not changed.
        """
        if len(self.allowed) == 1 or token_id in self._end_ids:
            return token_id
        if not self._matcher.consume_token(token_id):
            raise _failed(self._matcher)
        ahead = b"" if self._matcher.is_stopped() else self._matcher.compute_ff_bytes()
        if not self._matcher.rollback(1):
            raise _failed(self._matcher)
        if not ahead:
            return token_id
        text = self._tokenizer.decode_bytes([token_id]) + ahead
        tokens, _ = self._tokenizer.tokenize_partial(text, recent_tokens=self._written)
        if not tokens or tokens[0] == token_id or self._matcher.validate_tokens(tokens) < len(tokens):
            return token_id
        self._forced.extend(tokens[1:])
        return tokens[0]

    def _look(self) -> None:
        if not self._forced and not self._matcher.is_accepting():
            self._forced.extend(self._tokens_ahead())
        if self._forced:
            self.allowed = np.asarray([self._forced.popleft()], dtype=np.int64)
            return
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: self._vocab_size])
        if self._matcher.is_error():
            raise _failed(self._matcher)
        if self._matcher.is_accepting():
            self.is_finished = not len(allowed)
            allowed = np.union1d(allowed, self._end_ids)
        elif not len(allowed):
            raise RequestError("grammar: no token of this model's can go on from here.", field="grammar")
        self.allowed = allowed

    def _tokens_ahead(self) -> list[int]:
        """The tokens of text that has no alternative, as the vocabulary itself would cut it.

        The grammar alone would take any cut, and the model might choose another; then the text, when it comes back in a
        later prompt, would be other tokens than those in the cache.
        """
        forced = self._matcher.compute_ff_bytes()
        if len(forced) < _LEAST_FORCED:
            return []
        tokens, _ = self._tokenizer.tokenize_partial(forced, recent_tokens=self._written)
        return tokens if self._matcher.validate_tokens(tokens) == len(tokens) else []


class Grammars:
    """Compiled grammars of one vocabulary. Safe to use from several threads."""

    def __init__(
        self, texts: TokenTexts, encode: Callable[[str], Sequence[int]], *, vocab_size: int, end_ids: frozenset[int]
    ) -> None:
        self._texts = texts
        self._encode = encode
        self._vocab_size = vocab_size
        self._ends = end_ids
        self._end_ids = np.asarray(sorted(end_ids), dtype=np.int64)
        self._tokenizer: LLTokenizer | None = None  # made when first asked for
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, grammar: str) -> None:
        """Compile a grammar, or find it compiled.

        Raises: RequestError saying why it can't be.
        Cost: the first one a vocabulary, some 0.3 s; a new one, milliseconds; a known one, none.
        """
        self._prototype(grammar)

    def matcher(self, sampling: Sampling) -> Matcher | None:
        """Start a sentence of a request's grammar; None if it has none. Raises: RequestError."""
        if sampling.grammar is None:
            return None
        end_ids = self._end_ids[:0] if sampling.ignore_end else self._end_ids
        prototype = self._prototype(sampling.grammar)
        assert self._tokenizer is not None
        return Matcher(prototype, self._tokenizer, vocab_size=self._vocab_size, end_ids=end_ids)

    def __len__(self) -> int:
        return len(self._compiled)

    def _prototype(self, grammar: str) -> LLMatcher:
        if len(grammar) > MAX_GRAMMAR_CHARACTERS:
            raise RequestError(
                f"grammar: has {len(grammar)} characters; {MAX_GRAMMAR_CHARACTERS} are the most.", field="grammar"
            )
        with self._lock:
            if (found := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return found
            if self._tokenizer is None:
                vocabulary = _Vocabulary(self._texts, self._encode, self._vocab_size, self._ends)
                self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=self._vocab_size)
            prototype = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
            if prototype.is_error():
                raise _failed(prototype)
            self._compiled[grammar] = prototype
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return prototype


class _Vocabulary:
    """What the library wants to know of a vocabulary.

    It gets an end token of our own behind the last. The model's own may end an answer and do nothing else, so their
    text is no text to a grammar.
    """

    def __init__(
        self, texts: TokenTexts, encode: Callable[[str], Sequence[int]], vocab_size: int, ends: frozenset[int]
    ) -> None:
        self._encode = encode
        self.eos_token_id = vocab_size
        self.bos_token_id = None
        self.tokens = [*(b"" if one in ends else texts.bytes_of(one) for one in range(vocab_size)), b"<end>"]
        special = {one for one in texts.special_ids if one < vocab_size and one not in ends}
        self.special_token_ids = sorted(special | {vocab_size})

    def __call__(self, text: str) -> list[int]:
        return list(self._encode(text))


def schema_problem(schema: str) -> str | None:
    """Why a JSON schema can't be followed; None: it can be. Cost: milliseconds."""
    if is_heavy(json.loads(schema)):
        return f"more than {MAX_JOINED_PATTERNS} patterns together with allOf, or a reference beside one, are too much"
    try:
        grammar = LLMatcher.grammar_from_json_schema(schema)
    except ValueError as error:
        return str(error)
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    return _in_one_line(messages[0]) if is_wrong else None


def is_heavy(schema: Any) -> bool:
    """Whether so many patterns may have to hold at once that finding out whether any text does takes too long.

    The library bounds all its work but this: 20 joined patterns keep it busy for minutes.
    """
    num_patterns, joins, waiting = 0, False, [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            patterns = value.get("patternProperties")
            num_patterns += ("pattern" in value) + (len(patterns) if isinstance(patterns, dict) else 0)
            joins |= "allOf" in value or ("$ref" in value and "pattern" in value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return joins and num_patterns > MAX_JOINED_PATTERNS


def _failed(matcher: LLMatcher) -> RequestError:
    return RequestError(f"grammar: {_in_one_line(matcher.get_error())}", field="grammar")


def _in_one_line(text: str) -> str:
    """The library's error as part of a sentence."""
    told = " ".join(text.replace("<non-verbose/>", "").split())
    return "nothing satisfies it" if told == "NoExtensionBias" else told[:300]
