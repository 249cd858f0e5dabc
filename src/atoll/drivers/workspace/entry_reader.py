"""Reads what a walk through a workspace has found."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.host.beneath import EntryKind
from atoll.host.merged import Entry, MergedTree
from atoll.model.untrusted import InsidePath


class Found:
    """A `TreeReader` that opens what a walk has found without another look through all layers."""

    def __init__(self, tree: MergedTree, entries: Mapping[InsidePath, Entry]) -> None:
        self._tree = tree
        self._entries = entries

    def kind(self, path: InsidePath) -> EntryKind | None:
        return self._tree.kind(path)

    def names(self, directory: InsidePath | None) -> list[InsidePath]:
        return self._tree.names(directory)

    def find_file(self, path: InsidePath) -> int | None:
        entry = self._entries.get(path)
        return self._tree.find_file(path) if entry is None else self._tree.find_entry(entry)

    def read(self, path: InsidePath, *, limit_bytes: int) -> bytes | None:
        handle = self.find_file(path)
        if handle is None:
            return None
        with open(handle, "rb") as stream:
            content = stream.read(limit_bytes + 1)
        return content if len(content) <= limit_bytes else None
