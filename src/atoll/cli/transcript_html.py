"""A conversation as one self-contained HTML page: no script, no request to anywhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from atoll.cli import phrases
from atoll.cli.harmless import clean

if TYPE_CHECKING:
    from atoll.model.shapes import AgentEventShape, TranscriptShape, TurnShape, VerdictShape

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: 13px/1.45 monospace; }
section { border-top: 1px solid #8886; margin-top: 1.5rem; }
article { margin: .6rem 0; padding: .4rem .8rem; border-left: 3px solid #8886; }
.prompt { border-color: #27c; font-weight: 600; } .message { border-color: #2a7; }
.tool-call { border-color: #b80; } .error, .bad { border-color: #c33; }
.thinking, .notice { opacity: .7; } .verdict { font-weight: 600; } small { opacity: .7; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_html(data: TranscriptShape) -> str:
    """Everything in it is escaped: the text is an agent's."""
    title = f"{_safe(data['capsule'])}: {_safe(data['agent'])}"
    turns = "\n".join(_turn(turn) for turn in data["turns"])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{title}</h1>\n{turns}\n</body></html>"
    )


def _turn(turn: TurnShape) -> str:
    events = "\n".join(_event(event) for event in turn["events"])
    end = "" if turn["verdict"] is None else _verdict(turn["verdict"])
    head = f"Turn {turn['number']} <small>{phrases.moment(turn['at'])}</small>"
    return f"<section><h2>{head}</h2>\n{events}\n{end}</section>"


def _verdict(verdict: VerdictShape) -> str:
    reason = f": {_safe(verdict['reason'])}" if verdict["reason"] else ""
    checks = "".join(
        f"<li>{'passed' if one['passed'] else 'failed'}: <code>{_safe(one['command'])}</code>"
        for one in verdict["checks"]
    )
    return f'<p class="verdict">{_safe(verdict["state"])}{reason}</p><ul>{checks}</ul>'


def _event(event: AgentEventShape) -> str:
    label = _safe(" ".join(filter(None, [event["kind"], event["tool"]])))
    bad = " bad" if event["is_error"] else ""
    return (
        f'<article class="{_safe(event["kind"])}{bad}"><small>{label}</small>'
        f"<pre>{_safe(event['text'])}</pre></article>"
    )


def _safe(text: str) -> str:
    return escape(clean(text.encode(errors="replace")), quote=True)
