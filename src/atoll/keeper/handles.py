"""Descriptors that are closed at the end of a block."""

from __future__ import annotations

import os


class Opened:
    """A class, since it is entered very often."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
