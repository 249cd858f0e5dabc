"""GitHub Copilot CLI's stream (`--output-format json`)."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent


class CopilotFormat(JsonLines):
    """Events with a `data` table, and at last `result`, whose `exitCode` counts."""

    def __init__(self) -> None:
        self._has_started = False

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at, data = read.moment(entry, "timestamp"), read.table(entry, "data")
        call = read.word(data, "toolCallId")
        match entry.get("type"):
            case "assistant.turn_start" if not self._has_started:
                self._has_started = True
                yield read.start(at)
            case "assistant.message" if text := read.plain_text(data.get("content")):
                yield read.message(text, at)
            case "assistant.reasoning" if text := read.plain_text(data.get("content")):
                yield read.thinking(text, at)
            case "tool.execution_start":
                name = read.word(data, "toolName")
                yield read.tool_call(name, data.get("arguments"), call, at)
            case "tool.execution_complete":
                is_error = data.get("success") is not True
                text = read.plain_text(read.table(data, "result") or data.get("error"))
                yield read.tool_result(text, call, is_error=is_error, at=at)
            case "session.error":
                yield read.failure(read.word(data, "message"), at)
            case "session.warning":
                yield read.notice(read.word(data, "message"), at)
            case "result":
                yield _end(entry.get("exitCode", data.get("exitCode")), at)


def _end(code: object, at: float | None) -> AgentEvent:
    text = "" if code == 0 else f"exit code {read.compact(code)}"
    return read.end(text, is_error=code != 0, at=at)
