"""Cline's stream (`cline --json`)."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage

_GOOD = ("completed", "stop", "end_turn")


class ClineFormat(JsonLines):
    """`hook_event`, `agent_event`, and at last `run_result`, whose `finishReason` counts."""

    def __init__(self) -> None:
        self._has_started = False

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "ts", "timestamp")
        match entry.get("type"):
            case "agent_event":
                yield from self._agent(read.table(entry, "event"), at)
            case "error":
                yield read.failure(read.word(entry, "message"), at)
            case "run_result":
                reason = read.word(entry, "finishReason")
                is_error = reason not in _GOOD
                text = read.plain_text(entry.get("error")) or (reason if is_error else "")
                yield read.end(text, is_error=is_error, usage=_usage(entry), at=at)

    def _agent(self, event: Object, at: float | None) -> Iterator[AgentEvent]:
        call, kind = read.word(event, "toolCallId"), event.get("contentType")
        match event.get("type"):
            case "iteration_start" if not self._has_started:
                self._has_started = True
                yield read.start(at)
            case "content_start" if kind == "tool":
                yield read.tool_call(read.word(event, "toolName"), event.get("input"), call, at)
            case "content_end" if kind == "tool":
                is_error = event.get("error") is not None
                text = read.plain_text(event.get("output") or event.get("error"))
                yield read.tool_result(text, call, is_error=is_error, at=at)
            case "content_end" if text := read.word(event, "text", "reasoning"):
                said = read.thinking if kind == "reasoning" else read.message
                yield said(text, at)
            case "error":
                yield read.failure(read.plain_text(event.get("error")), at)


def _usage(entry: Object) -> tuple[ModelUsage, ...]:
    usage = read.table(entry, "usage")
    if not usage:
        return ()
    return (
        ModelUsage(
            model=read.clipped(read.word(read.table(entry, "model"), "id"), read.NAME_LIMIT),
            input_tokens=read.number(usage, "inputTokens"),
            output_tokens=read.number(usage, "outputTokens"),
            cached_tokens=read.number(usage, "cacheReadTokens"),
            cost_usd=read.find_number(usage.get("totalCost")),
        ),
    )
