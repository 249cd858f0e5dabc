"""Runs in a capsule's own environment, followed to their end and exported."""

from __future__ import annotations

from atoll.engine.capsule import exports, parts
from atoll.engine.enclosure import enclosures
from atoll.engine.network import ports
from atoll.engine.run import runs
from atoll.engine.run.captured_output import Captured, Result
from atoll.engine.state.session import Session
from atoll.model.enclosure import Enclosure
from atoll.model.errors import IsolationError
from atoll.model.state import CapsuleRecord, Reason, Run, require_outcome


def variables(session: Session, capsule: CapsuleRecord) -> dict[str, str]:
    """The environment variables that every process of a capsule gets."""
    return {
        "ATOLL_CAPSULE": capsule.name,
        "ATOLL_PROJECT_NAME": session.store.project_name(capsule.project_id),
        **ports.variables_of(session, capsule),
    }


def enclosure(session: Session, capsule: CapsuleRecord, *, is_open: bool = False) -> Enclosure:
    """How a process is started inside, with the capsule's own variables."""
    inside = enclosures.enclosure(session, capsule, is_open=is_open)
    own = variables(session, capsule)
    for part in parts.registered():
        own |= part.variables(session, capsule, inside)
    return inside.adding(own)


def follow(session: Session, capsule: CapsuleRecord, run: Run, *, stdin: bytes = b"") -> Result:
    """Feeds and reads a foreground run to its end."""
    captured = Captured()
    channel = runs.find_channel(session, run, role="foreground")
    if channel is not None:
        with channel:
            channel.write(stdin)
            channel.close_input()
            for stream, data in channel.exchange():
                captured.add(stream, data)
    ended = conclude(session, capsule, run)
    return Result(
        run=ended,
        outcome=require_outcome(ended),
        stdout=captured.content("out"),
        stderr=captured.content("err"),
        dropped_bytes=captured.dropped_bytes("out") + captured.dropped_bytes("err"),
    )


def conclude(
    session: Session, capsule: CapsuleRecord, run: Run, *, is_exported: bool = True
) -> Run:
    """Waits for the end of a run, records it and exports the capsule's commits, unless they are not
    to be exported yet.

    Raises IsolationError when a wall could not be built: then nothing was run.
    """
    session.reach("run.ended", run.label)
    ended = runs.wait(session, run)
    if (outcome := require_outcome(ended)).reason is Reason.NO_WALLS:
        raise IsolationError(
            f"cannot create the sandbox of `{run.label}`: {outcome.message}",
            hint="atoll doctor",
        )
    session.reach("run.recorded", run.label)
    if is_exported:
        exports.export_after_run(session, capsule)
    return ended
