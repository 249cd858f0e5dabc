"""Requests to the holder of a view (`atoll.keeper.holder`), which listens in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.keeper import requests

if TYPE_CHECKING:
    from atoll.keeper.requests import HolderRequest

_PATIENCE_S = 20.0


def ask(
    directory: str, request: HolderRequest, fds: tuple[int, ...] = ()
) -> tuple[dict[str, object], list[int]] | None:
    """What the holder in `directory` answers; None when there is none (any more)."""
    try:
        with requests.connect(directory, timeout_s=_PATIENCE_S) as sock:
            return requests.ask(sock, request, fds)
    except (FileNotFoundError, ConnectionError, EOFError):
        return None


def has_socket(directory: str) -> bool:
    """Whether a holder may listen there; one that was killed leaves its socket behind."""
    return Path(directory, requests.SOCKET).exists()


@contextmanager
def gated(directory: str) -> Iterator[None]:
    """No run starts meanwhile in the view in `directory`, if one is held."""
    try:
        sock = requests.connect(directory, timeout_s=_PATIENCE_S)
    except (FileNotFoundError, ConnectionError):
        yield
        return
    with sock:
        with suppress(ConnectionError, EOFError):
            requests.ask(sock, {"hold": True})
        yield
