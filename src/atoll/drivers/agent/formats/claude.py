"""Claude Code's stream (`--output-format stream-json`) and transcript; Qwen Code has the same
stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage

_SYNTHETIC = ("<command-name>", "<local-command", "<bash-input>", "<system-reminder>", "Caveat: ")
"""What the program itself writes in the name of the user."""


class ClaudeFormat(JsonLines):
    """`system`, `assistant`, `user` and at last `result`, whose `is_error` counts: its `subtype`
    says `success` after an API error too.
    """

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "timestamp")
        match entry.get("type"):
            case "system":
                yield from self._system(entry, at)
            case "assistant":
                yield from _parts(read.table(entry, "message"), at)
            case "user":
                yield from _results(read.table(entry, "message"), at)
            case "result":
                is_error = entry.get("is_error") is not False
                text = read.word(entry, "result") or read.plain_text(entry.get("error"))
                yield read.end(text, is_error=is_error, usage=_usage(entry), at=at)

    def _system(self, entry: Object, at: float | None) -> Iterator[AgentEvent]:
        match entry.get("subtype"):
            case "init":
                yield read.start(at)
            case "api_retry":
                attempt, most = read.number(entry, "attempt"), read.number(entry, "max_retries")
                status = entry.get("error_status") or read.word(entry, "error") or "no answer"
                yield read.notice(f"request failed ({status}), attempt {attempt} of {most}", at)
            case "compact_boundary":
                yield read.notice("the conversation was summarized", at)


class ClaudeSession(JsonLines):
    """A transcript in `~/.claude/projects`. A turn ends with a message whose `stop_reason` is
    `end_turn`.
    """

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "timestamp")
        message = read.table(entry, "message")
        if entry.get("isSidechain") is True or entry.get("isMeta") is True:
            return
        if entry.get("type") == "user":
            text = _asked(message)
            if text and not text.startswith(_SYNTHETIC):
                yield read.prompt(text, at)
            yield from _results(message, at)
        elif entry.get("type") == "assistant":
            if entry.get("isApiErrorMessage") is True:
                text = read.plain_text(message.get("content"))
                yield read.failure(text, at)
                yield read.end(text, is_error=True, at=at)
                return
            yield from _parts(message, at)
            if message.get("stop_reason") in ("end_turn", "stop_sequence"):
                yield read.end(at=at)


def _asked(message: Object) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = (one for one in read.entries(message, "content") if one.get("type") == "text")
    return "\n".join(read.word(part, "text") for part in parts)


def _parts(message: Object, at: float | None) -> Iterator[AgentEvent]:
    for part in read.entries(message, "content"):
        match part.get("type"):
            case "text" if text := read.word(part, "text"):
                yield read.message(text, at)
            case "thinking" if text := read.word(part, "thinking"):
                yield read.thinking(text, at)
            case "tool_use" | "server_tool_use":
                name = read.word(part, "name")
                yield read.tool_call(name, part.get("input"), read.word(part, "id"), at)


def _results(message: Object, at: float | None) -> Iterator[AgentEvent]:
    for part in read.entries(message, "content"):
        if part.get("type") == "tool_result":
            yield read.tool_result(
                read.plain_text(part.get("content")),
                read.word(part, "tool_use_id"),
                is_error=part.get("is_error") is True,
                at=at,
            )


def _usage(entry: Object) -> tuple[ModelUsage, ...]:
    models = read.table(entry, "modelUsage")
    if models:
        found = (
            _model_usage(str(name), one, "costUSD")
            for name, one in models.items()
            if isinstance(one, Mapping)
        )
        return tuple(found)[:16]
    usage = read.table(entry, "usage")
    return (_model_usage("", usage, ""),) if usage else ()


def _model_usage(name: str, usage: Object, cost: str) -> ModelUsage:
    cached = read.number(usage, "cacheReadInputTokens", "cache_read_input_tokens")
    written = read.number(usage, "cacheCreationInputTokens", "cache_creation_input_tokens")
    return ModelUsage(
        model=read.clipped(name, read.NAME_LIMIT),
        input_tokens=read.number(usage, "inputTokens", "input_tokens") + cached + written,
        output_tokens=read.number(usage, "outputTokens", "output_tokens"),
        cached_tokens=cached,
        cost_usd=read.find_number(usage.get(cost)),
    )
