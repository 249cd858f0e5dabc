"""Requests to the holder of a view (`atoll.keeper.holder`), which listens in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atoll.keeper import requests
from atoll.model.errors import DriverError, StateError

if TYPE_CHECKING:
    from atoll.keeper.requests import HolderRequest, PutRequest

_PATIENCE_S = 20.0


class InsideFile(NamedTuple):
    """A file for the private tmpfs of a view (`atoll.keeper.private_files`)."""

    name: str
    content: bytes
    is_public: bool = False
    """Whether others than the capsule's user can read it."""
    until: float | None = None
    """When the holder removes it."""

    def __repr__(self) -> str:
        """Without the content: it may become part of a traceback."""
        return f"InsideFile(name={self.name!r})"


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


def put_files(directory: str, files: Iterable[InsideFile], *, subject: str) -> bool:
    """Hands files to the holder in `directory`; returns False when there is none (any more).

    Raises StateError for a holder of an earlier version that has runs, and DriverError when the
    holder cannot store them. `subject` is the capsule, for messages.
    """
    for file in files:
        fd = os.memfd_create("atoll-file")
        try:
            with open(fd, "wb", buffering=0, closefd=False) as stream:
                view = memoryview(file.content)
                while view:
                    view = view[stream.write(view) :]
            request: PutRequest = {
                "put": file.name, "public": file.is_public, "until": file.until,
            }  # fmt: skip
            answer = ask(directory, request, (fd,))
        finally:
            os.close(fd)
        if answer is None:
            _end_earlier_version(directory, subject)
            return False
        if "error" in answer[0]:
            raise DriverError(
                f"`{subject}`: `{file.name}` cannot be put into its view: {answer[0]['error']}",
                hint=f"atoll stop {subject}, then try again",
            )
    return True


def _end_earlier_version(directory: str, subject: str) -> None:
    """Closes a view whose holder does not know private files. Raises StateError if it has runs."""
    hello = ask(directory, {"ping": True})
    if hello is None or hello[0].get("files"):
        return
    answer = ask(directory, {"end": True})
    if answer is not None and answer[0].get("runs"):
        raise StateError(
            f"the view of `{subject}` was opened by an earlier version of Atoll and cannot take "
            "files while it has runs",
            hint=f"atoll stop {subject}, then try again",
        )


def drop_file(directory: str, name: str) -> bool:
    """Removes a private file at once; returns whether there was one."""
    answer = ask(directory, {"drop": name})
    return answer is not None and answer[0].get("dropped") is True


def find_files(directory: str) -> frozenset[str] | None:
    """The names of the private files of the view; None when no view is open that takes files."""
    answer = ask(directory, {"list": True})
    found = None if answer is None else answer[0].get("files")
    return frozenset(found) if isinstance(found, dict) else None
