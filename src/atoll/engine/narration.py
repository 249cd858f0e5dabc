"""Lets a face hear the commands that Atoll runs on the host."""

from __future__ import annotations

from collections.abc import Callable

from atoll.host import process


def tell_commands(listener: Callable[[str], None]) -> None:
    process.on_command = listener
