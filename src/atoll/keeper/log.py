"""The output of a run as JSON lines, bounded in size: the keeper writes, anyone reads.

An entry is `{"t": time, "s": "out" | "err", "d": text}`; bytes that are not UTF-8 are encoded as
lone surrogates, so that the output can be restored exactly. When `log.jsonl` reaches half of the
limit it becomes `log.1.jsonl` and the older part is deleted. Every file begins with a line that
holds its `generation` and how many bytes of output came `before` it: so the oldest file shows how
much was dropped. `{"s": "dropped", "n": bytes}` stands where output could not be written. Readers
bear rotation under their hands, a torn last line and missing files.
"""

from __future__ import annotations

import json
import os

from atoll.keeper.redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CURRENT = "log.jsonl"
OLDER = "log.1.jsonl"
SMALLEST_LIMIT_BYTES = 4096

_NEXT = "log.next.jsonl"
_PIECE_BYTES = 32 * 1024
_LINE_OVERHEAD_BYTES = 64
_ESCAPED_BYTE = 6  # one byte of output takes this much of a JSON line at worst
_HEAD_BYTES = 512
_READ_BYTES = 256 * 1024
_FOLLOW_S = 0.05


class LogEntry:
    """One piece of output, or (`stream` is `dropped`) a place where `dropped_bytes` are missing."""

    __slots__ = ("data", "dropped_bytes", "stream", "time")

    def __init__(self, time: float, stream: str, data: bytes, dropped_bytes: int = 0) -> None:
        self.time = time
        self.stream = stream
        self.data = data
        self.dropped_bytes = dropped_bytes

    def __repr__(self) -> str:
        return f"Entry({self.time}, {self.stream!r}, {self.data!r}, {self.dropped_bytes})"


class LogWriter:
    """Appends to the log. A log that cannot be written never stops a run: see `error`."""

    __slots__ = (
        "_carry", "_fd", "_generation", "_half", "_is_torn", "_lost", "_piece", "_redact",
        "_redactors", "_run_dir", "_size", "_total", "error",
    )  # fmt: skip

    def __init__(
        self, run_dir: str, limit_bytes: int, now: float, redact: tuple[bytes, ...] = ()
    ) -> None:
        """Values in `redact` are never written."""
        self._run_dir = run_dir
        self._redact = redact
        self._redactors: dict[str, Redactor] = {}
        self._half = max(limit_bytes, SMALLEST_LIMIT_BYTES) // 2
        self._piece = min(_PIECE_BYTES, (self._half // 2 - _LINE_OVERHEAD_BYTES) // _ESCAPED_BYTE)
        self._carry: dict[str, bytes] = {}
        self._generation = 0
        self._total = 0
        self._lost = 0
        self._size = 0
        self._fd = -1
        self._is_torn = False
        self.error: str | None = None
        """The first failure, if there was one."""
        try:
            self._rotate(now)
        except OSError as error:
            self._fail(error, 0)

    def write(self, stream: str, data: bytes, now: float) -> None:
        """Append; a character cut in two by the end of `data` waits for its other half."""
        if self._redact:
            if stream not in self._redactors:
                self._redactors[stream] = Redactor(self._redact)
            data = self._redactors[stream].add(data)
        self._write(stream, data, now)

    def _write(self, stream: str, data: bytes, now: float) -> None:
        data = self._carry.pop(stream, b"") + data
        while data:
            piece, data = data[: self._piece], data[self._piece :]
            cut = _cut_character(piece)
            if cut:
                piece, tail = piece[:-cut], piece[-cut:]
                if not data:
                    self._carry[stream] = tail
                data = tail + data if data else b""
            if piece:
                self._append(stream, piece, now)

    def close(self, now: float) -> None:
        for stream, redactor in sorted(self._redactors.items()):
            self._write(stream, redactor.flush(), now)
        for stream, data in sorted(self._carry.items()):
            self._append(stream, data, now)
        self._carry.clear()
        if self._lost:
            self._append("dropped", b"", now)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, stream: str, data: bytes, now: float) -> None:
        try:
            if self._lost or self._is_torn:
                self._put(b"\n" + _line({"t": now, "s": "dropped", "n": self._lost}), now)
                self._lost = 0
            if data:
                text = data.decode("utf-8", "surrogateescape")
                self._put(_line({"t": now, "s": stream, "d": text}), now)
        except OSError as error:
            self._fail(error, len(data))
        self._total += len(data)

    def _put(self, line: bytes, now: float) -> None:
        if self._fd < 0 or self._size + len(line) > self._half:
            self._rotate(now)
        _write_all(self._fd, line)
        self._size += len(line)
        self._is_torn = False

    def _rotate(self, now: float) -> None:
        head = {"t": now, "s": "log", "generation": self._generation, "before": self._total}
        line = _line(head)
        path = os.path.join(self._run_dir, _NEXT)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            _write_all(fd, line)
            current = os.path.join(self._run_dir, CURRENT)
            if self._generation and os.path.exists(current):
                os.replace(current, os.path.join(self._run_dir, OLDER))
            os.replace(path, current)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._size = len(line)
        self._generation += 1

    def _fail(self, error: OSError, size: int) -> None:
        self._lost += size
        if self.error is None:
            self.error = f"the log could not be written: {error.strerror}"
        if self._fd >= 0:
            self._is_torn = True
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                return


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _cut_character(data: bytes) -> int:
    """How many bytes at the end of `data` begin a UTF-8 character and do not finish it."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0


class _Part:
    """One open file of the log; it stays readable when it is renamed or dropped."""

    __slots__ = ("_file", "_rest", "before", "end", "generation", "time")

    def __init__(self, path: str) -> None:
        """OSError if there is no such file."""
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  closed by its reader
        self._rest = b""
        self.generation = 0
        self.before = 0
        self.end = 0
        self.time = 0.0
        head = _parse_line(self._file.readline(_HEAD_BYTES))
        generation, before = head.get("generation"), head.get("before")
        if isinstance(generation, int) and isinstance(before, int):
            self.generation = generation
            self.before = self.end = before
            self.time = _time(head)
        else:
            self._file.seek(0)

    def close(self) -> None:
        self._file.close()

    def is_at(self, path: str) -> bool:
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def size_bytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def skip_to(self, offset: int) -> None:
        """Skips what comes before the first line that begins after an offset."""
        if offset > self._file.tell():
            self._file.seek(offset)
            # The rest of a line is no valid entry.
            self._rest = b"?"

    def entries(self, up_to: int | None = None) -> Iterator[LogEntry]:
        """What is whole between the last reading and the end of the file (or `up_to`)."""
        while up_to is None or self._file.tell() < up_to:
            chunk = self._file.read(_READ_BYTES)
            if not chunk:
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                entry = _parse_entry(line)
                if entry is not None:
                    self.end += len(entry.data) + entry.dropped_bytes
                    yield entry


def read_log(run_dir: str | os.PathLike[str]) -> Iterator[LogEntry]:
    """All that the log holds at this moment, oldest first."""
    parts = _open_parts(run_dir)
    sizes = [part.size_bytes() for part in parts]
    try:
        if parts and parts[0].before:
            yield LogEntry(parts[0].time, "dropped", b"", parts[0].before)
        for part, size in zip(parts, sizes, strict=True):
            yield from part.entries(size)
    finally:
        for part in parts:
            part.close()


def read_log_end(run_dir: str | os.PathLike[str], *, size_bytes: int) -> Iterator[LogEntry]:
    """The entries in the last `size_bytes` of the log's current file, oldest first."""
    try:
        part = _Part(os.path.join(run_dir, CURRENT))
    except OSError:
        return
    try:
        size = part.size_bytes()
        part.skip_to(size - size_bytes)
        yield from part.entries(size)
    finally:
        part.close()


def follow_log(
    run_dir: str | os.PathLike[str], ended: Callable[[], bool], wait: Callable[[float], None]
) -> Iterator[LogEntry]:
    """What the log holds and what is still to come.

    Ends when `ended()` reports that the log is complete and all has been read; calls `wait`
    with a number of seconds when there is nothing new.
    """
    part: _Part | None = None
    try:
        while True:
            is_last_look = ended()
            if part is not None:
                yield from part.entries()
            newer = _open_newer(run_dir, part)
            if newer is not None:
                if part is not None:
                    yield from part.entries()  # written between the last read and the rotation
                    part.close()
                end = 0 if part is None else part.end
                if (part is None or newer.generation > part.generation + 1) and newer.before > end:
                    yield LogEntry(newer.time, "dropped", b"", newer.before - end)
                part = newer
            elif is_last_look:
                return
            else:
                wait(_FOLLOW_S)
    finally:
        if part is not None:
            part.close()


def _open_parts(run_dir: str | os.PathLike[str]) -> list[_Part]:
    parts: dict[int, _Part] = {}
    # The newer first: if it is rotated meanwhile, the same file is found twice and none is missed.
    for name in (CURRENT, OLDER):
        try:
            part = _Part(os.path.join(run_dir, name))
        except OSError:
            continue
        if part.generation in parts:
            part.close()
        else:
            parts[part.generation] = part
    return [parts[generation] for generation in sorted(parts)]


def _open_newer(run_dir: str | os.PathLike[str], part: _Part | None) -> _Part | None:
    """The oldest file that is newer than `part`."""
    if part is not None and part.is_at(os.path.join(run_dir, CURRENT)):
        return None
    found: _Part | None = None
    for candidate in _open_parts(run_dir):
        if found is None and (part is None or candidate.generation > part.generation):
            found = candidate
        else:
            candidate.close()
    return found


def _parse_line(line: bytes) -> dict[str, object]:
    """The object in a line; nothing if a crash has torn it."""
    try:
        value: object = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _time(raw: dict[str, object]) -> float:
    time = raw.get("t")
    return float(time) if isinstance(time, int | float) else 0.0


def _parse_entry(line: bytes) -> LogEntry | None:
    raw = _parse_line(line)
    stream, text, lost = raw.get("s"), raw.get("d"), raw.get("n")
    if stream in ("out", "err") and isinstance(text, str):
        return LogEntry(_time(raw), str(stream), text.encode("utf-8", "surrogateescape"))
    if stream == "dropped" and isinstance(lost, int) and lost:
        return LogEntry(_time(raw), "dropped", b"", lost)
    return None
