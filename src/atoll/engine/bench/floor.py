"""The floor: the fewest system calls that give a command its own copy-on-write view of a base.

A program of its own, so that what is forked is small: a bare interpreter with the keeper's calls
and nothing of the engine. One sample is: a fresh upper layer, fork, unshare, one overlay, exec,
exit. Anybody who clones by overlay needs at least these.
"""

from __future__ import annotations

import json
import os
import sys
import time

from atoll.keeper import mounts


def main() -> None:
    """Reads `{"count", "scratch", "view", "program"}` from standard input, writes seconds.

    The view's only mount gets a new `upper` and `work` below `scratch` in every round.
    """
    told = json.load(sys.stdin)
    view, program = told["view"], told["program"]
    samples = []
    for number in range(told["count"]):
        place = f"{told['scratch']}/{number}"
        samples.append(_measure(view, place, program))
    os.write(1, json.dumps(samples).encode())


def _measure(view: dict[str, object], place: str, program: str) -> float:
    mount = view["mounts"][0]  # type: ignore[index]
    upper, work = f"{place}-upper", f"{place}-work"
    fresh = {**view, "mounts": [{**mount, "upper": upper, "work": work}]}
    started = time.perf_counter()
    os.mkdir(upper)
    os.mkdir(work)
    pid = os.fork()
    if pid == 0:
        try:
            mounts.enter_view(fresh)
            os.execv(program, [program])  # noqa: S606 - what is measured
        finally:
            os._exit(127)
    _, status = os.waitpid(pid, 0)
    took_s = time.perf_counter() - started
    if status != 0:
        raise SystemExit(f"the floor's own view failed with status {status}")
    return took_s
