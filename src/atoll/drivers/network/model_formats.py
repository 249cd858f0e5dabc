"""What a model's answer took, read from the traffic in the formats of the vendors. No I/O.

Known are Anthropic messages, OpenAI chat completions and responses, and Gemini with the wrapped
form of Code Assist; as one JSON value, as server-sent events, and as WebSocket messages. Memory is
bounded: what is longer than `LIMIT_BYTES` is not read, and its tokens are unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from atoll.drivers.network.coded_size import find_decoded_size
from atoll.drivers.network.event_stream import EventStream
from atoll.drivers.network.websocket import BINARY, TEXT, Message, MessageReader, WebSocketError

Object = Mapping[str, Any]
LIMIT_BYTES = 4 << 20
"""Of one event, one message or one JSON body."""
_MOST_TOKENS = 10**12
_MOST_DIGITS = 400
_MOST_ELEMENTS = 10_000
"""Of a list that is cut, which is read at once; the rest is estimated by its size."""
_BYTES_PER_TOKEN = 4
_EVENT_BYTES = 250
"""What an event of a stream takes besides its text."""
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,99}")
_REQUESTED = re.compile(rb'"model"\s*:\s*"([^"\\]{1,120})"')
_CONTINUES = re.compile(rb'"(?:previous_response_id|conversation)"\s*:\s*["{]')
_IN_PATH = re.compile(r"/(?:models|deployments)/([^/:]+)")
_WORD = re.compile(r"[A-Za-z_]{3,40}")
_BEFORE_ELEMENT = re.compile(r"\s*[\[,]\s*")
_TEXT_KEYS = frozenset({
    "text", "thinking", "partial_json", "delta", "arguments", "content", "reasoning",
    "reasoning_content", "refusal", "input",
})  # fmt: skip
"""Of strings in the events of a stream that a model wrote."""
_ECHOES = ("response.created", "response.queued", "response.in_progress")
"""Events that repeat the request."""


class ModelFormat(StrEnum):
    ANTHROPIC = "anthropic"
    CHAT = "chat"
    """Also the older completions, and embeddings, which report usage in the same words."""
    RESPONSES = "responses"
    GEMINI = "gemini"
    OTHER = "other"
    """Costs money and is not read: its tokens are unknown."""


_PATHS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (ModelFormat.ANTHROPIC, r"/v1/messages$"),
        (ModelFormat.CHAT, r"/(?:completions|embeddings)$"),
        (ModelFormat.RESPONSES, r"/responses(?:/compact)?$"),
        (ModelFormat.GEMINI, r":(?:streamG|g)enerateContent$"),
        (
            ModelFormat.OTHER,
            (
                r"/v1/(?:messages/batches|batches|complete$|images/|audio/|videos|threads)"
                # Any verb of Gemini but the one that is free: new ones cost money as well.
                r"|/models/(?![^/:]+:countTokens$)|:(?:batch\w+|embed\w+|predict\w*)$"
            ),
        ),
    )
)


class Tokens(NamedTuple):
    """Of one answer."""

    input_tokens: int = 0
    """With those that were read from a cache or written to it."""
    output_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0


class Counted(NamedTuple):
    """One answered request."""

    model: str
    """Empty when neither the request nor the answer names it in a usual form."""
    tokens: Tokens | None
    """None: the answer does not say, or it cannot be read."""


class StreamError(NamedTuple):
    """An error in a WebSocket message, which stands for an answer with a status."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def find_format(method: str, path: str) -> ModelFormat | None:
    """The format of a request to a model; None for anything else. `path` may have a query."""
    path = path.partition("?")[0].rstrip("/")
    if method == "GET":
        # The handshake of a WebSocket; anything else there costs nothing.
        return ModelFormat.RESPONSES if path.endswith("/responses") else None
    if method != "POST":
        return None
    return next((kind for kind, known in _PATHS if known.search(path)), None)


def requested_model(path: str, body: bytes) -> str:
    """The model that a request asks for, from its path or the beginning of its body."""
    if named := _IN_PATH.search(path):
        return clean_model(named[1])
    found = _REQUESTED.search(body)
    return clean_model(found[1].decode("utf-8", "replace")) if found else ""


def continues(body: bytes) -> bool:
    """Whether a request, or its beginning, goes on with a conversation that the server has kept."""
    value = _parse(body)
    if isinstance(value, dict):
        return any(value.get(key) for key in ("previous_response_id", "conversation"))
    return _CONTINUES.search(body) is not None


def clean_model(name: object) -> str:
    """The name of a model if it is a usual one, otherwise empty."""
    text = name.removeprefix("models/") if isinstance(name, str) else ""
    return text if _MODEL.fullmatch(text) else ""


def error_word(body: bytes) -> str:
    """The kind of an error, such as `rate_limit_error`; never its text, which may contain anything.

    Empty when there is none of a usual form.
    """
    value = _parse(body)
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return ""
    words = (error.get(key) for key in ("type", "code", "status"))
    return next((w for w in words if isinstance(w, str) and _WORD.fullmatch(w)), "")


class UsageReader:
    """Of one exchange: it gets what is sent and the response, and finds what was answered.

    An answer that was cut before its usage arrived is estimated from the size of what arrived, so
    that a client that hangs up early is counted as well, even before the answer begins.
    """

    def __init__(
        self,
        kind: ModelFormat,
        *,
        model: str = "",
        request_bytes: int | None = None,
        coding: str = "",
        request: bytes = b"",
    ) -> None:
        """`request_bytes` is the size of a request that is sent already; `coding` is the content
        coding of one that is not, and `request` the beginning of its body.
        """
        self._request = request
        self._coding = coding
        self._coded = bytearray()
        """The body of a request that has a coding; what is longer than the limit has no end."""
        self._kind = kind
        self._asked = model
        self._request_bytes = request_bytes
        self._answer = _Answer(kind)
        self._events: EventStream | None = None
        self._messages = MessageReader(LIMIT_BYTES)
        self._sent_messages = MessageReader(LIMIT_BYTES)
        self._is_websocket = False
        self._is_client_unreadable = False
        self._unread_bytes = 0
        """Sent by the client of a WebSocket since its last whole message."""
        self._requests: list[_Asked] = []
        """Of a WebSocket, without the end of an answer."""
        self._context_tokens = 0
        """Of the longest conversation on a WebSocket; the next request may go on with it."""
        self._body: bytearray | None = None
        self._declared_bytes = 0
        self._is_asked = False
        """Whether a WebSocket has an answer under way."""
        self._is_too_long = False
        self._has_left_out = False
        """Whether a message of a WebSocket was too long to be read."""
        self.errors: list[StreamError] = []
        """Of a WebSocket, not yet taken by the caller."""

    @property
    def error(self) -> str:
        """The kind of error that a stream reported after its status was good."""
        return self._answer.error

    @property
    def is_answering(self) -> bool:
        return self._is_asked

    def add_request(self, data: bytes) -> None:
        """Some of the request's body is about to be sent, perhaps none: it counts from now on."""
        self._request_bytes = (self._request_bytes or 0) + len(data)
        if self._coding:
            self._coded += data[: LIMIT_BYTES + 1 - len(self._coded)]

    def begin(self, content_type: str, *, length: int = 0, is_coded: bool = False) -> None:
        """The response is a good one, of this type; `length` is that of its body, 0 if unknown.
        One that has a content coding although none is accepted is not read.
        """
        self._is_too_long = is_coded
        self._declared_bytes = min(length, LIMIT_BYTES)
        if content_type.partition(";")[0].strip().lower() == "text/event-stream":
            self._events = EventStream(LIMIT_BYTES)
        else:
            self._body = bytearray()

    def feed(self, data: bytes) -> None:
        if self._events is not None:
            for event in self._events.feed(data):
                self._answer.add_event(event)
        elif self._body is not None:
            self._is_too_long |= len(self._body) + len(data) > LIMIT_BYTES
            if not self._is_too_long:
                self._body += data

    def add_frames(self, data: bytes) -> None:
        """WebSocket frames of the client that are about to be sent: their requests count."""
        self._is_websocket = True
        if self._is_client_unreadable:
            return
        self._unread_bytes += len(data)
        try:
            messages = self._sent_messages.feed(data)
        except WebSocketError:
            # What it asks from now on is not known; answers are.
            self._is_client_unreadable = True
            return
        for message in messages:
            if message.opcode not in (TEXT, BINARY):
                continue
            if not _is_notice(message):
                # Of a message that is too long, the size of its frames.
                size = len(message.data) if message.is_whole else self._unread_bytes
                data = message.data
                self._requests.append(_Asked(requested_model("", data), size, continues(data)))
            self._unread_bytes = 0
        # No client asks for so much before it has an answer.
        self._is_client_unreadable |= len(self._requests) > _MOST_ASKED

    def feed_frames(self, data: bytes) -> list[Counted]:
        """WebSocket frames of the server; returns the answers that they complete."""
        self._is_websocket = True
        found: list[Counted] = []
        if self._is_too_long:
            return found
        try:
            messages = self._messages.feed(data)
        except WebSocketError:
            # Nothing more of this connection can be read: what it asks has unknown usage.
            self._is_too_long = True
            return found
        for message in messages:
            if message.opcode == TEXT:
                found += self._take_message(message.data, is_whole=message.is_whole)
        return found

    def _take_message(self, data: bytes, *, is_whole: bool) -> Iterator[Counted]:
        value = _parse(data) if is_whole else None
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(value, dict) and kind == "error":
            self.errors.append(_stream_error(value, data))
            if self._is_asked:
                yield self._end_answer(is_cut=True)
            elif self._requests:
                # It was refused. Which one is not said: the others may cost more.
                self._requests.remove(min(self._requests, key=lambda asked: asked.size))
            return
        if not is_whole:
            self._has_left_out = True
            return
        self._is_asked |= isinstance(kind, str) and kind.startswith(_RESPONSE)
        self._answer.add_event(data)
        if kind in _RESPONSE_ENDS:
            yield self._end_answer(is_cut=False)

    def _end_answer(self, *, is_cut: bool) -> Counted:
        """Counts the answer to the first request of a WebSocket that has none yet."""
        asked = self._requests.pop(0) if self._requests else _Asked("", 0, goes_on=False)
        self._answer.goes_on |= asked.goes_on
        self._asked, self._request_bytes = asked.model or self._asked, asked.size
        counted = self._counted(is_cut=is_cut)
        if counted.tokens is not None:
            length = counted.tokens.input_tokens + counted.tokens.output_tokens
            self._context_tokens = max(self._context_tokens, length)
        self._is_asked, self._answer, self._has_left_out = False, _Answer(self._kind), False
        return counted

    def end(self, *, is_cut: bool) -> list[Counted]:
        """The exchange is over. Returns what was not returned before."""
        if self._is_websocket:
            return self._end_websocket()
        if self._events is not None:
            for event in self._events.end():
                self._answer.add_event(event)
        elif self._body is None:
            # Whether the server has begun to work on it cannot be known.
            return [] if self._request_bytes is None else [self._counted(is_cut=True)]
        elif not self._is_too_long:
            self._answer.add_body(bytes(self._body), self._declared_bytes)
        return [self._counted(is_cut=is_cut)]

    def _end_websocket(self) -> list[Counted]:
        if self._is_too_long or self._is_client_unreadable:
            return [Counted(self._answer.model or self._asked, None)]
        found = []
        while self._is_asked or self._requests:
            found.append(self._end_answer(is_cut=True))
        return found

    def _counted(self, *, is_cut: bool) -> Counted:
        answer, tokens = self._answer, self._answer.tokens
        model = answer.model or self._asked
        if self._kind is ModelFormat.OTHER or self._is_too_long or answer.is_implausible:
            return Counted(model, None)
        # A stream that ends with an error, or without its last event, is cut by the server.
        if not answer.is_final and (is_cut or tokens is not None or answer.error):
            tokens = self._estimate(tokens or Tokens())
        return Counted(model, tokens)

    def _estimate_input(self) -> int | None:
        """The tokens of the request, by its size; None when it is not known."""
        if self._request_bytes is None:
            return 0
        size: int | None = self._request_bytes
        if self._coding:
            is_whole = len(self._coded) <= LIMIT_BYTES
            size = find_decoded_size(self._coding, bytes(self._coded)) if is_whole else None
        goes_on = self._answer.goes_on or (
            self._kind is ModelFormat.RESPONSES and continues(self._request)
        )
        if size is None or (goes_on and not self._context_tokens):
            return None
        context = self._context_tokens if goes_on else 0
        return context + max(1, size // _BYTES_PER_TOKEN)

    def _estimate(self, known: Tokens) -> Tokens | None:
        """The tokens of an answer of which only a part has arrived."""
        if self._has_left_out or (self._events is not None and self._events.has_left_out):
            return None
        given = known.input_tokens or self._estimate_input()
        if given is None:
            return None
        return known._replace(
            input_tokens=given,
            output_tokens=max(known.output_tokens, self._answer.estimated_output),
        )


class _Asked(NamedTuple):
    """A request on a WebSocket."""

    model: str
    size: int
    goes_on: bool
    """Whether it continues a conversation that the server has kept."""


_RESPONSE = "response."
_NOTICES = ("response.processed", "response.cancel")
"""Messages of a client that ask for nothing."""
_NOTICE_BYTES = 4096
_MOST_ASKED = 1000
"""Requests on a WebSocket that have no answer yet."""
_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")
_REPEATS = (".done", *_RESPONSE_ENDS)
"""Events that repeat what others have said piece by piece."""


class _Answer:
    """What is known of one answer so far."""

    def __init__(self, kind: ModelFormat) -> None:
        self._kind = kind
        self._numbers: dict[str, int] = {}
        self.model = ""
        self.error = ""
        self.is_final = False
        self.is_implausible = False
        """Whether a number of tokens is none."""
        self.goes_on = False
        """Whether it continues a conversation of which the server has kept the beginning."""
        self.estimated_output = 0

    @property
    def tokens(self) -> Tokens | None:
        if not self._numbers:
            return None
        given = Tokens(**self._numbers)
        # Every part is in the sum, whatever a server claims.
        least = given.cache_read + given.cache_write
        return given._replace(input_tokens=max(given.input_tokens, least))

    def add_event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.is_final = True
            return
        value = _parse(data)
        self._estimate(len(data), value)
        self._add(value)

    def add_body(self, data: bytes, declared_bytes: int) -> None:
        """A body that is one JSON value, or its beginning. `declared_bytes` is its whole length, or
        0 when the response does not say.
        """
        value = _parse(data)
        if value is not None:
            for part in value if isinstance(value, list) else [value]:
                self._add(part)
            self.is_final = True
            return
        unread = max(len(data), declared_bytes)
        for element, size in islice(_elements(data), _MOST_ELEMENTS):
            # Gemini streams a list, of which each element is like an event.
            unread -= size
            self._estimate(size, element)
            self._add(element)
        self._estimate(unread, None)

    def _estimate(self, size: int, value: object) -> None:
        """Adds what an event of this size says, of which the envelope is no output."""
        if isinstance(value, dict) and value.get("type") in _ECHOES:
            return
        said = max(size - _EVENT_BYTES, _text_bytes(value))
        self.estimated_output += max(1, said // _BYTES_PER_TOKEN)

    def _add(self, value: object) -> None:
        if not isinstance(value, dict):
            return
        error = value.get("error")
        if isinstance(error, dict) and not self.error:
            self.error = error_word(json.dumps({"error": error}).encode()) or "error"
        match self._kind:
            case ModelFormat.ANTHROPIC:
                self._add_anthropic(value)
            case ModelFormat.CHAT:
                self._add_chat(value)
            case ModelFormat.RESPONSES:
                self._add_response(value)
            case ModelFormat.GEMINI:
                self._add_gemini(value)
            case ModelFormat.OTHER:
                pass

    def _count(self, usage: Object, key: str) -> int | None:
        """A number of tokens; None when there is none, or none that can be true."""
        value = usage.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
            return value
        self.is_implausible = True
        return None

    def _add_anthropic(self, value: Object) -> None:
        message = _object(value, "message") if value.get("type") == "message_start" else value
        self.model = clean_model(message.get("model")) or self.model
        self.is_final |= value.get("type") == "message_stop"
        usage = _object(message, "usage")
        parts = {
            name: count
            for name, key in (
                ("cache_read", "cache_read_input_tokens"),
                ("cache_write", "cache_creation_input_tokens"),
                ("output_tokens", "output_tokens"),
            )
            if (count := self._count(usage, key)) is not None
        }
        plain = self._count(usage, "input_tokens")
        if plain is not None:
            # The vendor counts cached tokens apart.
            known = {**self._numbers, **parts}
            parts["input_tokens"] = plain + known.get("cache_read", 0) + known.get("cache_write", 0)
        self._numbers |= parts

    def _add_chat(self, value: Object) -> None:
        self.model = clean_model(value.get("model")) or self.model
        usage = _object(value, "usage")
        self._add_openai_usage(
            usage, ("prompt_tokens", "completion_tokens"), "prompt_tokens_details"
        )
        choices = value.get("choices")
        if usage or choices:
            # Some servers report the usage so far with every piece.
            said = choices if isinstance(choices, list) else []
            has_ended = all(isinstance(c, dict) and c.get("finish_reason") for c in said)
            self.is_final = bool(usage) and has_ended

    def _add_response(self, value: Object) -> None:
        is_whole = "response" not in value
        response = value if is_whole else _object(value, "response")
        self.model = clean_model(response.get("model")) or self.model
        self.goes_on |= bool(response.get("previous_response_id") or response.get("conversation"))
        if value.get("type") == "response.failed":
            self.error = error_word(json.dumps({"error": response.get("error")}).encode())
            self.error = self.error or "error"
        if is_whole and "output" not in response:
            return
        if is_whole or value.get("type") in _RESPONSE_ENDS:
            self.is_final = True
            self._add_openai_usage(
                _object(response, "usage"),
                ("input_tokens", "output_tokens"),
                "input_tokens_details",
            )

    def _add_openai_usage(self, usage: Object, names: tuple[str, str], details: str) -> None:
        given, made = (self._count(usage, name) for name in names)
        if given is None:
            return
        cached = self._count(_object(usage, details), "cached_tokens") or 0
        written = self._count(_object(usage, details), "cache_write_tokens") or 0
        self._numbers = {
            "input_tokens": given,
            "output_tokens": made or 0,
            "cache_read": cached,
            "cache_write": written,
        }

    def _add_gemini(self, value: Object) -> None:
        body = _object(value, "response") if "response" in value else value
        self.model = clean_model(body.get("modelVersion")) or self.model
        candidates = body.get("candidates")
        if isinstance(candidates, list) and candidates:
            # Of several, one may end before the others.
            self.is_final = all(isinstance(c, dict) and c.get("finishReason") for c in candidates)
        usage = _object(body, "usageMetadata")
        given = self._count(usage, "promptTokenCount")
        if given is None:
            return
        made = [self._count(usage, k) or 0 for k in ("candidatesTokenCount", "thoughtsTokenCount")]
        self._numbers = {
            "input_tokens": given + (self._count(usage, "toolUsePromptTokenCount") or 0),
            "output_tokens": sum(made),
            "cache_read": self._count(usage, "cachedContentTokenCount") or 0,
        }


def _is_notice(message: Message) -> bool:
    """Whether a message of a client asks for no answer."""
    if len(message.data) > _NOTICE_BYTES:
        return False
    value = _parse(message.data)
    return isinstance(value, dict) and value.get("type") in _NOTICES


def _stream_error(value: Object, data: bytes) -> StreamError:
    status = value.get("status", value.get("status_code"))
    headers = _object(value, "headers")
    return StreamError(
        status if isinstance(status, int) and 100 <= status < 600 else 500,
        tuple(
            # JSON may have half of a surrogate pair, which no header can.
            (name.lower().encode("utf-8", "replace"), str(text).encode("utf-8", "replace"))
            for name, text in headers.items()
            if isinstance(text, str | int | float)
        ),
        data,
    )


def _parse(data: Sequence[int] | bytes) -> Any:
    """The value of a JSON text; None for anything else."""
    try:
        return json.loads(bytes(data), parse_int=_parse_int)
    except (ValueError, RecursionError):
        return None


def _parse_int(text: str) -> int:
    """Too many digits are no error of the whole text; -1 is no plausible count either."""
    return int(text) if len(text) <= _MOST_DIGITS else -1


def _elements(data: bytes) -> Iterator[tuple[object, int]]:
    """The whole elements of a JSON array whose end is missing, each with its size in bytes."""
    text, decoder, at = data.decode("utf-8", "replace"), json.JSONDecoder(parse_int=_parse_int), 0
    while before := _BEFORE_ELEMENT.match(text, at):
        try:
            value, at = decoder.raw_decode(text, before.end())
        except (ValueError, RecursionError):
            return
        yield value, len(text[before.end() : at].encode())


def _text_bytes(value: object) -> int:
    """The size of the texts that an event adds to an answer."""
    if isinstance(value, dict) and str(value.get("type")).endswith(_REPEATS):
        return 0
    found, left = 0, [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left += [inner for inner in part.values() if isinstance(inner, dict | list)]
            texts = (part[key] for key in _TEXT_KEYS.intersection(part))
            found += sum(len(t.encode("utf-8", "replace")) for t in texts if isinstance(t, str))
        elif isinstance(part, list):
            left += part
    return found


def _object(value: Object, key: str) -> Object:
    found = value.get(key)
    return found if isinstance(found, dict) else {}
