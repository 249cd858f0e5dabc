"""pi's stream (`--mode json`) and its session files."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage

_GOOD = ("stop", "endTurn", "end_turn")
_FAILED = ("error", "aborted", "length")


class PiFormat(JsonLines):
    """Messages and tools; at last `agent_end`, whose last message has a `stopReason`."""

    def __init__(self) -> None:
        self._usage: dict[str, ModelUsage] = {}

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        call = read.word(entry, "toolCallId")
        match entry.get("type"):
            case "agent_start":
                yield read.start()
            case "message_end":
                message = read.table(entry, "message")
                if message.get("role") == "assistant":
                    _count(self._usage, message)
                    yield from _texts(message)
            case "tool_execution_start":
                yield read.tool_call(read.word(entry, "toolName"), entry.get("args"), call)
            case "tool_execution_end":
                text = read.plain_text(read.table(entry, "result").get("content"))
                yield read.tool_result(text, call, is_error=entry.get("isError") is True)
            case "auto_retry_start":
                yield read.notice(read.word(entry, "errorMessage"))
            case "agent_end":
                if entry.get("willRetry") is not True:
                    yield self._end(entry)

    def _end(self, entry: Object) -> AgentEvent:
        last = next(reversed(list(read.entries(entry, "messages"))), read.NONE)
        is_error = last.get("stopReason") not in _GOOD
        text = read.word(last, "errorMessage")
        return read.end(text, is_error=is_error, usage=tuple(self._usage.values()))


class PiSession(JsonLines):
    """A file in `~/.pi/agent/sessions`."""

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at, message = read.moment(entry, "timestamp"), read.table(entry, "message")
        if entry.get("type") == "session":
            yield read.start(at)
        match message.get("role"):
            case "user":
                yield read.prompt(read.plain_text(message.get("content")), at)
            case "assistant":
                for event in _texts(message):
                    yield event._replace(at=at)
                for part in read.entries(message, "content"):
                    if part.get("type") == "toolCall":
                        name, call = read.word(part, "name"), read.word(part, "id")
                        yield read.tool_call(name, part.get("arguments"), call, at)
                reason = message.get("stopReason")
                if reason in _GOOD or reason in _FAILED:
                    text, is_error = read.word(message, "errorMessage"), reason not in _GOOD
                    yield read.end(text, is_error=is_error, at=at)
            case "toolResult":
                text = read.plain_text(message.get("content"))
                call, is_error = read.word(message, "toolCallId"), message.get("isError") is True
                yield read.tool_result(text, call, is_error=is_error, at=at)


def _texts(message: Object) -> Iterator[AgentEvent]:
    at = read.moment(message, "timestamp")
    for part in read.entries(message, "content"):
        match part.get("type"):
            case "text" if text := read.word(part, "text"):
                yield read.message(text, at)
            case "thinking" if text := read.word(part, "thinking"):
                yield read.thinking(text, at)
    if message.get("stopReason") == "error":
        yield read.failure(read.word(message, "errorMessage"), at)


def _count(found: dict[str, ModelUsage], message: Object) -> None:
    model, usage = read.word(message, "model"), read.table(message, "usage")
    name = read.clipped(model, read.NAME_LIMIT)
    if not usage or (name not in found and len(found) >= 16):
        return
    before = found.get(name, ModelUsage(name))
    cached = read.number(usage, "cacheRead")
    cost = read.find_number(read.table(usage, "cost").get("total"))
    found[name] = ModelUsage(
        model=name,
        requests=before.requests + 1,
        input_tokens=before.input_tokens
        + read.number(usage, "input")
        + cached
        + read.number(usage, "cacheWrite"),
        output_tokens=before.output_tokens + read.number(usage, "output"),
        cached_tokens=before.cached_tokens + cached,
        cost_usd=None if cost is None else cost + (before.cost_usd or 0.0),
    )
