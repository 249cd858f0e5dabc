"""What was measured, as values: samples, the peer's samples, the aim, and how people read them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Unit = Literal["s", "B", "files"]

COLUMNS = ("size", "what", "median", "best", "p95", "against", "its median", "ratio", "aim", "met")


class Aim(NamedTuple):
    """A bound that the issue or the design gives, judged by medians."""

    text: str
    kind: Literal["times", "faster", "value"]
    bound: float


def at_most_times(bound: float) -> Aim:
    return Aim(f"≤ {bound:g}x", "times", bound)


def times_faster(bound: float) -> Aim:
    return Aim(f"≥ {bound:g}x faster", "faster", bound)


def at_most(bound: float, unit: Unit = "s") -> Aim:
    return Aim(f"≤ {render_value(bound, unit)}", "value", bound)


class Row(NamedTuple):
    size: str
    what: str
    samples: tuple[float, ...]
    peer: str = ""
    peer_samples: tuple[float, ...] = ()
    aim: Aim | None = None
    unit: Unit = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def p95(self) -> float:
        """The sample that 95 in 100 do not exceed; the worst one of less than twenty."""
        ordered = sorted(self.samples)
        return ordered[-(len(ordered) // 20) - 1]

    @property
    def peer_median(self) -> float | None:
        return statistics.median(self.peer_samples) if self.peer_samples else None

    @property
    def ratio(self) -> float | None:
        """How many times the peer's median ours is."""
        return self.median / self.peer_median if self.peer_median else None

    @property
    def is_met(self) -> bool | None:
        """None when there is no aim, or nothing to compare with."""
        if self.aim is None:
            return None
        if self.aim.kind == "value":
            return self.median <= self.aim.bound
        if not self.ratio:
            return None
        times = self.ratio if self.aim.kind == "times" else 1 / self.ratio
        return times <= self.aim.bound if self.aim.kind == "times" else times >= self.aim.bound

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "missed", None: ""}[self.is_met]


class Machine(NamedTuple):
    """Where it was measured; what a reader must know before comparing with another table."""

    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    filesystem: str
    user: str
    driver: str
    git: str
    python: str
    load_before: tuple[float, ...]
    load_after: tuple[float, ...]


class BenchReport(NamedTuple):
    machine: Machine
    projects: tuple[str, ...]
    rows: tuple[Row, ...]
    skipped: tuple[str, ...]
    """What was not measured, each with the reason."""

    def shape(self) -> dict[str, object]:
        """The report as JSON: with all samples."""
        return {
            "machine": self.machine._asdict(),
            "projects": list(self.projects),
            "rows": [_row_shape(row) for row in self.rows],
            "skipped": list(self.skipped),
        }

    @staticmethod
    def columns() -> tuple[str, ...]:
        return COLUMNS

    def cells(self) -> list[Sequence[str]]:
        return cells(self.rows)

    def head(self) -> list[str]:
        """The lines above the table."""
        machine = self.machine
        before, after = (
            " ".join(f"{load:.2f}" for load in loads)
            for loads in (machine.load_before, machine.load_after)
        )
        memory = render_value(machine.memory_bytes, "B")
        lines = [
            f"machine     {machine.processor}, {machine.cores} cores, {memory}, {machine.kernel}",
            f"filesystem  {machine.filesystem}",
            f"driver      {machine.driver}, as {machine.user}",
            f"tools       git {machine.git}, Python {machine.python}",
            f"load        {before} before, {after} after",
        ]
        if max(machine.load_before[0], machine.load_after[0]) > machine.cores:
            lines.append("            others are busy here: trust ratios and best times only")
        return [*lines, *(f"project {project}" for project in self.projects)]


def _row_shape(row: Row) -> dict[str, object]:
    return {
        "size": row.size,
        "what": row.what,
        "unit": row.unit,
        "samples": list(row.samples),
        "median": row.median,
        "best": row.best,
        "p95": row.p95,
        "peer": row.peer or None,
        "peer_samples": list(row.peer_samples),
        "peer_median": row.peer_median,
        "ratio": row.ratio,
        "aim": row.aim.text if row.aim is not None else None,
        "met": row.is_met,
    }


def cells(rows: Iterable[Row]) -> list[Sequence[str]]:
    return [
        (
            row.size,
            row.what,
            *(render_value(value, row.unit) for value in (row.median, row.best, row.p95)),
            row.peer,
            "" if row.peer_median is None else render_value(row.peer_median, row.unit),
            _render_ratio(row.ratio),
            row.aim.text if row.aim is not None else "",
            row.verdict,
        )
        for row in rows
    ]


def _render_ratio(ratio: float | None) -> str:
    if not ratio:
        return ""
    if ratio >= 0.5:
        return f"{ratio:.2f}x"
    return f"{1 / ratio:,.0f}x faster" if ratio < 0.1 else f"{1 / ratio:.1f}x faster"


def render_value(value: float, unit: Unit = "s") -> str:
    if unit == "files":
        return f"{value:,.0f} files"
    if unit == "B":
        return _render_bytes(value)
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1000:.2f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"


def _render_bytes(value: float) -> str:
    for name in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {name}"
        value /= 1000
    return f"{value:.3g} GB"
