"""Follows the events that the store records, from a cursor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from atoll.engine.state.store import Store
from atoll.host.process import wait_until
from atoll.model.state import Event

KEPT = 10_000
"""How many events upkeep keeps."""
_PAGE = 500


def read_events(
    store: Store,
    after: int,
    *,
    follow: bool,
    matches: Callable[[Event], bool],
    timeout_s: float | None = None,
) -> Iterator[Event]:
    """Matching events after a cursor, the oldest first; with `follow`, also those to come, for at
    most `timeout_s`.

    Raises StateError when events after the cursor are no longer kept.
    """
    cursor = after
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        # Before the query, so that no change in between is missed.
        stamp = store.stamp()
        found = store.events(cursor, limit=_PAGE)
        for event in found:
            cursor = event.id
            if matches(event):
                yield event
        if found:
            continue
        if not follow:
            return
        left_s = None if deadline is None else deadline - time.monotonic()
        if not wait_until(lambda seen=stamp: store.stamp() != seen, timeout_s=left_s):  # type: ignore[misc]
            return
