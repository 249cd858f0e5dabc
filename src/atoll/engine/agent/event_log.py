"""The events of a turn, read from the recorded output of its run.

The output is what an agent wrote: hostile, and possibly cut. Nothing here decides anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import EventFormat
from atoll.keeper.log import LogEntry
from atoll.model.agent import AgentEvent, AgentEventKind, ModelUsage

_LINE_BYTES = 4 << 20
"""Longer lines are skipped: a line is parsed as a whole."""
_NOTICE_CHARACTERS = 2000


class _Lines:
    """Cuts a stream that arrives in pieces into lines of bounded length."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skips = False

    def add(self, data: bytes) -> Iterator[str]:
        *whole, rest = data.split(b"\n")
        for piece in whole:
            line = bytes(self._rest + piece)
            is_skipped = self._skips or len(line) > _LINE_BYTES
            self._rest.clear()
            self._skips = False
            if not is_skipped:
                yield line.decode(errors="replace").rstrip("\r")
        self._rest += rest
        if len(self._rest) > _LINE_BYTES:
            self._rest.clear()
            self._skips = True

    def flush(self) -> Iterator[str]:
        if self._rest and not self._skips:
            yield bytes(self._rest).decode(errors="replace").rstrip("\r")
        self._rest.clear()


class EventReader:
    """Turns log entries of one run into events, each with the time at which it was written."""

    def __init__(self, format_name: str) -> None:
        self._format: EventFormat = registry.event_format(format_name)
        self._streams = {"out": _Lines(), "err": _Lines()}
        self._last_at = 0.0
        self._last_error_line = ""

    def feed(self, entry: LogEntry) -> Iterator[AgentEvent]:
        self._last_at = entry.time
        if entry.stream in self._streams:
            for line in self._streams[entry.stream].add(entry.data):
                yield from self._events(entry.stream, line)

    def flush(self) -> Iterator[AgentEvent]:
        """The events of a last line without an end."""
        for stream, lines in self._streams.items():
            for line in lines.flush():
                yield from self._events(stream, line)

    def _events(self, stream: str, line: str) -> Iterator[AgentEvent]:
        if stream == "err":
            # Some programs print each warning twice.
            if line.strip() and line != self._last_error_line:
                text = line[:_NOTICE_CHARACTERS]
                yield AgentEvent(AgentEventKind.NOTICE, text, tool="stderr", at=self._last_at)
            self._last_error_line = line
            return
        for event in self._format.feed(line):
            yield event if event.at is not None else event._replace(at=self._last_at)


def read_events(entries: Iterable[LogEntry], format_name: str) -> Iterator[AgentEvent]:
    reader = EventReader(format_name)
    for entry in entries:
        yield from reader.feed(entry)
    yield from reader.flush()


def bounded(events: Iterable[AgentEvent], *, most: int = 20_000) -> list[AgentEvent]:
    """The first and the last of very many events, with a notice in place of the others."""
    every = iter(events)
    first = list(islice(every, most // 2))
    last, skipped = deque[AgentEvent](maxlen=most - most // 2), 0
    for event in every:
        skipped += len(last) == last.maxlen
        last.append(event)
    if not skipped:
        return [*first, *last]
    notice = AgentEvent(AgentEventKind.NOTICE, f"{skipped:,} events are not shown here")
    return [*first, notice, *last]


class StreamEnd(NamedTuple):
    """What the output of a turn says about its end."""

    end: str
    """`good`, `error`, or empty when it reports no end."""
    text: str
    last_error: str
    events: int
    """Of all but the lines of standard error."""
    usage: tuple[ModelUsage, ...] = ()
    """As the agent counts it."""


def summarize(events: Iterable[AgentEvent]) -> StreamEnd:
    """The last end and the last error of a turn."""
    end = text = error = ""
    usage: tuple[ModelUsage, ...] = ()
    count = 0
    for event in events:
        is_output = event.tool != "stderr"
        count += is_output
        if event.kind is AgentEventKind.END:
            end, text = ("error" if event.is_error else "good"), event.text
            usage = event.usage
        elif event.kind is AgentEventKind.ERROR or not is_output:
            error = event.text
        elif event.kind is AgentEventKind.START:
            # A new attempt within one run: an earlier end does not count.
            end = text = ""
    return StreamEnd(end, text, error, count, usage)
