"""The floor: the fewest system calls that give a command its own copy-on-write view of a base.

A program of its own, so that what is forked is small: a bare interpreter with the keeper's calls
and nothing of the engine. One sample is: a fresh upper layer, fork, unshare, one overlay, exec,
exit. Anybody who clones by overlay needs at least these. What an interpreter's fork costs more
than that of a small program is reported beside it, by samples that start the command without one.
"""

from __future__ import annotations

import json
import os
import sys
import time

from atoll.keeper import mounts
from atoll.model.enclosure import Overlay, View, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Reads `{"count", "scratch", "view", "program"}` from standard input; writes two lists of
    seconds: with fork, and with vfork.

    The view's only mount gets a new `upper` and `work` below `scratch` in every round.
    """
    task = json.load(sys.stdin)
    view, program, scratch = parse(View, task["view"]), task["program"], task["scratch"]
    forked, spawned = [], []
    for number in range(task["count"]):
        forked.append(_forked(_fresh(view, f"{scratch}/{number}-f"), program))
        spawned.append(_spawned(_fresh(view, f"{scratch}/{number}-v"), program))
    os.write(1, json.dumps([forked, spawned]).encode())


def _fresh(view: View, place: str) -> View:
    mount = _mount_of(view)._replace(upper=f"{place}-upper", work=f"{place}-work")
    return view._replace(mounts=(mount,))


def _mount_of(view: View) -> Overlay:
    [mount] = view.mounts
    if not isinstance(mount, Overlay):
        raise SystemExit("the view is not an overlay")
    return mount


def _make_upper(view: View) -> None:
    os.mkdir(_mount_of(view).upper)
    os.mkdir(_mount_of(view).work)


def _forked(view: View, program: str) -> float:
    started = time.perf_counter()
    _make_upper(view)
    pid = os.fork()
    if pid == 0:
        try:
            mounts.enter_view(view)
            os.execv(program, [program])  # noqa: S606 - what is measured
        finally:
            os._exit(127)
    _await(pid)
    return time.perf_counter() - started


def _spawned(view: View, program: str) -> float:
    """The view is this child's own, so that only starting the command is left to a new process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _in_child(lambda: os.write(writer, repr(_enter_and_spawn(view, program)).encode()))
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _await(pid)
    return float(text)


def _enter_and_spawn(view: View, program: str) -> float:
    started = time.perf_counter()
    _make_upper(view)
    mounts.enter_view(view)
    _await(os.posix_spawn(program, [program], {}))
    return time.perf_counter() - started


def _in_child(body: Callable[[], object]) -> None:
    code = 127
    try:
        body()
        code = 0
    finally:
        os._exit(code)


def _await(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise SystemExit(f"the floor's own view failed with status {status}")
