"""All printing. Results go to stdout, progress and notes to stderr.

Results are tables with colours on a terminal, plain text in a pipe, and one documented object with
`--json`. Control characters in text from inside a capsule never reach a terminal.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TextIO, TypeVar

from atoll.cli import status
from atoll.cli.tables import fit, render_columns, style_of, table_width
from atoll.model.errors import AtollError, PrerequisiteError, SpecError
from atoll.model.names import printable

if TYPE_CHECKING:
    from atoll.cli.live_lines import LiveLines

L = TypeVar("L", bound="LiveLines")

JSON_VERSION = 1
_PHASES = {
    "new.leased": "creating the workspace",
    "new.workspace": "creating the private directories",
    "new.isolation": "setting up",
    "new.ready": "",
    "rm.announced": "stopping runs",
    "rm.stopped": "storing work",
    "rm.saved": "removing files",
    "rm.isolation": "removing the workspace",
    "rm.forgotten": "",
}
_BAR_WIDTH = 20
_LEAST_SHARE = 0.02
"""Below this share the remaining time cannot be estimated."""
_PROGRESS_AFTER_S = 1.0
_COLORS = {"green": "32", "red": "31", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


class Output:
    """The output of one command."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.json = as_json
        self.quiet = quiet
        self._progress: _Progress | None = None
        self._live: LiveLines | None = None
        self._warned: set[str] = set()

    def answer(self, kind: str, data: object, text: str) -> None:
        """Prints the result of a command: a JSON object, or text (nothing when it is empty)."""
        if self.json:
            _write(sys.stdout, json.dumps(envelope(kind, data), ensure_ascii=True, indent=2))
        elif text:
            _write(sys.stdout, text)

    def item(self, kind: str, data: object, text: str) -> None:
        """Prints one of several results: a JSON object on one line, or text."""
        if self.json:
            _write(sys.stdout, json.dumps(envelope(kind, data), ensure_ascii=True))
        else:
            _write(sys.stdout, text, end="")

    def table(
        self,
        kind: str,
        data: object,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        clip: Sequence[str] = (),
        drop: Sequence[str] = (),
        is_whole: bool = False,
    ) -> None:
        """Prints a table as the result; in a pipe as space-aligned columns without a frame.

        On a narrow terminal the cells of the columns in `clip` are truncated in this order, then
        the columns in `drop` are left out, and no cell is wrapped; without `clip`, long cells are
        wrapped between words. With `is_whole` (tables with URLs) cells are neither truncated nor
        wrapped.
        """
        cells = [[printable(cell) for cell in row] for row in rows]
        if self.json:
            self.answer(kind, data, "")
        elif sys.stdout.isatty():
            _print_rich_table(columns, cells, clip, drop, is_whole=is_whole)
        else:
            _write(sys.stdout, render_columns(columns, cells))

    def raw(self, stream: str, data: bytes) -> None:
        """Writes bytes from a foreground run unchanged."""
        target = sys.stdout if stream == "out" else sys.stderr
        with _reader(target):
            target.buffer.write(data)
            target.buffer.flush()

    def clear(self) -> None:
        """Clears the terminal, for a table that is repeated."""
        _write(sys.stdout, "\x1b[H\x1b[2J\x1b[3J", end="")

    def signal(self, title: str, *, ring: bool) -> None:
        """Sets the terminal's title, and rings its bell; nothing without a terminal."""
        if self.quiet or self.json or not sys.stderr.isatty():
            return
        with suppress(OSError):
            sys.stderr.write(f"\x1b]2;{printable(title)}\x07" + ("\x07" if ring else ""))
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """Prints a note to stderr, unless `--quiet` is given."""
        if not self.quiet:
            self._say(text)

    def warn(self, text: str) -> None:
        """Prints a warning, once: a command that makes several capsules hears it for each."""
        if text in self._warned:
            return
        self._warned.add(text)
        self._say(paint("warning: ", "yellow", sys.stderr) + text)

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.interrupt(text)
        else:
            _narrate(text)

    def problem(self, reason: str, hint: str) -> None:
        """Prints why a command did not do all that it was asked for, as an error is printed."""
        _narrate(paint("error: ", "red", sys.stderr) + _safe(reason))
        if hint:
            _narrate(paint("hint: ", "cyan", sys.stderr) + _safe(hint))

    def ask_about(self, text: str, detail: str) -> None:
        """Prints what a question is about, which was cleaned before."""
        sys.stderr.write("\r\x1b[K" if sys.stderr.isatty() else "")
        _narrate(f"{detail}\n{text}" if detail else text)

    def command(self, line: str) -> None:
        """Prints a command that Atoll runs on the host, for `--verbose`."""
        _narrate(paint(f"+ {printable(line)}", "dim", sys.stderr))

    def listen(self, step: str, subject: str) -> None:
        # Runs inside a phase (setup commands) have steps of their own, which are not shown.
        if self._progress is not None and step in _PHASES:
            self._progress.phase(_PHASES[step], subject)

    def doing(self, step: str, subject: str) -> None:
        """Shows the current step of a long operation."""
        if self._progress is not None:
            self._progress.phase(step, subject)

    def freezing(
        self, what: str, files: int, files_all: int, size_bytes: int, size_all_bytes: int
    ) -> None:
        """Shows the progress of copying a part of the project into a layer."""
        if self._progress is not None:
            self._progress.bar(what, (files, files_all), (size_bytes, size_all_bytes))

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Shows the current phase once a command has taken longer than a second."""
        if self.quiet or self.json:
            yield
            return
        self._progress = _Progress()
        try:
            yield
        finally:
            if self._progress is not None:
                self._progress.close()
                self._progress = None

    @contextmanager
    def live(self) -> Iterator[LiveLines]:
        """Lines that change in place, instead of the current phase."""
        from atoll.cli.live_lines import LiveLines  # noqa: PLC0415 - for few verbs

        with self.showing(LiveLines(is_silent=self.quiet or self.json)) as shown:
            yield shown

    @contextmanager
    def showing(self, shown: L) -> Iterator[L]:
        """As `live`, with lines of another kind."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self._live = shown
        try:
            yield shown
        finally:
            self._live = None
            shown.close()


def render_size(size_bytes: float) -> str:
    """Returns a size with a decimal unit, such as `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000 or unit == "GB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return ""


def envelope(kind: str, data: object) -> dict[str, object]:
    return {"version": JSON_VERSION, "kind": kind, "data": data}


def print_error(error: AtollError, *, as_json: bool) -> int:
    """Prints the message and the hint, and returns the exit code."""
    shape = error.shape()
    whole = envelope("error", shape)
    status.report(whole)
    if as_json:
        _write(sys.stdout, json.dumps(whole, ensure_ascii=True, indent=2))
        return error.exit_code
    lines = [paint("error: ", "red", sys.stderr) + _safe(error.message)]
    lines += [f"  {_safe(line)}" for line in shape["mistakes"]]
    if error.hint:
        lines.append(paint("hint: ", "cyan", sys.stderr) + _safe(error.hint))
    _narrate("\n".join(lines))
    return error.exit_code


def abandon(stream: TextIO) -> None:
    """Redirects a broken stream to the null device, so that Python exits without a message."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
    with suppress(OSError, ValueError):
        stream.flush()


def has_click_lost_reader() -> bool:
    """Whether click found its output pipe closed: it wraps the streams then."""
    if "PacifyFlushWrapper" not in type(sys.stdout).__name__:
        return False
    abandon(sys.stdout)
    return True


class Unwritable(PrerequisiteError):  # noqa: N818 - a fact about a stream
    """A standard stream cannot be written, for example because the disk is full."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(
            f"cannot write to {name}: {error.strerror}",
            hint="redirect it to a writable file; the effects of the command are not undone",
        )


def find_unwritable(error: OSError) -> Unwritable | None:
    """Returns the error if click failed to write, for example a help page."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    if where is None or where.tb_frame.f_globals.get("__name__") != "click.utils":
        return None
    abandon(sys.stdout)
    return Unwritable("standard output", error)


def leave(code: int) -> None:
    """Exits without the interpreter's slow shutdown; returns if a stream cannot be flushed."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def usage_error(message: str, *, hint: str, as_json: bool) -> int:
    tidy = message.removesuffix(".").replace("'", "`")
    return print_error(SpecError(tidy[:1].lower() + tidy[1:], hint=hint), as_json=as_json)


def _safe(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


class ReaderLeft(Exception):  # noqa: N818 - not an error
    """The reading end of the pipe is closed. Not a BrokenPipeError, which click swallows."""


@contextmanager
def _reader(stream: TextIO) -> Iterator[None]:
    """Raises ReaderLeft for a closed pipe, Unwritable for any other failure to write."""
    try:
        yield
    except BrokenPipeError as error:
        abandon(stream)
        raise ReaderLeft from error
    except OSError as error:
        abandon(stream)
        name = "standard error" if stream is sys.stderr else "standard output"
        raise Unwritable(name, error) from error


def _narrate(text: str) -> None:
    """Writes to standard error, ignoring errors: a closed stderr must not stop the command."""
    with suppress(ReaderLeft, Unwritable):
        _write(sys.stderr, text)


def _write(stream: TextIO, text: str, end: str = "\n") -> None:
    # JSON is ASCII, and may be large: avoid two more copies.
    safe = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
    with _reader(stream):
        print(safe, end=end, file=stream, flush=True)


def is_colored(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, color: str, stream: TextIO | None = None) -> str:
    """Colours text if the stream shows colours. Colour is never the only carrier of meaning."""
    if not is_colored(stream if stream is not None else sys.stdout):
        return text
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m"


def _print_rich_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    clip: Sequence[str],
    drop: Sequence[str],
    *,
    is_whole: bool,
) -> None:
    # Takes tens of milliseconds to import, and only terminals need it.
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(no_color=not is_colored(sys.stdout), highlight=False)
    if clip:
        columns, rows = fit(columns, rows, clip, drop, console.width)
    if (is_whole or clip) and table_width(columns, rows) > console.width:
        # A URL or a name that is wrapped inside a cell could not be clicked or copied.
        _write(sys.stdout, render_columns(columns, rows))
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if clip else "fold"
        table.add_column(name.upper(), overflow=overflow, no_wrap=bool(clip))
    for row in rows:
        table.add_row(*(Text(cell, style=style_of(cell)) for cell in row))
    console.print(table)


def stdout_is_terminal() -> bool:
    return sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty()


class _Progress:
    """A status line for operations that take longer than a second."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._text = ""
        self._shown = ""
        self._bar = ("", 0.0)
        self._animated = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def phase(self, text: str, subject: str) -> None:
        self._text = f"{subject}: {text}" if text else ""

    def bar(self, what: str, files: tuple[int, int], size: tuple[int, int]) -> None:
        """Shows files, bytes and the estimated remaining time of a copy."""
        now = time.monotonic()
        if self._bar[0] != what:
            self._bar = (what, now)
        done = max(files[0] / max(1, files[1]), size[0] / max(1, size[1]))
        share = min(1.0, done)
        took_s = now - self._bar[1]
        left = f", {took_s * (1 - share) / share:.0f} s left" if share > _LEAST_SHARE else ""
        filled = round(share * _BAR_WIDTH)
        drawn = "#" * filled + "-" * (_BAR_WIDTH - filled)
        self._text = (
            f"copying {what} [{drawn}] {files[0]:,} of {files[1]:,} files, "
            f"{render_size(size[0])} of {render_size(size[1])}{left}"
            if self._animated
            else f"copying {what}: {files[1]:,} files, {render_size(size[1])}"
        )

    def _show(self) -> None:
        if self._done.wait(_PROGRESS_AFTER_S):
            return
        while not self._done.wait(0.1):
            text = printable(self._text)
            if self._animated and text:
                elapsed = time.monotonic() - self._started
                with suppress(OSError):
                    sys.stderr.write(f"\r\x1b[K{text} … {elapsed:.0f} s")
                    sys.stderr.flush()
                self._shown = text
            elif text and text != self._shown:
                _narrate(f"{text} …")
                self._shown = text

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        if self._animated and self._shown:
            with suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
