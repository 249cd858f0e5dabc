"""OpenCode's stream (`opencode run --format json`)."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage

_GOES_ON = ("tool-calls", "unknown", "")


class OpenCodeFormat(JsonLines):
    """Steps with texts and tools; the last step finishes for a reason such as `stop`."""

    def __init__(self) -> None:
        self._usage = ModelUsage("")
        self._has_started = False

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at, part = read.moment(entry, "timestamp"), read.table(entry, "part")
        match entry.get("type"):
            case "step_start" if not self._has_started:
                self._has_started = True
                yield read.start(at)
            case "text":
                yield read.message(read.word(part, "text"), at)
            case "reasoning":
                yield read.thinking(read.word(part, "text"), at)
            case "tool_use":
                yield from _tool(part, at)
            case "step_finish":
                yield from self._finish(part, at)
            case "error":
                text = read.plain_text(read.table(entry, "error", "data") or entry.get("error"))
                yield read.failure(text, at)
                yield read.end(text, is_error=True, at=at)

    def _finish(self, part: Object, at: float | None) -> Iterator[AgentEvent]:
        tokens, cache = read.table(part, "tokens"), read.table(part, "tokens", "cache")
        cost, before = read.find_number(part.get("cost")), self._usage.cost_usd
        cached = read.number(cache, "read")
        self._usage = ModelUsage(
            model="",
            requests=self._usage.requests + 1,
            input_tokens=self._usage.input_tokens
            + read.number(tokens, "input")
            + cached
            + read.number(cache, "write"),
            output_tokens=self._usage.output_tokens
            + read.number(tokens, "output")
            + read.number(tokens, "reasoning"),
            cached_tokens=self._usage.cached_tokens + cached,
            cost_usd=None if cost is None else cost + (before or 0.0),
        )
        reason = read.word(part, "reason")
        if reason not in _GOES_ON:
            is_error = reason != "stop"
            text = reason if is_error else ""
            yield read.end(text, is_error=is_error, usage=(self._usage,), at=at)


def _tool(part: Object, at: float | None) -> Iterator[AgentEvent]:
    state, call = read.table(part, "state"), read.word(part, "callID")
    yield read.tool_call(read.word(part, "tool"), state.get("input"), call, at)
    if state.get("status") in ("completed", "error"):
        text = read.plain_text(state.get("output") or state.get("error"))
        code = read.table(state, "metadata").get("exit")
        is_error = state.get("status") == "error" or code not in (0, None)
        yield read.tool_result(text, call, is_error=is_error, at=at)
