"""Which stages a promotion walks: those of the project file in its order, else the default ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from atoll.engine.project import trust
from atoll.engine.project.settings import Config, load_config
from atoll.engine.state.session import Session
from atoll.model.errors import SpecError, StateError
from atoll.model.names import printable
from atoll.model.promotion import LOCAL, VERIFIED, StageSpec
from atoll.model.state import ProjectRecord


def plan_stages(declared: Mapping[str, StageSpec], to: str | None = None) -> tuple[StageSpec, ...]:
    """The stages up to `to`, in their order; without it, up to the first that lands the work.

    `verified` is always first, so that nothing lands unverified. Where no declared stage lands,
    `local` comes second. Raises SpecError for an unknown stage.
    """
    every = {VERIFIED: declared.get(VERIFIED, StageSpec(VERIFIED))}
    if not any(stage.lands for stage in declared.values()):
        every[LOCAL] = StageSpec(LOCAL)
    every |= {name: stage for name, stage in declared.items() if name != VERIFIED}
    stages = list(every.values())
    if to is None:
        to = next(stage.name for stage in stages if stage.lands)
    if to not in every:
        close = difflib.get_close_matches(to, every, n=1)
        raise SpecError(
            f"there is no stage `{printable(to)}`",
            hint=f"did you mean `{close[0]}`?" if close else f"one of: {', '.join(every)}",
        )
    return tuple(stages[: list(every).index(to) + 1])


def load_stages(session: Session, project: ProjectRecord, to: str | None) -> tuple[StageSpec, ...]:
    """As `plan_stages`, for the project file. Raises StateError when it is not trusted."""
    config = load_config(Path(project.root), session.owner)
    _require_trust(session, config)
    return plan_stages(config.file.stages if config.file is not None else {}, to)


def base_setting(session: Session, project: ProjectRecord) -> str:
    """The `project.base` that the owner has set; empty when none is."""
    settings = load_config(Path(project.root), session.owner).settings
    is_set = settings.source("project.base") != "default"
    return str(settings.value("project.base")) if is_set else ""


def _require_trust(session: Session, config: Config) -> None:
    """Stages name branches and commands that run as the owner."""
    file = config.file
    if file is None or not file.stages or trust.is_trusted(session, file):
        return
    is_known = session.store.trusted_digest(str(file.path)) is not None
    gated = [claim for claim in file.claims if claim.key.startswith(("stages.", "checks."))]
    lines = "".join(f"\n  {claim.key} = {printable(claim.text)}" for claim in gated[:20])
    raise StateError(
        f"`{file.path}` {'has changed since it was approved' if is_known else 'is not approved'}, "
        f"and it declares stages{':' if lines else ''}{lines}",
        hint="read it, then: atoll trust",
    )
