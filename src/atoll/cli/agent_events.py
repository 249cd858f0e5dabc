"""Renders what an agent did as text. All of it is hostile: control sequences are removed."""

from __future__ import annotations

import re
from typing import NamedTuple

from atoll.cli.harmless import clean
from atoll.cli.output import paint
from atoll.model.agent import AgentEvent, AgentEventKind

_MOST_LINES = 24
"""Of a tool's call or result; prompts and messages are shown whole."""
_LINE_CHARACTERS = 400
_DIFF = re.compile(r"^(?:@@ |diff --git |--- |\+\+\+ )", re.MULTILINE)


class _Look(NamedTuple):
    """How one kind of event is shown."""

    mark: str = ""
    color: str = ""
    whole: bool = False
    is_diff: bool = False


_LOOKS = {
    AgentEventKind.PROMPT: _Look("> ", "bold", whole=True),
    AgentEventKind.MESSAGE: _Look(whole=True),
    AgentEventKind.THINKING: _Look("~ ", "dim"),
    AgentEventKind.TOOL_RESULT: _Look("  | ", is_diff=True),
    AgentEventKind.NOTICE: _Look("- ", "dim"),
    AgentEventKind.ERROR: _Look("! ", "red", whole=True),
    AgentEventKind.END: _Look("= ", "dim", whole=True),
}


def render_event(event: AgentEvent) -> str:
    """An event as lines that end with a newline; empty for one that is not shown."""
    text = clean(event.text.encode(errors="replace")).strip("\n")
    if event.kind is AgentEventKind.TOOL_CALL:
        return _call(clean(event.tool.encode(errors="replace")).replace("\n", " "), text)
    if event.kind not in _LOOKS:
        return ""
    look = _LOOKS[event.kind]
    if event.is_error:
        look = look._replace(color="red")
    if event.is_error and event.kind is AgentEventKind.TOOL_RESULT:
        look = look._replace(mark="  ! ")
        text = f"failed\n{text}".rstrip("\n")
    if event.kind is AgentEventKind.END:
        said = f": {text}" if text and event.is_error else ""
        what = "an error" if event.is_error else "its end"
        text = f"the agent reports {what}{said}"
    return _block(text, look)


def _call(tool: str, text: str) -> str:
    """A tool's name with what it was given: on one line if that fits."""
    if "\n" not in text and len(text) <= _LINE_CHARACTERS:
        return paint(f"* {tool} {text}".rstrip(), "cyan") + "\n"
    return paint(f"* {tool}", "cyan") + "\n" + _block(text, _Look("  | ", is_diff=True))


def _block(text: str, look: _Look) -> str:
    if not text.strip():
        return ""
    lines = text.split("\n")
    shown = lines if look.whole else lines[:_MOST_LINES]
    is_diff = look.is_diff and _DIFF.search(text) is not None
    found = [_line(line, look, is_diff=is_diff) for line in shown]
    if len(shown) < len(lines):
        found.append(paint(f"{look.mark}… {len(lines) - len(shown)} more lines", "dim"))
    return "".join(f"{line}\n" for line in found)


def _line(line: str, look: _Look, *, is_diff: bool) -> str:
    if not look.whole and len(line) > _LINE_CHARACTERS:
        line = line[: _LINE_CHARACTERS - 1] + "…"
    colors = {"+": "green", "-": "red", "@": "cyan"}
    color = colors.get(line[:1], look.color) if is_diff else look.color
    full = f"{look.mark}{line}".rstrip()
    return paint(full, color) if color else full
