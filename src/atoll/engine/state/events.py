"""Follows the events that the store records, from a cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atoll.engine.state.store import Store
from atoll.host.process import wait_until
from atoll.model.state import Event

KEPT = 10_000
"""How many events upkeep keeps."""
_PAGE = 500
_INTERVAL_S = 0.1


def read_events(
    store: Store, after: int, *, follow: bool, matches: Callable[[Event], bool]
) -> Iterator[Event]:
    """Matching events after a cursor, the oldest first; with `follow`, also those to come.

    Raises StateError when events after the cursor are no longer kept.
    """
    cursor = after
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
        wait_until(lambda seen=stamp: store.stamp() != seen, timeout_s=None, interval_s=_INTERVAL_S)  # type: ignore[misc]
