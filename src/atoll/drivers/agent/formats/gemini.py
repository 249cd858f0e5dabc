"""Gemini CLI's stream (`-o stream-json`) and the chats that it and Qwen Code store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage

_MOST_SEEN = 20_000
_CONTEXT = "<session_context>"


class GeminiFormat(JsonLines):
    """`init`, pieces of messages, tools, and at last `result`, whose `status` counts."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._since: float | None = None

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "timestamp")
        if entry.get("type") == "message" and entry.get("role") == "assistant":
            if sum(map(len, self._pieces)) <= read.TEXT_LIMIT:
                self._pieces.append(read.word(entry, "content"))
            self._since = self._since or at
            if entry.get("delta") is not True:
                yield from self._said()
            return
        yield from self._said()
        yield from self._other(entry, at)

    def _said(self) -> Iterator[AgentEvent]:
        """The message that came in pieces."""
        text, at = "".join(self._pieces), self._since
        self._pieces, self._since = [], None
        if text.strip():
            yield read.message(text, at)

    def _other(self, entry: Object, at: float | None) -> Iterator[AgentEvent]:
        call = read.word(entry, "tool_id")
        match entry.get("type"):
            case "init":
                yield read.start(at)
            case "tool_use":
                yield read.tool_call(
                    read.word(entry, "tool_name"), entry.get("parameters"), call, at
                )
            case "tool_result":
                text = read.plain_text(entry.get("output") or entry.get("error"))
                is_error = entry.get("status") != "success"
                yield read.tool_result(text, call, is_error=is_error, at=at)
            case "error":
                yield read.notice(read.word(entry, "message"), at)
            case "result":
                text = read.plain_text(entry.get("error"))
                is_error = entry.get("status") != "success"
                yield read.end(text, is_error=is_error, usage=_usage(entry), at=at)


class GeminiSession(JsonLines):
    """A chat in `~/.gemini/tmp`. An entry is repeated under its id when it grows."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "timestamp")
        name = read.word(entry, "id")
        match entry.get("type"):
            case "user":
                text = _asked(entry)
                if text and not text.startswith(_CONTEXT) and self._is_new(name):
                    yield read.prompt(text, at)
            case "gemini":
                text = read.word(entry, "content")
                if text and self._is_new(name):
                    yield read.message(text, at)
                for tool in read.entries(entry, "toolCalls"):
                    yield from self._tool(tool)
            case "error" | "warning" | "info":
                yield read.notice(read.plain_text(entry.get("content")), at)

    def _tool(self, tool: Object) -> Iterator[AgentEvent]:
        call, at = read.word(tool, "id"), read.moment(tool, "timestamp")
        if self._is_new(f"call {call}"):
            yield read.tool_call(read.word(tool, "name"), tool.get("args"), call, at)
        status = tool.get("status")
        if status in ("success", "error", "cancelled") and self._is_new(f"result {call}"):
            shown = tool.get("resultDisplay")
            text = shown if isinstance(shown, str) else _change(read.table(shown))
            yield read.tool_result(text, call, is_error=status != "success", at=at)

    def _is_new(self, name: str) -> bool:
        """Whether this was not seen before; a flood of names is not remembered."""
        if name in self._seen:
            return False
        if len(self._seen) < _MOST_SEEN:
            self._seen.add(name[: read.NAME_LIMIT])
        return True


class QwenSession(JsonLines):
    """A chat in `~/.qwen/projects`: entries with a `message` of `parts`."""

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "timestamp")
        kind = entry.get("type")
        for part in read.entries(read.table(entry, "message"), "parts"):
            text = read.word(part, "text")
            if text and part.get("thought") is True:
                yield read.thinking(text, at)
            elif text and kind in ("user", "assistant"):
                yield (read.prompt if kind == "user" else read.message)(text, at)
            if called := read.table(part, "functionCall"):
                name = read.word(called, "name")
                yield read.tool_call(name, called.get("args"), read.word(called, "id"), at)
            if answered := read.table(part, "functionResponse"):
                response = read.table(answered, "response")
                text = read.plain_text(response)
                call, is_error = read.word(answered, "id"), "error" in response
                yield read.tool_result(text, call, is_error=is_error, at=at)


def _asked(entry: Object) -> str:
    texts = (read.word(part, "text") for part in read.entries(entry, "content"))
    return "\n".join(filter(None, texts))


def _change(shown: Object) -> str:
    return read.word(shown, "fileDiff", "fileName")


def _usage(entry: Object) -> tuple[ModelUsage, ...]:
    models = read.table(entry, "stats", "models")
    found = (
        ModelUsage(
            model=read.clipped(str(name), read.NAME_LIMIT),
            input_tokens=read.number(one, "input_tokens"),
            output_tokens=read.number(one, "output_tokens"),
            cached_tokens=read.number(one, "cached"),
        )
        for name, one in models.items()
        if isinstance(one, Mapping)
    )
    return tuple(found)[:16]
