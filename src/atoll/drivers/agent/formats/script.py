"""The stream of scripted agents, and of any program that wants to report what it does.

One JSON object per line, distinguished by `type`; other lines are said as they are:

    {"type": "say", "text": "…"}
    {"type": "think", "text": "…"}
    {"type": "tool", "tool": "shell", "call": "1", "text": "make test"}
    {"type": "result", "call": "1", "text": "…", "is_error": false}
    {"type": "notice", "text": "…"}
    {"type": "error", "text": "…"}
    {"type": "usage", "model": "…", "input_tokens": 10, "output_tokens": 2, "cost_usd": 0.01}
    {"type": "done", "text": "…", "is_error": false}
"""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import LINE_LIMIT, JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage

_MOST_MODELS = 16


class ScriptFormat(JsonLines):
    """`usage` is added up and reported with `done`."""

    def __init__(self) -> None:
        self._usage: dict[str, ModelUsage] = {}

    def feed(self, line: str) -> list[AgentEvent]:
        text = line.strip()
        found = read.parse_object(text) if text[:1] == "{" and len(text) <= LINE_LIMIT else None
        if found is not None and isinstance(found.get("type"), str):
            return list(self.events(found))
        return [read.message(line)] if text else []

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "at", "timestamp")
        text, call = read.plain_text(entry.get("text")), read.plain_text(entry.get("call"))
        is_error = entry.get("is_error") is True
        tool = read.word(entry, "tool", "name")
        match entry.get("type"):
            case "say":
                yield read.message(text, at)
            case "think":
                yield read.thinking(text, at)
            case "tool":
                yield read.tool_call(tool, entry.get("text", entry.get("input")), call, at)
            case "result":
                yield read.tool_result(text, call, tool=tool, is_error=is_error, at=at)
            case "notice":
                yield read.notice(text, at)
            case "error":
                yield read.failure(text, at)
            case "usage":
                self._count(entry)
            case "done":
                usage = tuple(self._usage.values())
                yield read.end(text, is_error=is_error, usage=usage, at=at)

    def _count(self, entry: Object) -> None:
        model = read.clipped(read.word(entry, "model"), read.NAME_LIMIT)
        if model not in self._usage and len(self._usage) >= _MOST_MODELS:
            return
        before = self._usage.get(model, ModelUsage(model))
        cost = read.find_number(entry.get("cost_usd"))
        known = before.cost_usd if before.requests else 0.0
        self._usage[model] = ModelUsage(
            model,
            requests=before.requests + 1,
            input_tokens=before.input_tokens + read.number(entry, "input_tokens"),
            output_tokens=before.output_tokens + read.number(entry, "output_tokens"),
            cached_tokens=before.cached_tokens + read.number(entry, "cached_tokens"),
            cost_usd=None if cost is None or known is None else known + cost,
        )
