"""What it costs to reach a capsule's port: bytes and requests that are carried, against direct."""

from __future__ import annotations

import json
import os
import statistics

from atoll.engine.bench.table import BenchReport, Row, at_most, at_most_times
from atoll.engine.bench.workspace import BenchOptions, OnProgress, machine_of, require_parent
from atoll.host.process import run
from atoll.host.programs import python_command

_BYTES = 1 << 30
_REQUESTS = 200
_LEAST_SHARE = 0.6
"""Of the throughput of a direct connection."""
_ADDED_S = 0.0003
_MOST_TIMES = 2
"""How much slower a capsule may answer while another one floods the daemon."""
# By name only: the daemon is a face, which the engine does not know.
_FORWARDER = "atoll.daemon.ports.bench_forwarder"


def measure(order: BenchOptions, on_progress: OnProgress) -> BenchReport:
    """Every sample of one way stands between two of the other."""
    parent = require_parent(order)
    load_before = os.getloadavg()
    count, size = max(2, order.repeat // 2), max(1 << 20, int(_BYTES * order.scale))
    on_progress(
        f"carrying {count} x {size >> 20} MiB and {count * _REQUESTS:,} requests, both ways"
    )
    carrier = python_command(_FORWARDER, site=False)
    words = {"count": count, "bytes": size, "requests": _REQUESTS, "carrier": carrier}
    argv = python_command("atoll.engine.bench.traffic", site=False)
    said = run(argv, stdin=json.dumps(words).encode())
    found = json.loads(said.stdout)
    return BenchReport(
        machine=machine_of(parent, "none", load_before),
        projects=(),
        rows=(
            *_rows(found["carried"], found["direct"], size),
            *_neighbour_rows(found["neighbour"]),
        ),
        skipped=(),
    )


def _rows(carried: dict[str, list[float]], direct: dict[str, list[float]], size: int) -> list[Row]:
    names = {
        "bulk": f"{size >> 20} MiB through a published port",
        "request": "a request over an open connection",
        "connection": "a request with its own connection",
    }
    aims = {"bulk": at_most_times(round(1 / _LEAST_SHARE, 2))}
    rows = [
        Row("", name, tuple(carried[key]), "direct", tuple(direct[key]), aims.get(key))
        for key, name in names.items()
    ]
    for key in ("request", "connection"):
        base = statistics.median(direct[key])
        added = tuple(sample - base for sample in carried[key])
        rows.append(Row("", f"added to {names[key]}", added, aim=at_most(_ADDED_S)))
    return rows


def _neighbour_rows(found: dict[str, list[float]]) -> list[Row]:
    """What a flood costs a neighbour. Part of that are the processors that the flood itself uses:
    the second row has the same flood past the daemon.
    """
    alone = tuple(found["alone"])
    through = "a request beside a neighbour that floods the daemon"
    past = "the same, and the flood does not go through the daemon"
    return [
        Row("", through, tuple(found["beside"]), "alone", alone, at_most_times(_MOST_TIMES)),
        Row("", past, tuple(found["control"]), "alone", alone),
    ]
