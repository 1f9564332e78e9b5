"""Every trace format: what is read, what a malformed line costs. Files are written by the tests, a few lines each."""

import gzip
import json

import numpy as np
import pytest

from anaphora.sim.load import load_trace
from anaphora.sim.trace import TraceError


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def mooncake(input_length, hash_ids, timestamp=0):
    return {"timestamp": timestamp, "input_length": input_length, "output_length": 1, "hash_ids": hash_ids}


def test_mooncake_blocks_have_512_tokens_and_the_last_one_what_is_left(tmp_path):
    trace = load_trace(write(tmp_path / "a.jsonl", mooncake(1000, [7, 9], timestamp=1500), mooncake(512, [7])))
    later = trace.requests[1]
    assert [one.time_s for one in trace.requests] == [0.0, 1.5]
    assert later.num_tokens == 1000
    assert len(set(later.tokens()[:512])) == 1
    assert len(later.tokens()[512:]) == 488
    assert (trace.requests[0].tokens() == later.tokens()[:512]).all()
    assert trace.block_tokens == 512


def test_block_ids_of_any_size_become_small_numbers(tmp_path):
    trace = load_trace(write(tmp_path / "a.jsonl", mooncake(512, [2**63]), mooncake(512, [5]), mooncake(512, [2**63])))
    first, second, third = (one.tokens()[0] for one in trace.requests)
    assert first == third != second


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (mooncake(1000, [1]), "1 hash_ids of 512 tokens do not make 1000 tokens"),
        (mooncake(0, []), "input_length is 0"),
        (mooncake("9", [1]), "input_length is '9'"),
        (mooncake(9, [None]), "hash_ids is not a list"),
        (mooncake(9, [1], timestamp=None), "timestamp is None"),
        (mooncake(9, [1], timestamp=float("nan")), "timestamp is nan"),
    ],
)
def test_a_malformed_line_is_left_out_with_its_number_and_reason_or_fatal(tmp_path, line, reason):
    path = write(tmp_path / "a.jsonl", mooncake(512, [1]), line, mooncake(512, [2]))
    trace = load_trace(path)
    assert len(trace.requests) == 2
    assert [problem.line for problem in trace.problems] == [2]
    assert reason in trace.problems[0].reason
    with pytest.raises(TraceError, match="line 2"):
        load_trace(path, is_strict=True)


def test_bailian_turns_of_a_chat_are_one_session(tmp_path):
    def turn(chat_id, parent, ids):
        return {
            "chat_id": chat_id,
            "parent_chat_id": parent,
            "timestamp": chat_id / 10,
            "input_length": 16 * len(ids),
            "output_length": 1,
            "type": "text",
            "turn": 1,
            "hash_ids": ids,
        }

    trace = load_trace(write(tmp_path / "a.jsonl", turn(1, -1, [1]), turn(2, 1, [1, 2]), turn(3, -1, [9])))
    assert [one.session for one in trace.requests] == ["1", "1", "3"]
    assert [one.num_tokens for one in trace.requests] == [16, 32, 16]
    assert trace.block_tokens == 16


def session(*requests):
    return json.dumps({"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": list(requests)})


def test_agent_sessions_share_nothing_and_the_rest_behind_whole_blocks_is_new(tmp_path):
    one = {"t": 0.0, "in": 130, "hash_ids": [1, 2], "api_time": 2.5}
    other = {"t": 1.0, "in": 130, "hash_ids": [1, 2]}
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(session(one, other).encode()))
    (tmp_path / "b.json").write_text(session(one))
    (tmp_path / "LICENSE").write_text("words")
    trace = load_trace(tmp_path, session_gap_s=100.0)
    first, second, apart = (request.tokens() for request in trace.requests)
    assert (first[:128] == second[:128]).all()
    assert first[128] != second[128]
    assert apart[0] not in set(first)
    assert [one.time_s for one in trace.requests] == [0.0, 1.0, 100.0]
    assert trace.requests[0].service_s == 2.5


def test_requests_of_sub_agents_are_read_in_place(tmp_path):
    inner = {"t": 1.0, "in": 64, "hash_ids": [1]}
    path = tmp_path / "a.json"
    path.write_text(session({"t": 0.0, "in": 64, "hash_ids": [1]}, {"requests": [inner]}))
    assert [one.time_s for one in load_trace(path).requests] == [0.0, 1.0]


def test_a_file_that_is_no_session_is_a_problem_of_its_own(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{}")
    with pytest.raises(TraceError, match="no request"):
        load_trace(path, format_name="agent")


def test_token_ids_are_taken_as_they_are(tmp_path):
    trace = load_trace(write(tmp_path / "a.jsonl", {"tokens": [5, 6], "tenant": "t", "session": "s"}, {"tokens": [7]}))
    assert trace.requests[0].tokens().tolist() == [5, 6]
    assert (trace.requests[0].tenant, trace.requests[0].session) == ("t", "s")
    assert trace.requests[1].time_s == 1.0


@pytest.mark.parametrize("ids", [[], [2**31], [-1], [True], "ab"])
def test_what_is_no_token_id_is_malformed(tmp_path, ids):
    trace = load_trace(write(tmp_path / "a.jsonl", {"tokens": ids}, {"tokens": [7]}))
    assert len(trace.requests) == 1
    assert "tokens" in trace.problems[0].reason


def test_bodies_with_one_opening_share_their_first_tokens(tmp_path):
    def body(text):
        system = {"role": "system", "content": "Be brief."}
        return {"model": "m", "messages": [system, {"role": "user", "content": text}], "tools": [{"name": "add"}]}

    trace = load_trace(write(tmp_path / "a.jsonl", body("one"), {"body": body("two"), "tenant": "t", "time_s": 9}))
    first, second = (bytes(one.tokens().astype(np.uint8)).decode() for one in trace.requests)
    assert first.startswith('<tool>{"name":"add"}\n<system>Be brief.\n<user>')
    assert first[:-4] == second[:-4]
    assert (trace.requests[1].tenant, trace.requests[1].time_s) == ("t", 9.0)


def test_the_apis_render_alike_where_they_say_the_same(tmp_path):
    said = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    bodies = [
        {"system": "s", "messages": said},
        {"instructions": "s", "input": "hi"},
        {"instructions": "s", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
    ]
    trace = load_trace(write(tmp_path / "a.jsonl", *bodies, {"prompt": "plain"}))
    rendered = [one.tokens().tolist() for one in trace.requests]
    assert rendered[0] == rendered[1] == rendered[2]
    assert rendered[3] == list(b"plain")


@pytest.mark.parametrize("body", [{"messages": "hi"}, {"messages": [3]}, {"prompt": ""}])
def test_a_body_without_a_prompt_is_malformed(tmp_path, body):
    trace = load_trace(write(tmp_path / "a.jsonl", {"prompt": "x"}, body))
    assert len(trace.problems) == 1


def test_a_tokenizer_can_be_given(tmp_path):
    trace = load_trace(write(tmp_path / "a.jsonl", {"prompt": "a b"}), tokenizer=lambda text: [len(text)])
    assert trace.requests[0].tokens().tolist() == [3]


def test_azure_tells_lengths_only_and_the_trace_says_so(tmp_path):
    path = write(
        tmp_path / "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.9799600,10,8",
        "yesterday,10,8",
        "2023-11-16 18:17:05.0,0,8",
    )
    trace = load_trace(path)
    assert trace.reuse == "unknown"
    assert [one.num_tokens for one in trace.requests] == [4808, 10]
    assert trace.requests[1].time_s == pytest.approx(1.0)
    assert not set(trace.requests[0].tokens()) & set(trace.requests[1].tokens())
    assert [problem.line for problem in trace.problems] == [4, 5]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "line", ["{", "[]", "null", "7", DEEP, '{"tokens": ' + DEEP, '{"note": "of the one who logged"}']
)
def test_a_malformed_first_line_is_left_out_too(tmp_path, line):
    path = write(tmp_path / "a.jsonl", line, mooncake(512, [1]))
    trace = load_trace(path)
    assert len(trace.requests) == 1
    assert [problem.line for problem in trace.problems] == [1]
    with pytest.raises(TraceError, match="line 1"):
        load_trace(path, is_strict=True)


@pytest.mark.parametrize(
    "rows", [session({"t": 0, "in": 10**13, "hash_ids": [1]}), DEEP, json.dumps({"block_size": 10**13})]
)
def test_a_session_without_sense_is_one_problem(tmp_path, rows):
    (tmp_path / "a.json").write_text(rows.replace('"block_size": 64', f'"block_size": {10**13}'))
    with pytest.raises(TraceError, match=r"no request in it \(1 malformed lines; a\.json, line 1"):
        load_trace(tmp_path / "a.json", format_name="agent")


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(mooncake(512, [1])), encoding="utf-8-sig")
    (tmp_path / "a.csv").write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,48\n", encoding="utf-8-sig")
    for name in ("a.jsonl", "a.csv"):
        trace = load_trace(tmp_path / name)
        assert (len(trace.requests), trace.problems) == (1, ())


@pytest.mark.parametrize(
    "row",
    [
        "2023-11-16 18:17:03," + str(10**12),
        "2023-11-16 18:17:03," + "9" * 5000,
        '2023-11-16 18:17:03,"' + "x" * 200_000 + '"',
        "2023-11-16 18:17:03",
        "0001-01-01 00:00:00+14:00,",
    ],
)
def test_a_row_of_azure_that_cannot_be_meant_is_malformed(tmp_path, row):
    trace = load_trace(write(tmp_path / "a.csv", "TIMESTAMP,ContextTokens", "2023-11-16 18:17:03,48", row))
    assert [problem.line for problem in trace.problems] == [3]


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8bno", gzip.compress(session().encode())[:-12]])
def test_a_file_of_a_folder_that_means_nothing_is_counted_and_named(tmp_path, content):
    write(tmp_path / "a.jsonl", mooncake(512, [1]))
    (tmp_path / "b.json.gz").write_bytes(content)
    trace = load_trace(tmp_path)
    assert [problem.file for problem in trace.problems] == ["b.json.gz"]
    with pytest.raises(TraceError, match=r"b\.json\.gz, line 1"):
        load_trace(tmp_path, is_strict=True)
    with pytest.raises(TraceError, match=r"b\.json\.gz: "):
        load_trace(tmp_path / "b.json.gz")


@pytest.mark.parametrize("gap", [-1.0, float("nan"), float("inf")])
def test_files_begin_one_after_another(tmp_path, gap):
    write(tmp_path / "a.jsonl", mooncake(512, [1]))
    with pytest.raises(TraceError, match="gap must be 0 or more"):
        load_trace(tmp_path, session_gap_s=gap)


def test_what_cannot_be_read_is_one_clear_error(tmp_path):
    with pytest.raises(TraceError, match="the trace is empty"):
        load_trace(write(tmp_path / "empty.jsonl", " "))
    with pytest.raises(TraceError, match="no such file"):
        load_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="format can't be told"):
        load_trace(write(tmp_path / "a.txt", "words"))
    with pytest.raises(TraceError, match="'morse' is unknown"):
        load_trace(write(tmp_path / "b.txt", "words"), format_name="morse")
    with pytest.raises(TraceError, match="no request"):
        load_trace(write(tmp_path / "c.jsonl", {"tokens": []}))


def test_the_whole_mooncake_hour_is_read(data):
    trace = load_trace(data("mooncake"))
    assert len(trace.requests) == 12_031
    assert trace.num_tokens == 144_793_823
    assert trace.problems == ()
