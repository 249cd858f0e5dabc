"""Names that people choose, and the ones made from them.

A capsule's name becomes a branch, a directory, a DNS label and a word on the command line, so
only what is safe in all four is accepted.
"""

from __future__ import annotations

import re
import unicodedata

from atoll.model.errors import SpecError

NAME_LENGTH = 40
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
BRANCH_PREFIX = "atoll/"


def parse_name(text: str) -> str:
    """Returns `text` if it is a safe name; raises SpecError with a usable one as the hint."""
    if len(text) <= NAME_LENGTH and _NAME.fullmatch(text):
        return text
    close = slug(text)
    shown = printable(text if len(text) <= 60 else text[:57] + "...")
    raise SpecError(
        f"capsule name `{shown}` is not usable: it takes 1 to {NAME_LENGTH} lower-case letters, "
        "digits and inner hyphens",
        hint=f"use `{close}`" if close else None,
    )


def slug(text: str) -> str:
    """The nearest safe name; empty when no character of `text` is usable."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:NAME_LENGTH].strip("-")


def printable(text: str) -> str:
    """`text` with control and invisible characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def branch_of(name: str) -> str:
    return BRANCH_PREFIX + name


def short_hash(text: str) -> str:
    """For names that a person reads, where a collision is only an inconvenience."""
    return long_hash(text)[:8]


def long_hash(text: str) -> str:
    """For names that must not collide."""
    import hashlib  # noqa: PLC0415 - needed when something is made, not when it is listed

    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def numbered(name: str, count: int) -> list[str]:
    """`NAME` itself for one capsule, `NAME-1` to `NAME-N` for several."""
    if count == 1:
        return [parse_name(name)]
    return [parse_name(f"{parse_name(name)}-{number}") for number in range(1, count + 1)]
