"""Goal: an answer under a grammar is a sentence of it, or is said to be cut; and nothing else about it changes.
Method: tiny random models, which left alone write no JSON, with schemas from hypothesis and every setting of sampling;
a check of our own says whether a value fits its schema.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engine_world import ByHand, check_is_idle, small_engine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from anaphora.engine import grammar as grammar_module
from anaphora.engine.detokenise import TokenTexts
from anaphora.engine.engine import Engine
from anaphora.engine.grammar import Grammars, is_heavy, schema_problem
from anaphora.engine.request import Generation, Sampling
from anaphora.errors import RequestError

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "json_allowed_escapes": '"\\'}
PROMPT = [5, 6, 7, 8]
LETTERS = 'start: /[a-y]{3,}/ "z"'  # at least three letters, then z ends it
WORDS = "start: /[a-z]{3,}/"  # may end after three letters, and never has to


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with small_engine("llama") as small:
        yield small


def json_grammar(schema: Any) -> str:
    return f"start: %json {json.dumps({**schema, 'x-guidance': SPACING})}"


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value satisfies a schema of the kinds made below."""
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            properties = schema["properties"]
            return (
                isinstance(value, dict)
                and set(schema["required"]) <= set(value) <= set(properties)
                and all(fits(one, properties[key]) for key, one in value.items())
            )
        case "array":
            is_long_enough = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return is_long_enough and all(fits(one, schema["items"]) for one in value)
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return isinstance(value, bool)
    return value is None


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.tuples(st.integers(-99, 99), st.integers(0, 500))
    return st.one_of(
        st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 5)),
        bounds.map(lambda one: {"type": "integer", "minimum": one[0], "maximum": one[0] + one[1]}),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
        st.lists(st.sampled_from(["a", "bc", 'é"', 3, None, True]), min_size=1, max_size=3, unique=True).map(
            lambda values: {"enum": values}
        ),
    )


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def build(properties: dict[str, Any], num_required: int) -> dict[str, Any]:
        required = list(properties)[:num_required]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.builds(
        build, st.dictionaries(st.sampled_from(["a", "b c", "ü", '"']), inner, max_size=3), st.integers(0, 3)
    )


def arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        inner,
        st.integers(0, 2),
        st.integers(0, 1),
    )


SCHEMAS = objects(st.recursive(leaves(), lambda inner: objects(inner) | arrays(inner), max_leaves=3))
SAMPLINGS = st.builds(
    Sampling,
    max_tokens=st.just(300),
    temperature=st.sampled_from([0.0, 0.7, 5.0]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.4]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 9),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, sampling=SAMPLINGS)
def test_every_finished_answer_fits_its_schema(engine: Engine, schema: dict[str, Any], sampling: Sampling) -> None:
    generation = engine.generate(PROMPT, sampling, grammar=json_grammar(schema))
    [completion] = generation.completions
    if completion.finish_reason == "stop":
        assert fits(json.loads(completion.text), schema)
    else:
        assert completion.finish_reason == "length"
        assert len(completion.token_ids) == 300


def test_a_grammar_that_is_finished_ends_the_answer(engine: Engine) -> None:
    generation = engine.generate(PROMPT, temperature=0.0, max_tokens=50, grammar='start: "yes" | "no"')
    assert generation.text in ("yes", "no")
    assert generation.completions[0].finish_reason == "stop"
    exact = engine.generate(PROMPT, temperature=0.0, max_tokens=3, grammar='start: "#" "#" "#"')
    assert (exact.text, exact.completions[0].finish_reason) == ("###", "stop")


def test_an_answer_that_is_cut_says_so(engine: Engine) -> None:
    generation = engine.generate(PROMPT, temperature=0.0, max_tokens=4, grammar='start: "a reply"')
    assert generation.completions[0].finish_reason == "length"
    assert "a reply".startswith(generation.text)


def test_every_one_of_several_answers_has_its_own_place_and_the_same_seed_the_same_answers(engine: Engine) -> None:
    sampling = Sampling(max_tokens=100, temperature=3.0, seed=4, num_sequences=4, grammar=LETTERS)
    first, second = engine.generate(PROMPT, sampling), engine.generate(PROMPT, sampling)
    texts = [one.text for one in first.completions]
    assert texts == [one.text for one in second.completions]
    assert len(set(texts)) > 1
    assert all(
        one.endswith("z") for one, done in zip(texts, first.completions, strict=True) if done.finish_reason == "stop"
    )
    assert all(set(one[:-1]) <= set("abcdefghijklmnopqrstuvwxy") for one in texts)


def test_a_grammar_of_everything_changes_nothing(engine: Engine) -> None:
    free = engine.generate(PROMPT, temperature=0.0, max_tokens=20)
    ruled = engine.generate(PROMPT, temperature=0.0, max_tokens=20, grammar="start: /(?s:.*)/", num_logprobs=2)
    same = next((n for n, one in enumerate(free.completions[0].token_ids) if one >= 381), 20)
    ids = ruled.completions[0].token_ids
    texts = [engine.tokenizer.decode([one]) for one in free.completions[0].token_ids[:same]]
    if all("\ufffd" not in one for one in texts):  # half a character is no text
        assert ids[:same] == free.completions[0].token_ids[:same]
    assert all(entry.logprob < 0 for entry in ruled.completions[0].logprobs)


def test_scores_are_the_models_own_and_no_bias_breaks_the_grammar(engine: Engine) -> None:
    hash_id = engine.tokenizer("#", add_special_tokens=False).input_ids[0]
    generation = engine.generate(
        PROMPT, temperature=1.0, num_logprobs=0, logit_bias={hash_id: -100.0}, grammar='start: "##"', max_tokens=9
    )
    [completion] = generation.completions
    assert completion.text == "##"
    free = engine.generate(PROMPT, temperature=0.0, num_logprobs=20, max_tokens=1).completions[0].logprobs[0]
    chosen = completion.logprobs[0]
    assert chosen.logprob < -0.01  # not the certainty that the grammar left
    known = {token_id: logprob for token_id, _, _, logprob in free.top}
    assert known.get(hash_id, chosen.logprob) == pytest.approx(chosen.logprob, abs=1e-4)


def test_stop_strings_and_stop_tokens_end_earlier(engine: Engine) -> None:
    stopped = engine.generate(PROMPT, temperature=0.0, max_tokens=20, stop=("b",), grammar='start: "aabaa"')
    assert (stopped.text, stopped.completions[0].finish_reason) == ("aa", "stop_string")


def test_a_grammar_that_may_end_ends_where_the_model_does_or_must(engine: Engine) -> None:
    end = 383
    ended = engine.generate(PROMPT, temperature=0.0, max_tokens=50, logit_bias={end: 100.0}, grammar=WORDS)
    assert ended.completions[0].finish_reason == "stop"
    assert 1 <= len(ended.text.encode()) <= 6  # three letters, in tokens of one or two
    assert ended.completions[0].token_ids[-1] == end
    going = engine.generate(
        PROMPT, temperature=0.0, max_tokens=9, logit_bias={end: 100.0}, ignore_end=True, grammar=WORDS
    )
    assert going.completions[0].finish_reason == "length"
    assert end not in going.completions[0].token_ids
    must = engine.generate(PROMPT, temperature=0.0, max_tokens=9, ignore_end=True, grammar='start: "ab" | "abc"')
    assert (must.text, must.completions[0].finish_reason) == ("abc", "stop")


def test_a_preempted_sequence_keeps_its_place() -> None:
    world = ByHand("llama", num_slots=96)
    sampling = Sampling(max_tokens=40, temperature=1.0, seed=1, grammar='start: /[a-y]{60}/ "z"')
    streams = [world.add([n, 20, 30], sampling) for n in range(4)]
    world.run()
    assert world.stepper.scheduler.num_preemptions > 0
    texts = [stream.result().text for stream in streams]
    assert all(set(text) <= set("abcdefghijklmnopqrstuvwxyz") and len(text) >= 40 for text in texts)
    world.check_is_idle()


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: nothing", "unknown name"),
        ("", "grammar"),
        ("{", "EOF"),
        ("start: /(?=a)/", "look-around"),
        ('start: %json {"type": "banana"}', "banana"),
        ('start: %json {"$ref": "#"}', "nothing satisfies it"),
        ('start: ""', "allows no answer"),
        ("start: <|nobody|>", "nobody"),
    ],
)
def test_a_grammar_that_can_not_be_followed_is_refused_and_costs_nobody_else(
    engine: Engine, grammar: str, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        engine.generate(PROMPT, max_tokens=3, ignore_end=True, grammar=grammar)
    assert caught.value.field == "grammar"
    assert engine.generate(PROMPT, max_tokens=1).receipt.num_generated_tokens == 1
    check_is_idle(engine)


def test_a_grammar_that_takes_too_much_on_the_way_ends_that_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "_LIMITS", LLParserLimits(max_items_in_row=40, verbose_errors=False))
    deeper = 'start: s\ns: s s | "a" | "b"'  # ever more ways to read what was written
    other = engine.stream(PROMPT, max_tokens=30, ignore_end=True)
    with pytest.raises(RequestError, match="items"):
        engine.generate(PROMPT, max_tokens=200, ignore_end=True, grammar=deeper)
    assert sum(len(delta.token_ids) for delta in other) == 30
    check_is_idle(engine)


def test_only_so_many_stay_compiled_and_a_long_one_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "MAX_COMPILED", 3)
    monkeypatch.setattr(grammar_module, "MAX_GRAMMAR_CHARACTERS", 100)
    for number in range(6):
        engine.check_grammar(f'start: "{number}"')
    assert len(engine._stepper.grammars) == 3
    for number in range(6):
        assert engine.generate(PROMPT, max_tokens=5, grammar=f'start: "{number}"').text == str(number)
    with pytest.raises(RequestError, match="characters"):
        engine.check_grammar("start: " + "a" * 100)


def test_patterns_that_must_hold_at_once_are_counted_before_anybody_looks_for_a_text() -> None:
    joined = {"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}b.*"} for n in range(5, 29)]}
    assert is_heavy(joined)
    assert "patterns" in (schema_problem(json.dumps(joined)) or "")
    assert not is_heavy({"allOf": joined["allOf"][:8]})
    assert not is_heavy({"properties": {str(n): {"pattern": "a"} for n in range(99)}})


def test_problems_of_schemas_are_told_in_one_line() -> None:
    assert schema_problem('{"type": "object"}') is None
    assert schema_problem('{"type": "string", "pattern": "["}') is not None
    assert "\n" not in (schema_problem('{"type": "string", "pattern": "["}') or "")
    assert schema_problem("[]") is not None
    assert schema_problem('{"not": {}, "x-guidance": {"lenient": true}}') is None


def test_a_vocabulary_with_pieces_of_characters_still_writes_whole_ones(engine: Engine) -> None:
    generation: Generation = engine.generate(
        PROMPT, max_tokens=60, temperature=2.0, seed=3, grammar="start: /[à-ÿ]{8}/"
    )
    assert len(generation.text) == 8
    assert all("à" <= one <= "ÿ" for one in generation.text)
    assert np.all(np.asarray(generation.completions[0].token_ids) < 384)


def test_text_is_cut_into_tokens_as_the_vocabulary_itself_would_cut_it() -> None:
    """A quote and a bracket are one token, two brackets are one too, and the vocabulary prefers the latter."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("}", "}"), ('"', "}")]
    names = [*alphabet, *(left + right for left, right in merges), "<end>"]
    backend = Tokenizer(BPE({name: index for index, name in enumerate(names)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    end, both = len(names) - 1, names.index('"}')
    grammars = Grammars(
        TokenTexts(tokenizer),
        lambda text: tokenizer(text, add_special_tokens=False).input_ids,
        vocab_size=len(names),
        end_ids=frozenset({end}),
    )
    text = '{"b":"aa"}}'
    matcher = grammars.matcher(Sampling(grammar='start: "{\\"b\\":\\"" /a{0,5}/ "\\"}}"'))
    assert matcher is not None
    written: list[int] = []
    while not matcher.is_finished:
        wants_quote = "".join(names[one] for one in written).endswith("aa")
        chosen = both if wants_quote and both in matcher.allowed else names.index("a")
        token_id = matcher.recut(chosen if chosen in matcher.allowed else int(matcher.allowed[0]))
        matcher.took(token_id)
        written.append(token_id)
    assert written == tokenizer(text, add_special_tokens=False).input_ids
