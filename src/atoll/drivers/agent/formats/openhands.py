"""OpenHands' stream (`openhands --headless --json`), with other lines between the events."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.agent.formats import json_lines as read
from atoll.drivers.agent.formats.json_lines import JsonLines, Object
from atoll.model.agent import AgentEvent

_MOST = 1 << 20


class OpenHandsFormat(JsonLines):
    """Events that may take several lines; a `FinishAction` or a conversation error ends the turn.

    Text that belongs to no event is not shown: the program draws its screen around them.
    """

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, line: str) -> list[AgentEvent]:
        text = line.rstrip()
        if not self._pending and not text.startswith("{"):
            return []
        self._pending += text + "\n"
        if len(self._pending) > _MOST:
            self._pending = ""
            return [read.notice("an event of more than 1 MiB was left out")]
        if not text.endswith("}"):
            return []
        found = read.parse_object(self._pending)
        if found is None:
            return []
        self._pending = ""
        return list(self.events(found))

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        at = read.moment(entry, "timestamp")
        kind, call = entry.get("kind"), read.word(entry, "tool_call_id")
        match kind:
            case "MessageEvent":
                message = read.table(entry, "llm_message")
                text = read.plain_text(message.get("content"))
                if message.get("role") == "assistant" and text:
                    yield read.message(text, at)
                    # A message without an action waits for the user: the turn is over.
                    yield read.end(at=at)
            case "ActionEvent":
                yield from _action(entry, call, at)
            case "ObservationEvent":
                seen = read.table(entry, "observation")
                is_error = seen.get("is_error") is True or _code(seen) not in (0, None)
                text = read.plain_text(seen.get("content") or seen.get("output"))
                yield read.tool_result(text, call, is_error=is_error, at=at)
            case "AgentErrorEvent":
                yield read.tool_result(read.word(entry, "error"), call, is_error=True, at=at)
            case "ConversationErrorEvent":
                text = read.word(entry, "detail", "code")
                yield read.failure(text, at)
                yield read.end(text, is_error=True, at=at)


def _action(entry: Object, call: str, at: float | None) -> Iterator[AgentEvent]:
    action = read.table(entry, "action")
    if text := read.plain_text(entry.get("thought")):
        yield read.message(text, at)
    if action.get("kind") == "FinishAction":
        text = read.word(action, "message")
        if text:
            yield read.message(text, at)
        yield read.end(at=at)
        return
    given = {key: value for key, value in action.items() if key != "kind"}
    yield read.tool_call(read.word(entry, "tool_name"), given, call, at)


def _code(seen: Object) -> object:
    return seen.get("exit_code")
