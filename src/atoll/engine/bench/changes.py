"""What a change in the checkout costs the next `new`, with the daemon watching."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.drivers.layers.dependency_layers import load_carried
from atoll.engine.bench.measures import Subject
from atoll.engine.bench.peers import measured
from atoll.engine.bench.table import Row, at_most_times
from atoll.engine.history import checkout_watch
from atoll.engine.network import daemon_client
from atoll.host.process import wait_until
from atoll.model.daemon_messages import StatusReply, StatusRequest
from atoll.model.errors import AtollError

_WATCHED_S = 120.0
_SAMPLES = 4
"""Each adds a layer; after six of them a walk makes one of them all."""


def change(subject: Subject) -> Iterator[Row]:
    """`new` without a change, and after one file of the dependencies has changed in place."""
    if not subject.generated.shape.modules:
        subject.skip("new after a change: it has no dependencies")
        return
    reason = _start_watch(subject)
    if reason is not None:
        subject.skip(f"new after a change: {reason}")
        return
    place = subject.project.root / "node_modules" / "package-0000" / "index.js"
    before = place.read_bytes()
    unchanged: list[float] = []
    changed: list[float] = []
    try:
        for number in range(_SAMPLES):
            unchanged.append(_new(subject))
            place.write_bytes(f"// changed {number}\n".encode())
            changed.append(_new(subject))
    finally:
        place.write_bytes(before)
        daemon_client.stop(subject.project.session)
    same = "new, nothing changed, watched"
    yield Row(subject.size, same, tuple(unchanged))
    yield Row(subject.size, "new after one changed file, watched", tuple(changed), same,
              tuple(unchanged), at_most_times(2))  # fmt: skip


def _new(subject: Subject) -> float:
    took_s, capsule = measured(subject.make)
    subject.remove(capsule)
    return took_s


def _start_watch(subject: Subject) -> str | None:
    """Waits until the daemon watches and has looked at everything; else says why it does not."""
    session, record = subject.project.session, subject.project.record
    if not checkout_watch.is_wanted(session):
        return f"`{daemon_client.OFF}` or `{checkout_watch.OFF}` is `off`"
    checkout_watch.note_use(session, record)
    try:
        daemon_client.ask(session, StatusRequest(), StatusReply)
    except AtollError as error:
        return str(error)

    def is_watched() -> bool:
        answer = checkout_watch.ask_changes(session, record, load_carried(subject.pool))
        return answer.is_continued and not daemon_client.status(session)["freezing"]

    if wait_until(is_watched, timeout_s=_WATCHED_S, interval_s=0.2):
        return None
    return "the checkout is not watched"
