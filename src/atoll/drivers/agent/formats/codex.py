"""Codex's stream (`codex exec --json`) and its rollout files."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent, ModelUsage


class CodexFormat(JsonLines):
    """`thread.started`, items, and at last `turn.completed` or `turn.failed`."""

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        item = read.table(entry, "item")
        match entry.get("type"):
            case "thread.started":
                yield read.start()
            case "item.started":
                yield from _call(item)
            case "item.completed":
                yield from _completed(item)
            case "turn.completed":
                yield read.end(usage=_usage(read.table(entry, "usage")))
            case "turn.failed":
                text = read.plain_text(entry.get("error"))
                yield read.failure(text)
                yield read.end(text, is_error=True)
            case "error":
                # Also for attempts that are repeated: the turn's own end decides.
                yield read.notice(read.word(entry, "message"))


class CodexSession(JsonLines):
    """A rollout file. New ones have items; older ones have messages and function calls."""

    def __init__(self) -> None:
        self._has_items = False

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "timestamp")
        payload = read.table(entry, "payload")
        match entry.get("type"):
            case "session_meta":
                yield read.start(at)
            case "event_msg":
                for event in self._message(payload):
                    yield event._replace(at=at)
            case "response_item" if not self._has_items:
                for event in _item(payload):
                    yield event._replace(at=at)

    def _message(self, payload: Object) -> Iterator[AgentEvent]:
        match payload.get("type"):
            case "item_completed":
                self._has_items = True
                item = read.table(payload, "item")
                yield from _call(item)
                yield from _completed(item)
            case "user_message" if not self._has_items:
                yield read.prompt(read.word(payload, "message"))
            case "agent_message" if not self._has_items:
                yield read.message(read.word(payload, "message"))
            case "agent_reasoning" if not self._has_items:
                yield read.thinking(read.word(payload, "text"))
            case "task_complete" | "turn_complete":
                yield read.end(read.word(payload, "last_agent_message"))
            case "turn_aborted":
                yield read.end(read.word(payload, "reason"), is_error=True)
            case "error" | "stream_error":
                yield read.notice(read.word(payload, "message"))


def _kind(item: Object) -> str:
    """The same for `command_execution` and `CommandExecution`."""
    return read.word(item, "type").replace("_", "").lower()


def _call(item: Object) -> Iterator[AgentEvent]:
    call = read.word(item, "id")
    match _kind(item):
        case "commandexecution":
            yield read.tool_call("shell", {"command": item.get("command")}, call)
        case "filechange":
            yield read.tool_call("apply_patch", _changes(item), call)
        case "mcptoolcall":
            name = f"{read.word(item, 'server')}.{read.word(item, 'tool')}"
            yield read.tool_call(name, item.get("arguments"), call)
        case "websearch":
            yield read.tool_call("web_search", read.word(item, "query"), call)


def _completed(item: Object) -> Iterator[AgentEvent]:
    call = read.word(item, "id")
    is_error = item.get("status") in ("failed", "declined", "Failed", "Declined")
    match _kind(item):
        case "agentmessage":
            yield read.message(read.plain_text(item.get("text") or item.get("content")))
        case "usermessage":
            yield read.prompt(read.plain_text(item.get("content")))
        case "reasoning":
            text = item.get("text") or item.get("summary_text") or item.get("summary")
            if text:
                yield read.thinking(read.plain_text(text))
        case "commandexecution":
            code = item.get("exit_code")
            text = read.plain_text(item.get("aggregated_output"))
            yield read.tool_result(text, call, is_error=is_error or code not in (0, None))
        case "filechange":
            yield read.tool_result("", call, is_error=is_error)
        case "mcptoolcall":
            text = read.plain_text(item.get("result") or item.get("error"))
            yield read.tool_result(text, call, is_error=is_error)
        case "websearch":
            yield read.tool_result("", call)
        case "error":
            yield read.notice(read.word(item, "message"))


def _changes(item: Object) -> str:
    changes = item.get("changes")
    if isinstance(changes, dict):
        return "\n".join(str(path) for path in changes)
    found = read.entries(item, "changes")
    return "\n".join(f"{read.word(one, 'kind')} {read.word(one, 'path')}".strip() for one in found)


def _item(payload: Object) -> Iterator[AgentEvent]:
    call = read.word(payload, "call_id")
    match payload.get("type"):
        case "function_call" | "custom_tool_call":
            given = payload.get("arguments") or payload.get("input")
            yield read.tool_call(read.word(payload, "name"), given, call)
        case "local_shell_call":
            yield read.tool_call("shell", payload.get("action"), call)
        case "function_call_output" | "custom_tool_call_output":
            yield read.tool_result(read.plain_text(payload.get("output")), call)


def _usage(usage: Object) -> tuple[ModelUsage, ...]:
    if not usage:
        return ()
    return (
        ModelUsage(
            model="",
            input_tokens=read.number(usage, "input_tokens"),
            output_tokens=read.number(usage, "output_tokens"),
            cached_tokens=read.number(usage, "cached_input_tokens"),
        ),
    )
