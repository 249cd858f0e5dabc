"""goose's stream (`--output-format stream-json`)."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage

_FAILED = ("Ran into this error", "Error: ", "Authentication failed", "Request failed")
"""How the last text begins after a failure: its `complete` says nothing of it."""


class GooseFormat(JsonLines):
    """Messages, texts in pieces, and at last `complete`."""

    def __init__(self) -> None:
        self._message = ""
        self._pieces: list[str] = []
        self._since: float | None = None
        self._last = ""

    def feed(self, line: str) -> list[AgentEvent]:
        text = line.strip()
        if text[:1] != "{" and not self._message:
            # Its banner.
            return []
        return super().feed(line)

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        match entry.get("type"):
            case "message":
                yield from self._take(read.table(entry, "message"))
            case "notification":
                return
            case "error":
                yield from self._said()
                text = read.plain_text(entry.get("error") or entry.get("message"))
                yield read.failure(text)
                yield read.end(text, is_error=True)
            case "complete":
                yield from self._said()
                is_error = self._last.startswith(_FAILED)
                total = read.number(entry, "total_tokens")
                usage = _usage(entry, total) if total else ()
                yield read.end(self._last if is_error else "", is_error=is_error, usage=usage)

    def _take(self, message: Object) -> Iterator[AgentEvent]:
        at = read.moment(message, "created")
        name = read.word(message, "id") or "message"
        if name != self._message:
            yield from self._said()
            self._message = name
        for part in read.entries(message, "content"):
            text = read.word(part, "text")
            if part.get("type") == "text" and message.get("role") == "assistant":
                if sum(map(len, self._pieces)) <= read.TEXT_LIMIT:
                    self._pieces.append(text)
                self._since = self._since or at
                continue
            yield from self._said()
            yield from _part(part, at)

    def _said(self) -> Iterator[AgentEvent]:
        text, at = "".join(self._pieces), self._since
        self._pieces, self._since = [], None
        if text.strip():
            self._last = text
            yield read.message(text, at)


def _part(part: Object, at: float | None) -> Iterator[AgentEvent]:
    call = read.word(part, "id")
    match part.get("type"):
        case "thinking" | "reasoning":
            yield read.thinking(read.word(part, "thinking", "text"), at)
        case "toolRequest":
            called = read.table(part, "toolCall")
            value = read.table(called, "value") or called
            name = read.word(value, "name").removeprefix("developer__")
            yield read.tool_call(name, value.get("arguments"), call, at)
        case "toolResponse":
            result = read.table(part, "toolResult")
            value = read.table(result, "value") or result
            is_error = result.get("status") == "error" or value.get("isError") is True
            text = read.plain_text(value.get("content") or result.get("error"))
            yield read.tool_result(text, call, is_error=is_error, at=at)


def _usage(entry: Object, total: int) -> tuple[ModelUsage, ...]:
    given = read.number(entry, "input_tokens")
    made = read.number(entry, "output_tokens")
    return (ModelUsage("", input_tokens=given or total - made, output_tokens=made),)
