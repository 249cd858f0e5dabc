"""Event streams: real ones of each program (`streams/`), failures, and hostile ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.drivers import registry
from atoll.drivers.agent.formats import gemini, json_lines
from atoll.model.agent import AgentEventKind, ModelUsage

STREAMS = Path(__file__).parent / "streams"
EVERY = tuple(registry._FORMATS)
KIND = AgentEventKind
FIRST = "message call result call result message end"
SECOND = "message call result message"
EXPECTED = {
    "claude": f"start {FIRST}",
    "cline": f"start {FIRST}",
    "codex": f"start {FIRST}",
    "copilot": f"start {FIRST}",
    "gemini": f"start {FIRST}",
    "goose": "message call result message end",
    "opencode": f"start {FIRST}",
    "openhands": FIRST,
    "pi": f"start {FIRST}",
    "qwen": f"start {FIRST}",
    "claude-session": f"prompt {FIRST} prompt {SECOND} end",
    "codex-session": f"start prompt {FIRST} prompt {SECOND} end",
    "gemini-session": "prompt message call result call result message prompt message call result "
    "message prompt message",
    "pi-session": f"start prompt {FIRST} prompt {SECOND} end",
    "qwen-session": f"prompt {FIRST.removesuffix(' end')} prompt {SECOND}",
}
PROMPT = 'Write hello.txt, please.\nThen show it: "quotes" $HOME `x`'


def read(name, lines):
    form = registry.event_format(name)
    return [event for line in lines for event in form.feed(line)]


def entries(name, *found):
    return read(name, [json.dumps(entry) for entry in found])


def stream(name):
    return read(name, (STREAMS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())


def shape(events):
    return " ".join(event.kind.removeprefix("tool-") for event in events)


# Real streams.


@pytest.mark.parametrize("name", EXPECTED)
def test_real_stream(name):
    events = stream(name)
    assert shape(events) == EXPECTED[name]
    said = [event.text for event in events if event.kind is KIND.MESSAGE]
    assert said[:2] == ["I write it.", "Done one."]
    calls = [event for event in events if event.kind is KIND.TOOL_CALL]
    assert all(call.tool and call.call and call.text for call in calls)
    assert "hello.txt" in calls[0].text
    results = [event for event in events if event.kind is KIND.TOOL_RESULT]
    assert [result.call for result in results] == [call.call for call in calls]
    assert not any(event.is_error for event in events)
    if name != "goose":
        assert calls[1].text == "cat hello.txt"
    if name not in ("goose", "cline"):
        assert "hello" in results[1].text


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith("-session")])
def test_prompts_of_a_session(name):
    asked = [event.text.strip() for event in stream(name) if event.kind is KIND.PROMPT]
    assert asked[0] == PROMPT


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "pi", "qwen"])
def test_usage_at_the_end(name):
    (usage,) = stream(name)[-1].usage
    assert (usage.input_tokens, usage.output_tokens) == (300, 30)


def test_change_is_shown_with_the_path():
    call = next(event for event in stream("claude") if event.kind is KIND.TOOL_CALL)
    assert call.text == "/work/app/hello.txt\n+hello"


# Failures.


def test_failed_claude_result_says_success_in_its_subtype():
    (event,) = entries(
        "claude", {"type": "result", "subtype": "success", "is_error": True, "result": "401"}
    )
    assert (event.kind, event.is_error, event.text) == (KIND.END, True, "401")
    (silent,) = entries("claude", {"type": "result", "subtype": "error_during_execution"})
    assert silent.is_error


def test_claude_retry_and_api_error_in_a_transcript():
    (retry,) = entries("claude", {
        "type": "system", "subtype": "api_retry", "attempt": 2, "max_retries": 10,
        "error_status": 529,
    })  # fmt: skip
    assert retry.text == "request failed (529), attempt 2 of 10"
    failed = entries("claude-session", {
        "type": "assistant", "isApiErrorMessage": True,
        "message": {"content": [{"type": "text", "text": "API Error: 401"}]},
    })  # fmt: skip
    assert [(event.kind, event.is_error) for event in failed] == [
        (KIND.ERROR, True), (KIND.END, True),
    ]  # fmt: skip


def test_failed_codex_turn():
    failed = entries(
        "codex",
        {"type": "error", "message": "Reconnecting... 1/5"},
        {"type": "turn.failed", "error": {"message": "unexpected status 401"}},
    )
    assert shape(failed) == "notice error end"
    assert failed[-1].is_error
    command = {"id": "1", "type": "command_execution", "command": "false", "exit_code": 1}
    (result,) = entries("codex", {"type": "item.completed", "item": command})
    assert result.is_error


def test_older_codex_rollout():
    events = entries(
        "codex-session",
        {"type": "event_msg", "payload": {"type": "user_message", "message": "do it"}},
        {"type": "response_item", "payload": {
            "type": "function_call", "name": "shell", "call_id": "c",
            "arguments": '{"command": ["bash", "-lc", "make test"]}',
        }},
        {"type": "response_item", "payload": {
            "type": "function_call_output", "call_id": "c", "output": "ok",
        }},
        {"type": "event_msg", "payload": {"type": "turn_aborted", "reason": "interrupted"}},
    )  # fmt: skip
    assert shape(events) == "prompt call result end"
    assert events[1].text == "make test"
    assert events[-1].is_error


def test_failed_gemini_turn():
    (event,) = entries(
        "gemini", {"type": "result", "status": "error", "error": {"message": "quota"}}
    )
    assert (event.is_error, event.text) == (True, "quota")


def test_gemini_message_that_was_cut():
    piece = {"type": "message", "role": "assistant", "content": "half", "delta": True}
    assert entries("gemini", piece) == []


def test_goose_says_nothing_of_failure_but_its_last_text():
    text = "Ran into this error: Request failed: 401"
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    events = entries("goose", {"type": "message", "message": message}, {"type": "complete"})
    assert shape(events) == "message end"
    assert events[-1].is_error


def test_failed_opencode_turn():
    error = {"name": "APIError", "data": {"message": "invalid x-api-key"}}
    events = entries("opencode", {"type": "error", "error": error})
    assert shape(events) == "error end"
    assert events[-1].text == "invalid x-api-key"
    (cut,) = entries("opencode", {"type": "step_finish", "part": {"reason": "length"}})
    assert cut.is_error
    assert entries("opencode", {"type": "step_finish", "part": {"reason": "tool-calls"}}) == []


def test_failed_pi_turn():
    last = {"role": "assistant", "stopReason": "error", "errorMessage": "401"}
    (event,) = entries("pi", {"type": "agent_end", "messages": [last]})
    assert (event.is_error, event.text) == (True, "401")
    assert entries("pi", {"type": "agent_end", "messages": [last], "willRetry": True}) == []
    (none,) = entries("pi", {"type": "agent_end", "messages": []})
    assert none.is_error


@pytest.mark.parametrize(("code", "is_error"), [(0, False), (1, True), (None, True)])
def test_end_of_copilot(code, is_error):
    (event,) = entries("copilot", {"type": "result", "exitCode": code})
    assert event.is_error is is_error


@pytest.mark.parametrize(
    ("reason", "is_error"), [("completed", False), ("error", True), ("", True)]
)
def test_end_of_cline(reason, is_error):
    (event,) = entries("cline", {"type": "run_result", "finishReason": reason})
    assert event.is_error is is_error


def test_openhands_events_between_other_lines():
    action = {
        "kind": "ActionEvent", "tool_name": "terminal", "tool_call_id": "c",
        "action": {"kind": "TerminalAction", "command": "ls"},
    }  # fmt: skip
    finish = {"kind": "ActionEvent", "action": {"kind": "FinishAction", "message": "Done."}}
    error = {"kind": "ConversationErrorEvent", "code": "LLMAuthenticationError", "detail": "401"}
    lines = ["Initializing agent...", *json.dumps(action, indent=2).splitlines(), "+---+"]
    events = read("openhands", [*lines, json.dumps(finish), json.dumps(error)])
    assert shape(events) == "call message end error end"
    assert (events[0].text, events[2].is_error, events[-1].is_error) == ("ls", False, True)


# The stream of scripted agents.


def test_script():
    events = read("script", [
        "plain words", '{"type": "say", "text": "hi"}', '{"type": "think", "text": "hm"}',
        '{"type": "tool", "tool": "shell", "call": 1, "text": "make"}',
        '{"type": "result", "call": 1, "text": "no", "is_error": true}',
        '{"type": "usage", "model": "m", "input_tokens": 10, "output_tokens": 2, "cost_usd": 0.5}',
        '{"type": "usage", "model": "m", "input_tokens": 5, "cost_usd": 0.5}',
        '{"type": "notice", "text": "n"}', '{"type": "error", "text": "e"}',
        '{"type": "done", "text": "bye"}', '{"no": "type"}', "{broken",
    ])  # fmt: skip
    assert shape(events) == (
        "message message thinking call result notice error end message message"
    )
    assert events[3].call == events[4].call == "1"
    assert events[4].is_error
    assert events[7].usage == (
        ModelUsage("m", requests=2, input_tokens=15, output_tokens=2, cost_usd=1.0),
    )


def test_text():
    events = read("text", ["one", "", "  ", '{"type": "done"}'])
    assert [event.text for event in events] == ["one", '{"type": "done"}']


# Hostile lines.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


def mutated(value, data):
    """The same entry with one of its values replaced."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(value)))
        return {**value, key: mutated(value[key], data)}
    if isinstance(value, list) and value:
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], mutated(value[place], data), *value[place + 1 :]]
    return data.draw(JSON)


def require_harmless(events):
    for event in events:
        assert len(event.text) <= json_lines.TEXT_LIMIT + 40
        assert len(event.tool) <= json_lines.NAME_LIMIT + 40
        assert len(event.call) <= json_lines.NAME_LIMIT + 40
        assert len(event.usage) <= 16
        (event.text + event.tool + event.call).encode()
        json.dumps(event)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=30, deadline=None)
@given(line=st.text() | JSON.map(json.dumps))
def test_any_line(name, line):
    require_harmless(read(name, [line]))


@pytest.mark.parametrize("name", EXPECTED)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_change_of_a_real_line(name, data):
    lines = (STREAMS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    line = data.draw(st.sampled_from([line for line in lines if line.startswith("{")]))
    require_harmless(read(name, [json.dumps(mutated(json.loads(line), data))]))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"type": ' + "[" * 50_000,
        '{"type": "say", "text": "\\ud800\\udfff\\ud800"}',
        '{"type": "result", "usage": {"input_tokens": 1' + "0" * 4000 + "}}",
        '{"type": "result", "usage": {"input_tokens": NaN, "output_tokens": 1e999}}',
        "{" + "x" * (9 << 20),
        "\x00\x1b]0;title\x07",
    ],
    ids=["deep", "deep-object", "surrogates", "digits", "nan", "long", "control"],
)
def test_odd_lines(name, line):
    require_harmless(read(name, [line, line]))


def test_long_text_is_shortened_and_says_so():
    (event,) = read("text", ["x" * 20_000])
    assert event.text.endswith("… (20000 characters)")


def test_flood_of_names_is_not_remembered():
    form = gemini.GeminiSession()
    for number in range(25_000):
        form.feed(json.dumps({"id": str(number), "type": "gemini", "content": "x"}))
    assert len(form._seen) <= 20_000
