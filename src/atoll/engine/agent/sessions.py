"""Reads the session file in which an agent keeps its conversation; inside, since it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atoll.drivers import registry
from atoll.engine.run import internal_runs
from atoll.engine.state.session import Session
from atoll.host.process import wait_until
from atoll.model.adapter import AdapterSpec
from atoll.model.agent import AgentEvent, AgentEventKind
from atoll.model.errors import AtollError
from atoll.model.state import CapsuleRecord

_LIMIT_BYTES = 8 << 20
_TIMEOUT_S = 20.0
_LOOK_S = 2.0
_NEWEST = (
    'cd "$HOME" || exit 0; newest=; for f in $1; do '
    'if test -f "$f" && { test -z "$newest" || test "$f" -nt "$newest"; }; then newest=$f; fi; '
    'done; test -z "$newest" || tail -c "$2" -- "$newest"'
)
"""The glob is of an adapter file, and is expanded by the shell inside."""


def follow_session(
    session: Session,
    capsule: CapsuleRecord,
    spec: AdapterSpec,
    *,
    since: float,
    is_over: Callable[[], bool],
) -> Iterator[AgentEvent]:
    """The events in the session file until `is_over`, each once."""
    shown = 0
    while True:
        is_last = is_over()
        found = list(read_session(session, capsule, spec, since=since))
        yield from found[shown:]
        shown = max(shown, len(found))
        if is_last:
            return
        wait_until(is_over, timeout_s=_LOOK_S, interval_s=0.2)


def read_session(
    session: Session, capsule: CapsuleRecord, spec: AdapterSpec, *, since: float
) -> Iterator[AgentEvent]:
    """The events in the newest session file, from the moment `since` on where they have a time.

    What cannot be read is one notice: the file is the agent's own.
    """
    argv = ("/bin/sh", "-c", _NEWEST, "sh", spec.session.transcript, str(_LIMIT_BYTES - 65536))
    try:
        done = internal_runs.ask(
            session, capsule, argv, timeout_s=_TIMEOUT_S, limit_bytes=_LIMIT_BYTES
        )
    except AtollError as error:
        yield AgentEvent(AgentEventKind.NOTICE, f"the session cannot be read: {error.message}")
        return
    reader = registry.event_format(spec.session.format or "text")
    for line in done.stdout.decode(errors="replace").split("\n"):
        for event in reader.feed(line):
            is_earlier = event.at is not None and event.at < since
            if not is_earlier and event.kind is not AgentEventKind.PROMPT:
                yield event
