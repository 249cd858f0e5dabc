"""The groups of measurements, by the names that `--only` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atoll.engine.bench import measures
from atoll.engine.bench.changes import change
from atoll.engine.bench.measures import Subject
from atoll.engine.bench.table import Row

GROUPS: dict[str, Callable[[Subject], Iterator[Row]]] = {
    "clone": measures.clone,
    "removal": measures.removal,
    "many": measures.many,
    "snapshot": measures.snapshot,
    "status": measures.status,
    "shell": measures.shell,
    "change": change,
    "refresh": measures.refresh,
    "peers": measures.others,
}
"""In the order in which they are measured: what leaves caches or the disk changed comes late."""
