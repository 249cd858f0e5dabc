"""Git LFS pointers: small text files that refer to a large one by its SHA-256."""

from __future__ import annotations

import re
from typing import NamedTuple

POINTER_BYTES = 1024
"""A pointer is smaller than this, by git-lfs' own rule."""
WITHOUT_LFS = (
    "-c", "filter.lfs.process=", "-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false",
)  # fmt: skip
"""Options of git with which all Git LFS files stay pointers."""
_POINTER = re.compile(
    rb"version (?:https://git-lfs\.github\.com/spec/v1|https://hawser\.github\.com/spec/v1"
    rb"|http://git-media\.io/v/2)\n"
    rb"(?:ext-[0-9]-[A-Za-z0-9._-]+ sha256:[0-9a-f]{64}\n)*"
    rb"oid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,17})\n?"
)


class Pointer(NamedTuple):
    """The object that a pointer file names. Both fields are checked: `oid` is 64 lower-case
    hexadecimal digits and can be part of a path.
    """

    oid: str
    size_bytes: int

    @property
    def place(self) -> str:
        """The path of the object below git-lfs' `objects` directory."""
        return f"{self.oid[:2]}/{self.oid[2:4]}/{self.oid}"


def parse_pointer(content: bytes) -> Pointer | None:
    """Returns None for anything but an exact pointer: the content may be hostile."""
    found = _POINTER.fullmatch(content) if len(content) < POINTER_BYTES else None
    return None if found is None else Pointer(found[1].decode(), int(found[2]))


def render_pointer(pointer: Pointer) -> bytes:
    return (
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{pointer.oid}\nsize {pointer.size_bytes}\n"
    ).encode()
