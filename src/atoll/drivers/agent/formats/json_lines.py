"""Reads lines of JSON, and takes what is usable out of values of any shape."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from atoll.model.agent import AgentEvent, AgentEventKind, ModelUsage

LINE_LIMIT: Final = 8 << 20
TEXT_LIMIT: Final = 16_384
NOTICE_LIMIT: Final = 500
NAME_LIMIT: Final = 100
_LARGEST = 1 << 53
_SHELL = re.compile(r"(?:/usr)?/bin/(?:ba|z)?sh -l?c ")
_SURROGATES = re.compile("[\ud800-\udfff]")

Object = Mapping[str, object]
NONE: Object = {}


class JsonLines:
    """A stream of JSON objects, one per line. Other lines are notices."""

    def feed(self, line: str) -> list[AgentEvent]:
        if len(line) > LINE_LIMIT:
            return [notice(f"a line of {len(line)} characters was left out")]
        text = line.strip()
        if not text:
            return []
        found = parse_object(text) if text[0] == "{" else None
        if found is None:
            return [notice(text)]
        return list(self.events(found))

    def events(self, entry: Object) -> Iterator[AgentEvent]:
        """The events of one object, which may have any shape."""
        raise NotImplementedError


def parse_object(text: str) -> Object | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def clipped(text: str, limit: int = TEXT_LIMIT) -> str:
    """At most `limit` characters, none of which cannot be encoded."""
    kept = text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
    return _SURROGATES.sub("\ufffd", kept)


def notice(text: str, at: float | None = None) -> AgentEvent:
    return AgentEvent(AgentEventKind.NOTICE, clipped(text, NOTICE_LIMIT), at=at)


def start(at: float | None = None) -> AgentEvent:
    return AgentEvent(AgentEventKind.START, at=at)


def message(text: str, at: float | None = None) -> AgentEvent:
    return AgentEvent(AgentEventKind.MESSAGE, clipped(text), at=at)


def prompt(text: str, at: float | None = None) -> AgentEvent:
    return AgentEvent(AgentEventKind.PROMPT, clipped(text), at=at)


def thinking(text: str, at: float | None = None) -> AgentEvent:
    return AgentEvent(AgentEventKind.THINKING, clipped(text), at=at)


def failure(text: str, at: float | None = None) -> AgentEvent:
    return AgentEvent(AgentEventKind.ERROR, clipped(text), is_error=True, at=at)


def tool_call(tool: str, given: object, call: str = "", at: float | None = None) -> AgentEvent:
    """A call with what matters of its input as text: a command, a path, a change."""
    return AgentEvent(
        AgentEventKind.TOOL_CALL,
        clipped(describe_input(given)),
        tool=clipped(tool, NAME_LIMIT),
        call=clipped(call, NAME_LIMIT),
        at=at,
    )


def tool_result(
    text: str, call: str = "", *, tool: str = "", is_error: bool = False, at: float | None = None
) -> AgentEvent:
    return AgentEvent(
        AgentEventKind.TOOL_RESULT,
        clipped(text),
        tool=clipped(tool, NAME_LIMIT),
        call=clipped(call, NAME_LIMIT),
        is_error=is_error,
        at=at,
    )


def end(
    text: str = "",
    *,
    is_error: bool = False,
    usage: tuple[ModelUsage, ...] = (),
    at: float | None = None,
) -> AgentEvent:
    return AgentEvent(AgentEventKind.END, clipped(text), is_error=is_error, usage=usage, at=at)


def table(entry: object, *keys: str) -> Object:
    """The table at a path of keys; an empty one if there is none."""
    for key in keys:
        entry = entry.get(key) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, Mapping) else NONE


def entries(entry: Object, key: str) -> Iterator[Object]:
    """The tables of a list."""
    found = entry.get(key)
    for one in found if isinstance(found, list) else ():
        if isinstance(one, Mapping):
            yield one


def word(entry: Object, *keys: str) -> str:
    """The first of these values that is a text, and not empty."""
    return next((v for key in keys if isinstance(v := entry.get(key), str) and v), "")


def number(entry: Object, *keys: str) -> int:
    """The first of these values that is a usable number; 0 if there is none."""
    return next((int(v) for key in keys if (v := find_number(entry.get(key))) is not None), 0)


def find_number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not isinstance(value, (int, float)):
        return None
    return float(value) if -_LARGEST < value < _LARGEST and math.isfinite(value) else None


def moment(entry: Object, *keys: str) -> float | None:
    """A time of these keys in seconds: a date, or a number of seconds or milliseconds."""
    for key in keys:
        value = entry.get(key)
        seconds = find_number(value)
        if seconds is not None:
            return seconds / 1000 if seconds > 1e11 else seconds
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value).timestamp()
            except (ValueError, OverflowError, OSError):
                continue
    return None


def plain_text(value: object, depth: int = 0) -> str:
    """The text of a message or a result: texts, lists of parts with `text`, anything else as
    JSON.
    """
    if isinstance(value, str) or value is None:
        return value or ""
    if isinstance(value, list) and depth < 4:
        return "\n".join(filter(None, (plain_text(one, depth + 1) for one in value)))
    if isinstance(value, Mapping) and depth < 4:
        for key in ("text", "content", "output", "result", "message", "error", "summary"):
            if value.get(key) is not None:
                return plain_text(value[key], depth + 1)
    return compact(value)


def compact(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def describe_input(given: object) -> str:
    """What a tool is called with, for people: the command, or the path with the change."""
    if isinstance(given, str):
        inner = parse_object(given) if given[:1] == "{" else None
        return given if inner is None else describe_input(inner)
    if not isinstance(given, Mapping):
        return "" if given is None else compact(given)
    command = given.get("command") or given.get("cmd") or given.get("commands")
    path = word(
        given, "file_path", "filePath", "path", "absolute_path", "filename", "notebook_path"
    )
    if path:
        return "\n".join([path, *_change(given)])
    if isinstance(command, str):
        return _without_shell(command)
    if isinstance(command, list) and command and all(isinstance(one, str) for one in command):
        is_shell = len(command) == 3 and command[1] in ("-c", "-lc")
        return str(command[2]) if is_shell else " ".join(command)
    short = word(given, "pattern", "query", "url", "prompt", "description", "input", "patch")
    return short or compact(given)


def _without_shell(command: str) -> str:
    """`make test` for `/bin/bash -lc 'make test'`."""
    if not _SHELL.match(command) or len(command) > TEXT_LIMIT:
        return command
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 else command


def _change(given: Object) -> Iterator[str]:
    """The lines of a change: those of an edit with `-` and `+`, those of a new file with `+`."""
    before = word(given, "old_string", "oldString", "old_str", "oldText", "before")
    after = word(given, "new_string", "newString", "new_str", "newText", "after")
    after = after or word(given, "content", "file_text", "contents", "new_source", "new_text")
    yield from (f"-{line}" for line in before[:TEXT_LIMIT].splitlines())
    yield from (f"+{line}" for line in after[:TEXT_LIMIT].splitlines())
    for edit in entries(given, "edits"):
        yield from _change({key: value for key, value in edit.items() if key != "edits"})
