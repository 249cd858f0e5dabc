"""A selector that works also when the user has no epoll watches left.

The kernel bounds the descriptors that all processes of a user watch with epoll
(`fs.epoll.max_user_watches`). A capsule of the same user can use them all up; every new connection
of the daemon would fail. `poll` has no such bound; it costs time linear in the watched descriptors.
"""

from __future__ import annotations

import errno
import selectors
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

_SCARCE = (errno.ENOSPC, errno.ENOMEM)

Found = list[tuple[selectors.SelectorKey, int]]


class ScarceSelector(selectors.BaseSelector):
    """Uses epoll until a descriptor cannot be registered there for lack of resources, and poll from
    then on, with everything that was registered.
    """

    def __init__(
        self, make: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector
    ) -> None:
        self._current = make()
        self.has_fallen_back = False

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        try:
            return self._current.register(fileobj, events, data)
        except OSError as error:
            if self.has_fallen_back or error.errno not in _SCARCE:
                raise
        self._fall_back()
        return self._current.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._current.unregister(fileobj)

    def modify(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        return self._current.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> Found:
        try:
            return self._current.select(timeout)
        except OSError as error:
            # Only poll allocates memory for this.
            if error.errno != errno.ENOMEM:
                raise
        return []

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._current.get_map()

    def close(self) -> None:
        self._current.close()

    def _fall_back(self) -> None:
        former, self._current = self._current, selectors.PollSelector()
        self.has_fallen_back = True
        for key in list(former.get_map().values()):
            self._current.register(key.fileobj, key.events, key.data)
        former.close()
