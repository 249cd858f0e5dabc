"""A conversation as one self-contained HTML page: no script, no request to anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from atoll.cli import phrases
from atoll.cli.harmless import clean
from atoll.model import units
from atoll.model.agent import AgentEventKind, AgentState

if TYPE_CHECKING:
    from atoll.model.shapes import (
        AgentEventShape,
        AgentShape,
        CheckShape,
        TranscriptShape,
        TurnShape,
        VerdictShape,
    )

_STYLE = """
:root { color-scheme: light dark; --line: #d8dbe2; --dim: #636b78; --back: #fff; --box: #f5f6f9;
  --ask: #1f6feb; --say: #1a7f37; --act: #9a6700; --bad: #cf222e; --text: #1c2128; }
@media (prefers-color-scheme: dark) { :root { --line: #343b46; --dim: #9aa4b2; --back: #0f1319;
  --box: #171c24; --ask: #6cb0ff; --say: #56c271; --act: #e0b050; --bad: #ff7b72;
  --text: #dfe4ec; } }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 58rem; margin: 2rem auto 4rem; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0; }
header p { margin: .2rem 0 1rem; color: var(--dim); }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2.2rem; margin: 0; padding: .8rem 1rem;
  background: var(--box); border: 1px solid var(--line); border-radius: 8px; }
dt { font-size: .75rem; color: var(--dim); } dd { margin: 0; font-weight: 600; }
section { margin-top: 2.2rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.head { display: flex; gap: .8rem; align-items: baseline; margin-bottom: .8rem; }
time, .at { color: var(--dim); font-size: .8rem; font-weight: 400; }
article { margin: .7rem 0; padding: .1rem 0 .1rem .9rem; border-left: 3px solid var(--line); }
.label { font-size: .8rem; font-weight: 600; color: var(--dim); }
.label code { color: var(--text); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .15rem 0 0;
  font: 13px/1.5 ui-monospace, monospace; }
.prompt, .message { border-color: var(--say); }
.prompt pre, .message pre { font: inherit; }
.prompt { border-color: var(--ask); background: var(--box); padding: .5rem .9rem;
  border-radius: 0 8px 8px 0; }
.prompt .label { color: var(--ask); } .message .label { color: var(--say); }
.tool-call { border-color: var(--act); margin-bottom: .2rem; }
.tool-call .label { color: var(--act); }
.tool-result { margin-top: 0; margin-left: 1.2rem; }
.tool-result pre { background: var(--box); padding: .5rem .7rem; border-radius: 6px; }
.thinking, .notice { color: var(--dim); }
.error, .bad { border-color: var(--bad); } .error .label, .bad .label { color: var(--bad); }
summary { cursor: pointer; }
.add { color: var(--say); } .del { color: var(--bad); } .hunk { color: var(--ask); }
.verdict { padding: .6rem .9rem; border-radius: 8px; background: var(--box);
  border: 1px solid var(--line); }
.state { font-weight: 700; } .good .state { color: var(--say); } .bad .state { color: var(--bad); }
.verdict ul { margin: .3rem 0 0; padding-left: 1.2rem; }
@media print { body { margin: 0; max-width: none; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LABELS = {
    AgentEventKind.PROMPT: "Prompt",
    AgentEventKind.MESSAGE: "Agent",
    AgentEventKind.THINKING: "Thinking",
    AgentEventKind.TOOL_CALL: "Tool",
    AgentEventKind.TOOL_RESULT: "Result",
    AgentEventKind.NOTICE: "Notice",
    AgentEventKind.ERROR: "Error",
    AgentEventKind.END: "Last words",
}
_FAILED = {
    AgentEventKind.TOOL_RESULT: "Failed result",
    AgentEventKind.END: "The agent reports an error",
}
_JOINED = frozenset({AgentEventKind.MESSAGE, AgentEventKind.NOTICE})
"""Programs that write plain text report each line as an event."""
_FOLDED = frozenset({AgentEventKind.THINKING, AgentEventKind.TOOL_CALL, AgentEventKind.TOOL_RESULT})
_OPEN_LINES = 16
"""A longer text of a kind in `_FOLDED` is closed until it is clicked."""
_DIFF = re.compile(r"^(?:@@ |diff --git |--- |\+\+\+ )", re.MULTILINE)
_MARKS = {"+": "add", "-": "del", "@": "hunk"}
_GOOD = frozenset({AgentState.FINISHED})
_BAD = frozenset({AgentState.FAILED, AgentState.LOST, AgentState.OVER_BUDGET})


class _Block(NamedTuple):
    """What is shown as one piece of a turn."""

    kind: AgentEventKind
    text: str
    tool: str
    is_error: bool
    at: float | None


def render_html(data: TranscriptShape, about: AgentShape | None = None) -> str:
    """Everything in it is escaped: the text is an agent's. `about` is what `agents` says of it."""
    named = [data["capsule"], data["agent"], *([] if about is None else [about["project"]])]
    title = " · ".join(map(_safe, named))
    facts = "" if about is None else _facts(data, about)
    turns = "\n".join(_turn(turn) for turn in data["turns"])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f"<body><header><h1>{_safe(data['capsule'])}</h1>\n{_subtitle(data, about)}{facts}</header>"
        f"\n{turns}\n</body></html>"
    )


def _subtitle(data: TranscriptShape, about: AgentShape | None) -> str:
    project = "" if about is None else f" in {_safe(about['project'])}"
    return f"<p>A conversation with {_safe(data['agent'])}{project}</p>"


def _facts(data: TranscriptShape, about: AgentShape) -> str:
    used = about["usage"]
    tokens = f"{about['tokens']:,}" if used else "-"
    cost = about["cost_usd"]
    shown = "-" if not used else "unknown" if cost is None else units.render_usd(cost)
    facts = {
        "Project": about["project"],
        "Agent": about["agent"],
        "Model": ", ".join(one["model"] for one in used) or "-",
        "State": about["state"],
        "Turns": str(len(data["turns"])),
        "Tokens": tokens,
        "Cost": shown,
    }
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{_safe(text)}</dd></div>" for name, text in facts.items()
    )
    return f"<dl>{rows}</dl>"


def _turn(turn: TurnShape) -> str:
    blocks = "\n".join(map(_article, _blocks(turn["events"])))
    end = "" if turn["verdict"] is None else _verdict(turn["verdict"])
    running = '<p class="verdict">still at work</p>' if turn["running"] else ""
    head = f"<h2>Turn {turn['number']}</h2><time>{phrases.moment(turn['at'])}</time>"
    return f'<section><div class="head">{head}</div>\n{blocks}\n{end}{running}</section>'


def _blocks(events: Sequence[AgentEventShape]) -> Iterator[_Block]:
    """The events with something to show; lines of one text are joined, and an end that repeats the
    last message is left out.
    """
    held: _Block | None = None
    said = ""
    for event in events:
        block = _block(event)
        if block.kind is AgentEventKind.MESSAGE and block.text.strip():
            said = f"{said}\n{block.text}".strip() if _continues(held, block) else block.text
        if _is_empty(block, said):
            continue
        if held is not None and _continues(held, block):
            held = held._replace(text=f"{held.text}\n{block.text}")
            continue
        if held is not None:
            yield held
        held = block
    if held is not None:
        yield held


def _block(event: AgentEventShape) -> _Block:
    text = clean(event["text"].encode(errors="replace")).strip("\n")
    tool = clean(event["tool"].encode(errors="replace")).replace("\n", " ")
    return _Block(AgentEventKind(event["kind"]), text, tool, event["is_error"], event["at"])


def _is_empty(block: _Block, said: str) -> bool:
    match block.kind:
        case AgentEventKind.START:
            return True
        case AgentEventKind.END:
            return not block.is_error and block.text.strip() in ("", said.strip())
        case AgentEventKind.TOOL_CALL:
            return not block.text.strip() and not block.tool
        case AgentEventKind.TOOL_RESULT:
            return not block.text.strip() and not block.is_error
    return not block.text.strip()


def _continues(before: _Block | None, block: _Block) -> bool:
    is_line = "\n" not in block.text
    return before is not None and before.kind is block.kind and block.kind in _JOINED and is_line


def _article(block: _Block) -> str:
    label = (_FAILED if block.is_error else _LABELS).get(block.kind, _LABELS[block.kind])
    if block.kind is AgentEventKind.TOOL_CALL:
        label = f"<code>{escape(block.tool or 'tool')}</code>"
    at = "" if block.at is None else f' <span class="at">{phrases.moment(block.at)[11:]}</span>'
    head = f'<span class="label">{label}</span>{at}'
    body = f"<pre>{_text(block.text)}</pre>" if block.text.strip() else ""
    bad = " bad" if block.is_error else ""
    lines = block.text.count("\n") + 1
    if block.kind in _FOLDED and lines > _OPEN_LINES:
        head = f'<summary>{head} <span class="at">{lines} lines</span></summary>'
        body, head = f"<details>{head}{body}</details>", ""
    return f'<article class="{block.kind}{bad}">{head}{body}</article>'


def _text(text: str) -> str:
    """Escaped; the lines of a diff are marked."""
    if not _DIFF.search(text):
        return escape(text)
    return "\n".join(_diff_line(line) for line in text.split("\n"))


def _diff_line(line: str) -> str:
    mark = _MARKS.get(line[:1])
    return f'<span class="{mark}">{escape(line)}</span>' if mark else escape(line)


def _verdict(verdict: VerdictShape) -> str:
    state = verdict["state"]
    look = " good" if state in _GOOD else " bad" if state in _BAD else ""
    reason = f": {_safe(verdict['reason'])}" if verdict["reason"] else ""
    checks = "".join(map(_check, verdict["checks"]))
    listed = f"<ul>{checks}</ul>" if checks else ""
    return (
        f'<div class="verdict{look}"><span class="state">{_safe(state)}</span>{reason} '
        f'<span class="at">{phrases.moment(verdict["at"])}</span>{listed}</div>'
    )


def _check(check: CheckShape) -> str:
    mark = (
        '<span class="add">passed</span>' if check["passed"] else '<span class="del">failed</span>'
    )
    output = f"<pre>{_safe(check['output'])}</pre>" if check["output"].strip() else ""
    return f"<li>{mark} <code>{_safe(check['command'])}</code>{output}</li>"


def _safe(text: str) -> str:
    return escape(clean(text.encode(errors="replace")), quote=True)
