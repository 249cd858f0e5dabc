"""The end of a race that nobody watches: the winner is picked by rule and promoted, at most once.

Nothing asks a question. What came of it is stored with the race.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from atoll.engine.race.field import Field
from atoll.engine.race.results import RaceResults
from atoll.model.errors import AtollError, Interrupted
from atoll.model.names import printable
from atoll.model.race import Race

_KIND = "promotion"


class UnattendedEnd(NamedTuple):
    """What came of `--promote`."""

    stage: str
    winner: str | None
    is_good: bool
    """Whether the winner reached the stage."""
    message: str

    @classmethod
    def parse(cls, stored: Mapping[str, object] | None) -> UnattendedEnd | None:
        if stored is None:
            return None
        winner = stored.get("winner")
        return cls(
            str(stored.get("stage", "")),
            None if winner is None else str(winner),
            bool(stored.get("is_good")),
            str(stored.get("message", "")),
        )


def find_end(field: Field) -> UnattendedEnd | None:
    return UnattendedEnd.parse(field.session.store.find_evidence(field.race.id, _KIND))


def conclude(field: Field) -> None:
    """Picks and promotes the winner of a finished race, unless that was done. A promotion that was
    interrupted is carried on.
    """
    race = field.race
    if not race.spec.promote_to or race.is_stopping or find_end(field) is not None:
        return
    end = _promote(field, race)
    field.session.store.save_evidence(race.id, _KIND, end._asdict())


def _promote(field: Field, race: Race) -> UnattendedEnd:
    stage = race.spec.promote_to
    winner = race.winner
    if winner is None:
        try:
            picked = RaceResults(field).pick()
        except Interrupted:
            raise
        except AtollError as error:
            return UnattendedEnd(stage, None, is_good=False, message=error.message)
        winner = picked.choice.winner
        if winner is None:
            reasons = "; ".join(f"{name}: {why}" for name, why in picked.choice.rejected.items())
            message = f"no candidate may be picked: {reasons}" if reasons else "no candidate"
            return UnattendedEnd(stage, None, is_good=False, message=printable(message[:1000]))
    candidate = next(c for c in field.session.store.candidates(race.id) if c.name == winner)
    capsule = field.find_capsule(candidate)
    if capsule is None:
        return UnattendedEnd(stage, winner, is_good=False, message="its capsule was removed")
    try:
        is_good, message = field.acts.promote(
            capsule, to=stage, checks=race.spec.checks, accept=race.spec.accept
        )
    except Interrupted:
        raise
    except AtollError as error:
        return UnattendedEnd(stage, winner, is_good=False, message=error.message)
    return UnattendedEnd(stage, winner, is_good, message)
