"""Risky files need a yes, bound to the tree, before they reach the owner's branch or checkout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from atoll.engine.change.changes import load_changes
from atoll.engine.change.objects import answer, program
from atoll.engine.change.risk_rules import RiskKind
from atoll.engine.change.risky_files import RiskyFile, find_risky
from atoll.engine.promotion.journal import PromotionJournal, wait
from atoll.model.errors import SpecError
from atoll.model.promotion import StageSpec, StepAct, StepFacts

EVERYTHING = "risky"
"""Accepts every kind of risky file."""
_DIFF_BYTES = 4 << 20
_MOST_PATHS = 1000
_CUT = b"\n... the diff is too large and is cut here: read the rest in the capsule\n"
_MOST_NAMES = 10


class AcceptanceRequest(NamedTuple):
    """What a person is asked to accept."""

    capsule: str
    stage: str
    tree: str
    files: tuple[RiskyFile, ...]
    diff: bytes
    """Of these files; content of the capsule."""


Ask = Callable[[AcceptanceRequest], bool]


def parse_accepted(words: Sequence[str]) -> tuple[str, ...]:
    """The kinds in `--accept`. Raises SpecError for an unknown one."""
    known = [EVERYTHING, *(str(kind) for kind in RiskKind)]
    for word in words:
        if word not in known:
            raise SpecError(
                f"`--accept {word}`: there is no such kind", hint=f"one of: {', '.join(known)}"
            )
    return tuple(dict.fromkeys(words))


def require_accepted(  # noqa: PLR0913 - what lands where, and who is asked
    journal: PromotionJournal,
    stage: str,
    repository: str,
    old: str,
    new: str,
    tree: str,
    *,
    stages: Sequence[StageSpec],
    accept: Collection[str],
    ask: Ask | None,
    by: str,
) -> None:
    """Raises StoppedError while there is no yes to each risky file between two commits."""
    also = [text for spec in stages for text in (spec.run, spec.undo, spec.health) if text]
    found = find_risky(load_changes(repository, old, new), also=also)
    kinds = {str(one.kind) for one in found}
    missing = [] if EVERYTHING in accept else sorted(kinds - set(accept) - _known(journal, tree))
    capsule = journal.promotion.capsule
    if missing:
        wanted = tuple(one for one in found if str(one.kind) in missing)
        request = AcceptanceRequest(capsule, stage, tree, wanted, b"")
        if ask is None or not ask(request._replace(diff=_diff(repository, old, new, wanted))):
            names = list(dict.fromkeys(one.change.shown for one in wanted))
            shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            flags = " ".join(f"--accept {kind}" for kind in missing)
            raise wait(
                f"files that can run code on your machine, or widen its trust, are not accepted: "
                f"{shown}{more}",
                f"atoll diff {capsule}; then: atoll promote {capsule} {flags}",
            )
    if kinds - _known(journal, tree):
        facts = StepFacts(tree=tree, kinds=tuple(sorted(kinds)), by=by)
        journal.record(stage, StepAct.ACCEPT, facts)


def _known(journal: PromotionJournal, tree: str) -> set[str]:
    """The kinds that were accepted for a tree before."""
    return {
        kind
        for step in journal.steps()
        if step.act is StepAct.ACCEPT and step.facts.tree == tree
        for kind in step.facts.kinds
    }


def _diff(repository: str, old: str, new: str, found: Sequence[RiskyFile]) -> bytes:
    """The end of a large diff is cut off, and the text says so."""
    paths = list(dict.fromkeys(one.path for one in found if one.path))
    if not paths:
        return b""
    said = bytearray()
    asked = program(
        repository, "diff-tree", "-r", "-p", "--no-ext-diff", "--no-textconv", "--no-renames",
        "--no-color", old, new, "--", *paths[:_MOST_PATHS],
    )  # fmt: skip
    done = answer(asked, said.extend, limit_bytes=_DIFF_BYTES)
    if done.is_good and len(paths) <= _MOST_PATHS:
        return bytes(said)
    return bytes(said) + _CUT
