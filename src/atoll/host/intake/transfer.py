"""One import of objects: the requested commits, its limits, and the pack while it is received."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from typing import NamedTuple

from atoll.host.process import Completed, Program, stream
from atoll.model.errors import DriverError, StateError
from atoll.model.names import printable
from atoll.model.secretvalues import SecretSearch
from atoll.model.units import render_duration, render_size

LOOK = "run `git fsck --full --strict` inside the capsule"
_ID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_HEADER = struct.Struct(">4sII")
_MESSAGE_CHARACTERS = 600


class TransferLimits(NamedTuple):
    """The limits of one import."""

    size_bytes: int = 2 << 30
    objects: int = 1_000_000
    seconds: float | None = 600
    memory_bytes: int = 4 << 30
    """For each git that reads untrusted objects: deltas can expand to any size."""


LIMITS = TransferLimits()


class ImportSize(NamedTuple):
    """What was imported: both are 0 if the owner had everything."""

    objects: int
    size_bytes: int


class IncompleteError(StateError):
    """An object that the tips need is missing."""


class OverLimitError(StateError):
    """A limit of the import is exceeded."""


class Allowance:
    """The limits of several imports together; the time starts now."""

    def __init__(self, limits: TransferLimits = LIMITS) -> None:
        self._limits = limits
        self._ends_at = time.monotonic() + (limits.seconds or float("inf"))
        self._size_bytes, self._objects = 0, 0
        self._is_over = False

    def limits(self) -> TransferLimits:
        """The limits of the next import. Raises OverLimitError if nothing is left."""
        size_bytes = self._limits.size_bytes - self._size_bytes
        objects = self._limits.objects - self._objects
        seconds = self._ends_at - time.monotonic()
        if self._is_over or min(size_bytes, objects, seconds) <= 0:
            raise self.exceeded()
        return self._limits._replace(
            size_bytes=size_bytes,
            objects=objects,
            seconds=None if self._limits.seconds is None else seconds,
        )

    def spend(self, brought: ImportSize) -> None:
        self._size_bytes += brought.size_bytes
        self._objects += brought.objects

    def exceeded(self) -> OverLimitError:
        """Also makes every further import fail."""
        self._is_over = True
        most = f"{render_size(self._limits.size_bytes)} or {self._limits.objects:,} objects"
        if self._limits.seconds is not None:
            most += f", or take longer than {render_duration(self._limits.seconds)}"
        return OverLimitError(
            f"the commits of all submodules together exceed {most}",
            hint="commit less, and keep large and generated files out of git",
        )


def require_ids(*names: str) -> None:
    for name in names:
        if not _ID.fullmatch(name):
            raise ValueError(f"not an object id: {name!r}")


class Transfer(NamedTuple):
    """The requested commits and the limits."""

    tips: tuple[str, ...]
    limits: TransferLimits
    ends_at: float | None
    search: SecretSearch | None = None
    """Values that what is new in the tips must not contain (`secret_scan`)."""
    known: tuple[str, ...] = ()
    """Commits below which nothing is new, in addition to those that the owner's branches name."""

    @classmethod
    def start(
        cls,
        tips: Sequence[str],
        limits: TransferLimits,
        *,
        search: SecretSearch | None = None,
        known: Sequence[str] = (),
    ) -> Transfer:
        ends_at = None if limits.seconds is None else time.monotonic() + limits.seconds
        return cls(tuple(tips), limits, ends_at, search, tuple(known))

    def left_s(self) -> float | None:
        return None if self.ends_at is None else self.ends_at - time.monotonic()

    def receive(self, pack: FileIO, program: Program) -> tuple[Completed, Incoming]:
        """Writes the pack that a program prints to `pack`; checks only its header."""
        incoming = Incoming(self, pack)
        done = stream(
            program, incoming.take, limit_bytes=self.limits.size_bytes, timeout_s=self.left_s()
        )
        if done.ended == "time":
            raise self.too_late()
        if done.ended == "size":
            raise self.too_large()
        return done.completed, incoming

    def require_in_time(self) -> None:
        if self.ends_at is not None and time.monotonic() > self.ends_at:
            raise self.too_late()

    def too_late(self) -> StateError:
        most = render_duration(self.limits.seconds or 0)
        return OverLimitError(_message(f"took longer than {most}"), hint="try again")

    def too_large(self) -> StateError:
        return OverLimitError(
            _message(f"is larger than {render_size(self.limits.size_bytes)}"),
            hint="commit less, and keep large and generated files out of git",
        )

    def too_many(self) -> StateError:
        return OverLimitError(
            _message(f"has more than {self.limits.objects:,} objects"),
            hint="keep generated files out of git",
        )

    def incomplete(self, reason: str) -> IncompleteError:
        return IncompleteError(_message(f"is incomplete: {reason}"), hint=LOOK)

    def no_commit(self, tip: str, kind: str) -> StateError:
        what = "is not in it" if kind == "missing" else f"is a {kind} and not a commit"
        why = f"is not what was asked for: `{tip}` {what}"
        kind_of_error = IncompleteError if kind == "missing" else StateError
        return kind_of_error(_message(why), hint="try again")

    def refusal(self, why: str, *, hint: str) -> StateError:
        return StateError(_message(why), hint=hint)


def _message(why: str) -> str:
    return f"the export of the capsule {why}; nothing was imported"


class Incoming:
    """A pack while it is received."""

    def __init__(self, transfer: Transfer, file: FileIO) -> None:
        self._transfer, self._file = transfer, file
        self._head = b""
        self._objects: int | None = None
        self.size_bytes = 0

    def take(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        if self._objects is None:
            self._head += chunk
            if len(self._head) >= _HEADER.size:
                self._objects = self._count()
        with writing():
            while chunk:
                chunk = chunk[self._file.write(chunk) :]

    def brought(self) -> ImportSize:
        if self._objects is None:
            raise self._no_pack()
        return ImportSize(objects=self._objects, size_bytes=self.size_bytes)

    def _count(self) -> int:
        magic, version, count = _HEADER.unpack_from(self._head)
        if magic != b"PACK" or version not in (2, 3):
            raise self._no_pack()
        if count > self._transfer.limits.objects:
            raise self._transfer.too_many()
        return int(count)

    def _no_pack(self) -> StateError:
        return self._transfer.refusal("is not a pack", hint=LOOK)


@contextmanager
def writing(what: str = "the owner's objects") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DriverError(f"{what} cannot be written: {error}") from error


def error_output(done: Completed) -> str:
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    text = "; ".join(printable(line.strip()) for line in lines if line.strip())
    return text[-_MESSAGE_CHARACTERS:] or "git printed no message"


def failure_of(done: Completed, command: str, place: str) -> DriverError:
    return DriverError(
        f"`git {command}` in `{printable(place)}` failed with exit code {done.code}: "
        f"{error_output(done)}"
    )
