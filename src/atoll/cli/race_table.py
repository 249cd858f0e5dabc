"""The candidates of a race as a table, live or at the end, and as lines of progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.cli import phrases
from atoll.cli.agents import render_cost, render_count
from atoll.cli.frame import Frame
from atoll.cli.live_lines import LiveLines
from atoll.cli.tables import cut, fit, render_columns
from atoll.engine import shapes
from atoll.model.names import printable
from atoll.model.race import CandidateState, RaceState

if TYPE_CHECKING:
    from atoll.engine.race.races import RemovedCandidate
    from atoll.engine.race.report import CandidateStatus, RaceStatus

_COLUMNS = ("candidate", "status", "time", "tokens", "cost", "changed", "checks", "note")
_CLIP = ("note", "candidate")
_DROP = ("note", "tokens", "cost")
_LINES_BESIDE_ROWS = 4


class LiveTable(LiveLines):
    """A table that is drawn anew in its place; elsewhere than on a terminal, a line per change."""

    def __init__(self, *, is_silent: bool) -> None:
        self._status: RaceStatus | None = None
        super().__init__(is_silent=is_silent)

    def show_race(self, status: RaceStatus) -> None:
        self._status = status
        if not self.is_animated:
            for one in status.candidates:
                if one.candidate.state is not CandidateState.QUEUED:
                    self.show(one.name, _describe(one, status))

    def render_lines(self, columns: int, lines: int) -> list[str]:
        status = self._status
        if status is None:
            return []
        most = max(1, lines - _LINES_BESIDE_ROWS)
        found = list(status.candidates)
        if len(found) > most:
            # Those that are not all shown: what is at work is of more interest.
            found.sort(key=lambda one: one.candidate.has_ended)
        cells = [[printable(cell) for cell in _row(one, status)] for one in found[:most]]
        names, cells = fit(_COLUMNS, cells, _CLIP, _DROP, columns)
        table = [cut(line, columns) for line in render_columns(names, cells).splitlines()]
        return [*table, _summary(status)]


def make_live(frame: Frame) -> LiveTable:
    return LiveTable(is_silent=frame.output.quiet or frame.output.json)


def announce(frame: Frame, status: RaceStatus) -> None:
    race = status.race
    count = len(status.candidates)
    checks = ", ".join(check.name for check in race.spec.checks) or "none"
    base = f"{race.spec.base_ref} at {race.base_commit[:10]}"
    noun = "candidate" if count == 1 else "candidates"
    frame.output.note(
        printable(f"race `{race.name}`: {count} {noun} from {base}, checks: {checks}")
    )


def show(frame: Frame, status: RaceStatus) -> None:
    frame.output.table(
        "race",
        shapes.race(status),
        _COLUMNS,
        [_row(one, status) for one in status.candidates],
        clip=_CLIP,
        drop=_DROP,
    )
    failed = [result.name for result in status.base if not result.passed]
    if failed:
        frame.output.note(f"on the base these checks do not pass: {', '.join(failed)}")


def show_all(frame: Frame, found: Sequence[RaceStatus]) -> None:
    frame.output.table(
        "races",
        [shapes.race(one) for one in found],
        ("race", "state", "candidates", "good", "winner", "age", "task"),
        [_row_of_race(one) for one in found],
        clip=("task",),
        drop=("task",),
    )


def show_removed(frame: Frame, name: str, removed: Sequence[RemovedCandidate]) -> None:
    for one in removed:
        if one.point is not None:
            frame.output.note(phrases.stored(one.point))
    frame.output.answer("removed", [shapes.removed(one.name, one.point) for one in removed], name)


def _row_of_race(status: RaceStatus) -> tuple[str, ...]:
    race = status.race
    passed = sum(_count_passed(one) == len(race.spec.checks) for one in _with_tree(status))
    return (
        race.name,
        render_state(status),
        str(len(status.candidates)),
        str(passed),
        race.winner or "-",
        phrases.age(race.created_at),
        race.spec.task,
    )


def render_state(status: RaceStatus) -> str:
    if status.race.state is RaceState.FINISHED or status.is_carried_on:
        return str(status.race.state)
    return "left"


def _with_tree(status: RaceStatus) -> list[CandidateStatus]:
    return [one for one in status.candidates if one.candidate.state is CandidateState.DONE]


def _count_passed(one: CandidateStatus) -> int:
    return sum(result.passed for result in one.checks)


def _row(one: CandidateStatus, status: RaceStatus) -> tuple[str, ...]:
    candidate = one.candidate
    is_agent = bool(candidate.spec.agent)
    return (
        one.name,
        str(candidate.state),
        "-" if one.took_s is None else phrases.span(one.took_s),
        render_count(candidate.tokens) if is_agent else "-",
        render_cost(candidate.cost_usd, has_usage=bool(candidate.tokens)),
        _changed(one),
        _checks(one, status),
        _note(one) or "-",
    )


def _changed(one: CandidateStatus) -> str:
    candidate = one.candidate
    return f"+{candidate.added} -{candidate.removed}" if candidate.tree else "-"


def _checks(one: CandidateStatus, status: RaceStatus) -> str:
    specs = status.race.spec.checks
    if not specs or not one.candidate.tree:
        return "-"
    failed = [str(result.name) for result in one.checks if not result.passed]
    missing = len(specs) - len(one.checks)
    passed = f"{_count_passed(one)} of {len(specs)}"
    if failed:
        return f"{passed}, not {', '.join(failed)}"
    return f"{passed}, {missing} missing" if missing and one.candidate.has_ended else passed


def _note(one: CandidateStatus) -> str:
    removed = "capsule removed" if one.candidate.is_removed else ""
    return "; ".join(filter(None, (one.candidate.reason, removed)))


def _summary(status: RaceStatus) -> str:
    count = sum(one.candidate.has_ended for one in status.candidates)
    return f"{status.race.name}: {count} of {len(status.candidates)} ended; Ctrl-C leaves it"


def _describe(one: CandidateStatus, status: RaceStatus) -> str:
    candidate = one.candidate
    text = str(candidate.state)
    if candidate.has_ended and one.took_s is not None:
        text += f" after {phrases.span(one.took_s)}"
    if candidate.state is CandidateState.DONE and status.race.spec.checks:
        text += f", checks passed: {_checks(one, status)}"
    return f"{text}: {candidate.reason}" if candidate.reason else text
