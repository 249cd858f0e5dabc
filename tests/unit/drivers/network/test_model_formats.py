"""What a model's answer took, read from the formats of the vendors in any portions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.network import model_formats
from atoll.drivers.network.model_formats import (
    Counted,
    ModelFormat,
    Tokens,
    UsageReader,
    find_format,
)
from atoll.drivers.network.websocket import BINARY, CLOSE, PING, TEXT, frame
from atoll.testing.model_dialects import (
    Anthropic,
    Chat,
    Dialect,
    Gemini,
    Reply,
    Responses,
    StreamEvent,
)
from atoll.testing.model_script import ToolCall, Usage
from portions import split

DIALECTS: dict[str, tuple[ModelFormat, Dialect]] = {
    "anthropic": (ModelFormat.ANTHROPIC, Anthropic()),
    "chat": (ModelFormat.CHAT, Chat()),
    "responses": (ModelFormat.RESPONSES, Responses()),
    "gemini": (ModelFormat.GEMINI, Gemini()),
    "assist": (ModelFormat.GEMINI, Gemini(wraps=True)),
}
USAGE = Usage(1200, 34, 200)
REPLY = Reply("7", "a-model", "All is done.", (ToolCall("bash", {"command": "ls"}),), USAGE)
TOKENS = Tokens(1200, 34, 200)
CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)
every_dialect = pytest.mark.parametrize("name", DIALECTS)


def sse(events: list[StreamEvent]) -> bytes:
    texts = (e.data if isinstance(e.data, str) else json.dumps(e.data) for e in events)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def read(kind: ModelFormat, data: bytes, content_type: str, *, cuts=(), is_cut=False, **given: Any):
    reader = UsageReader(kind, **given)
    reader.begin(content_type)
    for part in split(data, list(cuts)):
        reader.feed(part)
    return reader.end(is_cut=is_cut)


@every_dialect
@given(CUTS)
def test_streams(name, cuts):
    kind, dialect = DIALECTS[name]
    data = sse(list(dialect.stream(REPLY)))
    found = read(kind, data, "text/event-stream; charset=utf-8", cuts=cuts)
    assert found == [Counted("a-model", TOKENS)]


@every_dialect
@given(CUTS)
def test_whole_answers(name, cuts):
    kind, dialect = DIALECTS[name]
    data = json.dumps(dialect.whole(REPLY)).encode()
    assert read(kind, data, "application/json", cuts=cuts) == [Counted("a-model", TOKENS)]


def test_gemini_streams_a_list_without_alt_sse():
    parts = [event.data for event in Gemini().stream(REPLY)]
    found = read(ModelFormat.GEMINI, json.dumps(parts).encode(), "application/json")
    assert found == [Counted("a-model", TOKENS)]


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "anthropic"])
def test_an_answer_without_usage_is_uncounted(name):
    kind, dialect = DIALECTS[name]
    silent = REPLY._replace(usage=None)
    data = sse(list(dialect.stream(silent)))
    assert read(kind, data, "text/event-stream") == [Counted("a-model", None)]
    whole = json.dumps(dialect.whole(silent)).encode()
    assert read(kind, whole, "application/json") == [Counted("a-model", None)]


@every_dialect
def test_a_cut_stream_is_estimated(name):
    kind, dialect = DIALECTS[name]
    events = list(dialect.stream(REPLY._replace(text="x" * 3000)))[:3]
    [found] = read(
        kind, sse(events), "text/event-stream", is_cut=True, model="asked", request_bytes=4000
    )
    tokens = found.tokens
    assert tokens is not None
    assert tokens.input_tokens == (1200 if name == "anthropic" else 1000)
    assert 0 < tokens.output_tokens < 2000


def test_a_stream_that_is_cut_after_its_usage_is_not_estimated():
    data = sse(list(Anthropic().stream(REPLY)))
    assert read(ModelFormat.ANTHROPIC, data, "text/event-stream", is_cut=True) == [
        Counted("a-model", TOKENS)
    ]


def gemini_list(number: int) -> bytes:
    """Of so many elements of a thousand tokens, as far as it was sent."""
    parts = [{"text": "x" * 4000}]
    elements = [
        {
            "candidates": [{"content": {"parts": parts}}],
            "usageMetadata": {"promptTokenCount": 5000, "candidatesTokenCount": 1000 * count},
            "modelVersion": "gemini-x",
        }
        for count in range(1, number + 1)
    ]
    return json.dumps(elements).encode()


@given(CUTS)
def test_a_list_of_gemini_that_is_cut(cuts):
    data = gemini_list(20)
    found = read(ModelFormat.GEMINI, data[:-1], "application/json", cuts=cuts, is_cut=True)
    assert found == [Counted("gemini-x", Tokens(5000, 20_001))]
    [found] = read(ModelFormat.GEMINI, data[: len(data) // 2], "application/json", is_cut=True)
    assert found.tokens is not None
    assert found.tokens.input_tokens == 5000
    assert 9500 <= found.tokens.output_tokens <= 10_500


def test_a_cut_list_of_many_elements_is_not_read_to_its_end():
    data = b"[" + b'"",' * 20_000
    [found] = read(ModelFormat.GEMINI, data, "application/json", is_cut=True)
    assert found.tokens is not None
    rest = len(data) - 10_000 * len('""')
    assert found.tokens.output_tokens == 10_000 + (rest - 250) // 4


def test_candidates_that_end_one_after_another():
    def element(index: int, text: str, **more: object) -> StreamEvent:
        candidate = {"index": index, "content": {"parts": [{"text": text}]}, **more}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 1}
        return StreamEvent("", {"candidates": [candidate], "usageMetadata": usage})

    data = sse([element(0, "x", finishReason="STOP"), element(1, "y" * 4000)])
    [found] = read(ModelFormat.GEMINI, data, "text/event-stream", is_cut=True)
    assert found.tokens == Tokens(10, 1001)


def test_usage_with_every_piece():
    def piece(made: int, text: str, reason: str | None = None) -> StreamEvent:
        choice = {"delta": {"content": text}, "finish_reason": reason}
        usage = {"prompt_tokens": 7, "completion_tokens": made}
        return StreamEvent("", {"choices": [choice], "usage": usage})

    begun = [piece(0, "x" * 40), piece(10, "x" * 4000)]
    [found] = read(ModelFormat.CHAT, sse(begun), "text/event-stream", is_cut=True)
    assert found.tokens == Tokens(7, 1010)
    whole = [*begun, piece(800, "x", "stop")]
    [found] = read(ModelFormat.CHAT, sse(whole), "text/event-stream", is_cut=True)
    assert found.tokens == Tokens(7, 800)


@every_dialect
def test_a_body_that_is_cut_is_estimated(name):
    kind, dialect = DIALECTS[name]
    whole = json.dumps(dialect.whole(REPLY._replace(text="x" * 200_000))).encode()
    for declared, data in ((0, whole[:-1]), (len(whole), whole[:100])):
        reader = UsageReader(kind, model="asked", request_bytes=400)
        reader.begin("application/json", length=declared)
        reader.feed(data)
        [found] = reader.end(is_cut=True)
        assert found.tokens is not None
        assert found.tokens.input_tokens == 100
        assert 50_000 <= found.tokens.output_tokens <= 50_300


def test_short_events_are_estimated_by_their_text():
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 7}}}
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 120}}
    events = [StreamEvent("", start), *[StreamEvent("", delta)] * 100]
    [found] = read(ModelFormat.ANTHROPIC, sse(events), "text/event-stream", is_cut=True)
    assert found.tokens == Tokens(7, 1 + 100 * 30)


def test_what_a_stream_repeats_is_no_output():
    echo = {"type": "response.created", "response": {"instructions": "x" * 8000}}
    delta = {"type": "response.output_text.delta", "delta": "x" * 200}
    done = {"type": "response.output_text.done", "text": "x" * 200}
    data = sse([StreamEvent("", value) for value in (echo, delta, done)])
    [found] = read(ModelFormat.RESPONSES, data, "text/event-stream", is_cut=True)
    assert found.tokens == Tokens(0, 50 + 1)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_stream_that_ends_with_an_error_is_estimated(is_cut):
    usage = {"input_tokens": 5, "output_tokens": 1}
    start = {"type": "message_start", "message": {"model": "m", "usage": usage}}
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 4000}}
    error = {"type": "error", "error": {"type": "overloaded_error"}}
    data = sse([StreamEvent("", value) for value in (start, *[delta] * 10, error)])
    [found] = read(ModelFormat.ANTHROPIC, data, "text/event-stream", is_cut=is_cut)
    assert found.tokens == Tokens(5, 10_002)


def test_a_cut_stream_with_an_event_that_is_too_long_is_uncounted(monkeypatch):
    monkeypatch.setattr(model_formats, "LIMIT_BYTES", 500)
    data = sse([StreamEvent("", {"choices": [{"delta": {"content": "x" * 1000}}]})])
    assert read(ModelFormat.CHAT, data, "text/event-stream", is_cut=True, model="asked") == [
        Counted("asked", None)
    ]


def test_nothing_is_counted_before_an_answer():
    assert UsageReader(ModelFormat.CHAT).end(is_cut=True) == []


@pytest.mark.parametrize("kind", [kind for kind in ModelFormat if kind is not ModelFormat.OTHER])
def test_a_request_is_counted_before_its_answer(kind):
    reader = UsageReader(kind, model="asked")
    reader.add_request(b"")
    assert reader.end(is_cut=True) == [Counted("asked", Tokens(1, 0))]
    for piece in (b"x" * 1_000_000, b"x" * 2000):
        reader.add_request(piece)
    assert reader.end(is_cut=True) == [Counted("asked", Tokens(250_500, 0))]


def test_a_request_of_an_unknown_format_is_uncounted_before_its_answer():
    reader = UsageReader(ModelFormat.OTHER)
    reader.add_request(b"{}")
    assert reader.end(is_cut=True) == [Counted("", None)]


def test_caches_of_anthropic_are_part_of_the_input():
    usage = {
        "input_tokens": 10, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 5000,
        "output_tokens": 1,
    }  # fmt: skip
    start = {"type": "message_start", "message": {"model": "m", "usage": usage}}
    delta = {"type": "message_delta", "usage": {"output_tokens": 70, "input_tokens": None}}
    data = sse(
        [StreamEvent("", start), StreamEvent("", delta), StreamEvent("", {"type": "message_stop"})]
    )
    assert read(ModelFormat.ANTHROPIC, data, "text/event-stream") == [
        Counted("m", Tokens(5310, 70, 5000, 300))
    ]


def test_thoughts_and_tools_of_gemini_count():
    usage = {
        "promptTokenCount": 100, "toolUsePromptTokenCount": 20, "candidatesTokenCount": 7,
        "thoughtsTokenCount": 30, "cachedContentTokenCount": 40, "totalTokenCount": 157,
    }  # fmt: skip
    body = {"modelVersion": "models/gemini-x", "usageMetadata": usage}
    assert read(ModelFormat.GEMINI, json.dumps(body).encode(), "application/json") == [
        Counted("gemini-x", Tokens(120, 37, 40))
    ]


@pytest.mark.parametrize("bad", [-1, True, 1.5, "7", 10**13, None, [], {}])
def test_numbers_that_are_none_are_not_believed(bad):
    usage = {"prompt_tokens": bad, "completion_tokens": 3}
    data = json.dumps({"model": "m", "usage": usage, "choices": []}).encode()
    assert read(ModelFormat.CHAT, data, "application/json") == [Counted("m", None)]


BAD_NUMBERS: tuple[Any, ...] = (-1, True, 1.5, "7", 10**13, 10**300, 10**4000, [], {})
USAGES = {
    "anthropic": ("usage", ("input_tokens", "output_tokens", "cache_read_input_tokens")),
    "chat": ("usage", ("prompt_tokens", "completion_tokens")),
    "responses": ("usage", ("input_tokens", "output_tokens")),
    "gemini": ("usageMetadata", ("promptTokenCount", "candidatesTokenCount")),
}


@pytest.mark.parametrize("name", USAGES)
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_number_that_cannot_be_true_is_uncounted(name, is_cut):
    kind, dialect = DIALECTS[name]
    where, keys = USAGES[name]
    for key in keys:
        for bad in BAD_NUMBERS:
            body = dialect.whole(REPLY)
            body[where][key] = bad
            sent = sse([StreamEvent("", body)]) if is_cut else json.dumps(body).encode()
            content_type = "text/event-stream" if is_cut else "application/json"
            found = read(kind, sent, content_type, is_cut=is_cut)
            assert found == [Counted("a-model", None)], (key, bad)


def test_digits_without_end_are_uncounted():
    start = StreamEvent("", {"type": "message_start", "message": {"usage": {"input_tokens": 5}}})
    data = sse([start]) + b'data: {"usage": {"output_tokens": %b}}\n\n' % (b"9" * 5000)
    data += sse([StreamEvent("", {"type": "message_stop"})])
    assert read(ModelFormat.ANTHROPIC, data, "text/event-stream") == [Counted("", None)]


def test_a_long_body_is_not_read():
    data = json.dumps({"usage": {"prompt_tokens": 1}, "x": "y" * model_formats.LIMIT_BYTES})
    reader = UsageReader(ModelFormat.CHAT, model="asked")
    reader.begin("application/json")
    for part in split(data.encode(), [10, 100_000]):
        reader.feed(part)
    assert reader.end(is_cut=False) == [Counted("asked", None)]


def messages(*values: object) -> bytes:
    return b"".join(frame(TEXT, json.dumps(value).encode()) for value in values)


@given(CUTS)
def test_a_websocket_carries_many_answers(cuts):
    events = [event.data for event in Responses().stream(REPLY)]
    data = frame(PING, b"") + messages(*events) + frame(BINARY, b"\xff") + messages(*events)
    reader = UsageReader(ModelFormat.RESPONSES)
    found = [counted for part in split(data, cuts) for counted in reader.feed_frames(part)]
    assert found == [Counted("a-model", TOKENS)] * 2
    assert reader.end(is_cut=True) == []


def test_a_websocket_that_ends_within_an_answer():
    events = [event.data for event in Responses().stream(REPLY)]
    reader = UsageReader(ModelFormat.RESPONSES)
    assert reader.feed_frames(messages(*events[:-1])) == []
    assert reader.is_answering
    [found] = reader.end(is_cut=True)
    assert found.tokens is not None
    assert (found.tokens.input_tokens, found.tokens.output_tokens > 0) == (1, True)


def client_messages(*values: object) -> bytes:
    return b"".join(frame(TEXT, json.dumps(value).encode(), mask=b"abcd") for value in values)


ASK = {"type": "response.create", "model": "asked", "input": "x" * 40_000}
ASKED_TOKENS = len(json.dumps(ASK)) // 4
CREATED = {"type": "response.created", "response": {"model": "a-model", "usage": None}}
DELTA = {"type": "response.output_text.delta", "delta": "word"}


def ask(*values: object) -> UsageReader:
    reader = UsageReader(ModelFormat.RESPONSES)
    reader.add_frames(client_messages(*values))
    return reader


@given(CUTS)
def test_a_request_of_a_websocket_is_counted_before_its_answer(cuts):
    reader = UsageReader(ModelFormat.RESPONSES)
    data = frame(PING, b"", mask=b"abcd") + client_messages(ASK, {"type": "response.create"})
    for part in split(data, cuts):
        reader.add_frames(part)
    assert reader.end(is_cut=True) == [
        Counted("asked", Tokens(ASKED_TOKENS, 0)),
        Counted("asked", Tokens(len(json.dumps({"type": "response.create"})) // 4, 0)),
    ]


def test_the_size_of_a_long_message_is_that_of_its_frames(monkeypatch):
    monkeypatch.setattr(model_formats, "LIMIT_BYTES", 1000)
    ping = frame(PING, b"", mask=b"abcd")
    # Two fragments, and a ping between them.
    first = b"\x01" + frame(TEXT, b"x" * 40_000, mask=b"abcd")[1:]
    last = b"\x80" + frame(TEXT, b"x", mask=b"abcd")[1:]
    for data in (client_messages(ASK), first + ping + last):
        for parts in ([data], [data[:-20], data[-20:-10], data[-10:]]):
            reader = UsageReader(ModelFormat.RESPONSES)
            for part in parts:
                reader.add_frames(part)
            [found] = reader.end(is_cut=True)
            assert found.tokens is not None
            assert found.tokens.input_tokens >= 10_000


def test_a_websocket_that_is_cut_after_the_answer_began():
    reader = ask(ASK)
    assert reader.feed_frames(messages(CREATED, DELTA, DELTA)) == []
    assert reader.end(is_cut=True) == [Counted("a-model", Tokens(ASKED_TOKENS, 2))]


def test_what_asks_for_nothing_on_a_websocket_is_not_counted():
    reader = ask(ASK)
    assert len(reader.feed_frames(messages(*(e.data for e in Responses().stream(REPLY))))) == 1
    reader.add_frames(client_messages({"type": "response.processed", "response_id": "1"}))
    reader.add_frames(frame(CLOSE, b"", mask=b"abcd"))
    assert reader.end(is_cut=True) == []


@pytest.mark.parametrize("deltas", [0, 1000])
def test_an_error_of_a_websocket_within_an_answer(deltas):
    reader = ask(ASK)
    data = messages(CREATED, *[DELTA] * deltas, {"type": "error", "status": 500})
    assert reader.feed_frames(data) == [Counted("a-model", Tokens(ASKED_TOKENS, deltas))]
    assert reader.errors
    assert reader.end(is_cut=True) == []


def test_an_error_instead_of_an_answer_is_not_counted():
    reader = ask(ASK, {"type": "response.create"})
    assert reader.feed_frames(messages({"type": "error", "status": 400})) == []
    assert reader.end(is_cut=True) == [Counted("asked", Tokens(ASKED_TOKENS, 0))], "the larger one"


def test_an_answer_that_goes_on_after_an_error():
    reader = ask(ASK)
    reader.feed_frames(messages(CREATED, {"type": "error"}, *[DELTA] * 10))
    [found] = reader.end(is_cut=True)
    assert found.tokens is not None
    assert found.tokens.output_tokens == 10


def test_a_conversation_that_a_server_has_kept_counts_again():
    reader = ask(ASK)
    reader.feed_frames(messages(*(event.data for event in Responses().stream(REPLY))))
    created = {"type": "response.created", "response": {"previous_response_id": "resp_7"}}
    reader.add_frames(client_messages({"type": "response.create", "x": "y" * 1000}))
    reader.feed_frames(messages(created))
    [found] = reader.end(is_cut=True)
    assert found.tokens is not None
    assert found.tokens.input_tokens == 1200 + 34 + 1039 // 4
    data = sse([StreamEvent("", created)])
    found = read(ModelFormat.RESPONSES, data, "text/event-stream", is_cut=True, request_bytes=4000)
    assert found == [Counted("", None)], "how long it is, is not known"


@pytest.mark.parametrize(
    ("body", "is_so"),
    [
        (b'{"previous_response_id": "r", "input": "x"}', True),
        (b'{"previous_response_\\u0069d": "r"}', True),
        (b'{"conversation": {"id": "c"}}', True),
        (b'{"previous_response_id": "r", "input": "x', True),
        (b'{"previous_response_id": null, "conversation": null}', False),
        (b'{"previous_response_id": null, "input": "x', False),
        (b"", False),
    ],
)
def test_a_request_that_goes_on_is_uncounted_without_its_answer(body, is_so):
    tokens = None if is_so else Tokens(max(1, len(body) // 4), 0)
    reader = UsageReader(ModelFormat.RESPONSES, request=body)
    reader.add_request(body)
    assert reader.end(is_cut=True) == [Counted("", tokens)]
    reader = UsageReader(ModelFormat.CHAT, request=body)
    reader.add_request(body)
    [found] = reader.end(is_cut=True)
    assert found.tokens is not None, "only in that format"
    reader = UsageReader(ModelFormat.RESPONSES)
    reader.add_frames(frame(TEXT, body, mask=b"abcd"))
    assert reader.end(is_cut=True) == [Counted("", tokens)]


def test_a_client_that_asks_without_end_is_uncounted():
    reader = ask(*[{}] * 2000)
    assert reader.end(is_cut=True) == [Counted("", None)]


def test_a_client_whose_frames_cannot_be_read_is_uncounted():
    reader = UsageReader(ModelFormat.RESPONSES)
    for _ in range(3):
        reader.add_frames(b"\xc1\x05hello")
    events = [event.data for event in Responses().stream(REPLY)]
    assert reader.feed_frames(messages(*events)) == [Counted("a-model", TOKENS)]
    assert reader.end(is_cut=False) == [Counted("", None)]


def test_a_websocket_with_a_message_that_is_too_long_is_uncounted(monkeypatch):
    monkeypatch.setattr(model_formats, "LIMIT_BYTES", 1000)
    reader = ask({"type": "response.create"})
    assert reader.feed_frames(messages(CREATED, {**DELTA, "delta": "x" * 2000})) == []
    assert reader.end(is_cut=True) == [Counted("a-model", None)]


def test_a_websocket_that_cannot_be_read_is_uncounted():
    reader = UsageReader(ModelFormat.RESPONSES, model="asked")
    assert reader.feed_frames(b"\xc1\x05hello") == []
    assert reader.end(is_cut=False) == [Counted("asked", None)]


def test_errors_of_a_websocket():
    reader = UsageReader(ModelFormat.RESPONSES)
    error = {"type": "usage_limit_reached", "resets_in_seconds": 9}
    value = {"type": "error", "status": 429, "headers": {"Retry-After": 9}, "error": error}
    assert reader.feed_frames(messages(value, {"type": "error", "status": "x"})) == []
    first, second = reader.errors
    assert (first.status, first.headers) == (429, ((b"retry-after", b"9"),))
    assert json.loads(first.body) == value
    assert second.status == 500


def test_headers_of_an_error_with_half_of_a_pair():
    headers = {"retry-after": "1", "\ud800": "x", "y": "\udfff"}
    reader = UsageReader(ModelFormat.RESPONSES)
    reader.feed_frames(messages({"type": "error", "status": 429, "headers": headers}))
    [error] = reader.errors
    assert error.headers == ((b"retry-after", b"1"), (b"?", b"x"), (b"y", b"?"))


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v1/messages", ModelFormat.ANTHROPIC),
        ("POST", "/v1/messages?beta=true", ModelFormat.ANTHROPIC),
        ("POST", "/api/anthropic/v1/messages/", ModelFormat.ANTHROPIC),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/messages/batches", ModelFormat.OTHER),
        ("POST", "/v1/chat/completions", ModelFormat.CHAT),
        ("POST", "/openai/deployments/x/chat/completions", ModelFormat.CHAT),
        ("POST", "/v1/embeddings", ModelFormat.CHAT),
        ("POST", "/v1/responses", ModelFormat.RESPONSES),
        ("POST", "/v1/responses/compact", ModelFormat.RESPONSES),
        ("GET", "/backend-api/codex/responses", ModelFormat.RESPONSES),
        ("POST", "/v1beta/models/gemini-2.5-pro:generateContent", ModelFormat.GEMINI),
        ("POST", "/v1internal:streamGenerateContent?alt=sse", ModelFormat.GEMINI),
        ("POST", "/v1beta/models/x:countTokens", None),
        ("POST", "/v1beta/models/aqa:generateAnswer", ModelFormat.OTHER),
        ("POST", "/v1beta/models/x:asyncBatchEmbedContent", ModelFormat.OTHER),
        ("POST", "/v1beta/models/x:predictLongRunning", ModelFormat.OTHER),
        ("POST", "/v1beta/models/x:y:countTokens", ModelFormat.OTHER),
        ("POST", "/v1beta/models/x", ModelFormat.OTHER),
        ("POST", "/v1/images/generations", ModelFormat.OTHER),
        ("GET", "/v1/models", None),
        ("GET", "/v1/messages", None),
        ("DELETE", "/v1/responses", None),
        ("POST", "/api/event_logging/batch", None),
    ],
)
def test_formats_by_path(method, path, kind):
    assert find_format(method, path) is kind


def test_the_model_that_is_asked():
    asked = model_formats.requested_model
    assert asked("/v1/messages", b'{"a": 1, "model" : "claude-x", "messages": [') == "claude-x"
    assert asked("/v1beta/models/gemini-x:generateContent", b'{"model": "other"}') == "gemini-x"
    assert asked("/v1/responses", b'{"model": "\\u001b[31m"}') == ""
    assert asked("/v1/responses", b'{"model": "<b>"}') == ""
    assert asked("/v1/responses", b"\xff\xfe") == ""


def test_kinds_of_errors_are_words_only():
    word = model_formats.error_word
    assert word(b'{"type":"error","error":{"type":"rate_limit_error","message":"x"}}') == (
        "rate_limit_error"
    )
    assert word(b'[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}}]') == "RESOURCE_EXHAUSTED"
    assert word(b'{"error":{"type":"sk-live-123456","message":"sk-live"}}') == ""
    assert word(b"<html>") == ""


def test_an_error_within_a_good_stream():
    reader = UsageReader(ModelFormat.ANTHROPIC)
    reader.begin("text/event-stream")
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "?"}}
    reader.feed(sse([*list(Anthropic().stream(REPLY))[:2], StreamEvent("error", error)]))
    [counted] = reader.end(is_cut=False)
    assert reader.error == "overloaded_error"
    assert counted.tokens == Tokens(1200, 12, 200), "as much as has arrived"


@given(st.sampled_from(list(ModelFormat)), st.binary(max_size=300), st.booleans(), CUTS)
def test_any_bytes_are_bounded(kind, data, is_stream, cuts):
    content_type = "text/event-stream" if is_stream else "application/json"
    [found] = read(kind, data, content_type, cuts=cuts)
    assert found.tokens is None
    reader = UsageReader(kind)
    for part in split(data, cuts):
        reader.feed_frames(part)
    reader.end(is_cut=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([
                "usage", "message", "type", "response", "error", "model", "candidates", "output",
                "usageMetadata", "input_tokens", "prompt_tokens", "input_tokens_details",
            ]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@given(st.sampled_from(list(ModelFormat)), JSON)
def test_any_json_is_read(kind, value):
    data = json.dumps(value).encode()
    read(kind, data, "application/json")
    read(kind, b"data: " + data + b"\n\n", "text/event-stream")
    UsageReader(kind).feed_frames(frame(TEXT, data))
