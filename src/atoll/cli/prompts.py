"""Asks a person: for a yes, and, without echo, for values of secrets and passphrases."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from atoll.model.errors import SpecError

_LIMIT_BYTES = 64 << 10


def read_value(prompt: str) -> bytes:
    """A value: typed at a terminal without echo, else standard input without its last newline."""
    if sys.stdin is None:
        raise SpecError("standard input is closed, and a value is read from there")
    if sys.stdin.isatty():
        return os.fsencode(_ask(prompt))
    content = sys.stdin.buffer.read(_LIMIT_BYTES + 1)
    if len(content) > _LIMIT_BYTES:
        raise SpecError(f"the value is larger than {_LIMIT_BYTES >> 10} KiB")
    return content.removesuffix(b"\n").removesuffix(b"\r")


def read_new_passphrase() -> str:
    """At a terminal it is typed twice. Raises SpecError for an empty one."""
    first = os.fsdecode(read_value("New passphrase: "))
    if not first:
        raise SpecError("the passphrase is empty", hint="atoll secret passphrase --remove")
    if sys.stdin.isatty() and _ask("The same again: ") != first:
        raise SpecError("the two passphrases differ")
    return first


def find_asker() -> Callable[[], str] | None:
    """Asks for the passphrase of the vault; None without a terminal."""
    has_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return (lambda: _ask("Passphrase of the vault: ")) if has_terminal else None


def find_confirmer() -> Callable[[str], bool] | None:
    """Asks a question to which anything but `y` or `yes` is a no; None without a terminal."""
    has_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return _confirm if has_terminal else None


def _confirm(question: str) -> bool:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _ask(prompt: str) -> str:
    from getpass import getpass  # noqa: PLC0415 - only for a person

    try:
        return getpass(prompt)
    except EOFError:
        raise SpecError("nothing was typed") from None
