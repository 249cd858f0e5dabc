"""Grafts: a new candidate, made of parts of others.

Its tree is the base with the changes that the named candidates made at the named paths. Changes of
two parts to one path have to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.engine.capsule import creation, exports, planning
from atoll.engine.change.changes import load_changes
from atoll.engine.project.settings import load_config, parse_limits
from atoll.engine.race.evidence import trees
from atoll.engine.race.evidence.suites import Listing, TreeFile, find_obstacle
from atoll.engine.race.field import Field
from atoll.model.errors import SpecError, StateError
from atoll.model.names import parse_name, printable
from atoll.model.plan import CapsulePlan
from atoll.model.race import Candidate, CandidateSpec, CandidateState
from atoll.model.state import CapsuleRecord

_PATH_LENGTH = 4096
_SHOWN = 5


class GraftPart(NamedTuple):
    """What a graft takes of one candidate."""

    name: str
    path: str = ""
    """Empty: everything that it changed."""

    def render(self) -> str:
        return f"{self.name}:{self.path}" if self.path else self.name

    def includes(self, path: str) -> bool:
        return not self.path or path == self.path or path.startswith(f"{self.path}/")


TreeChanges = dict[str, TreeFile | None]
"""By path; None where a candidate deleted the file."""


def parse_part(text: str) -> GraftPart:
    """`NAME` or `NAME:PATH`. Raises SpecError for a path that can be in no tree."""
    name, colon, path = text.partition(":")
    shown = printable(text[:100])
    if colon and not path.strip("/"):
        raise SpecError(f"`{shown}` names no path", hint=f"{printable(name)}, or NAME:src/parser")
    place = path.rstrip("/")
    steps = place.split("/")
    if place and (
        len(place) > _PATH_LENGTH
        or "\0" in place
        or any(step in ("", ".", "..") or step.lower() == ".git" for step in steps)
    ):
        raise SpecError(
            f"`{shown}`: the path is not one inside the project", hint="NAME:src/parser"
        )
    return GraftPart(parse_name(name), place)


def combine(
    parts: Sequence[GraftPart], changed: dict[str, TreeChanges], base: Listing, *, race: str
) -> TreeChanges:
    """The changes of all parts. Raises StateError where a part has none, where two differ about a
    path, and where the result cannot be a tree.
    """
    result: TreeChanges = {}
    by: dict[str, GraftPart] = {}
    conflicts = []
    for part in parts:
        mine = {path: entry for path, entry in changed[part.name].items() if part.includes(path)}
        if not mine:
            raise StateError(
                _describe_missing(part, changed[part.name]), hint=f"atoll compare {race}"
            )
        for path, entry in mine.items():
            if path in result and result[path] != entry:
                conflicts.append((path, by[path], part))
            result.setdefault(path, entry)
            by.setdefault(path, part)
    if conflicts:
        shown = "; ".join(
            f"`{printable(path)}` ({one.name}, {other.name})"
            for path, one, other in conflicts[:_SHOWN]
        )
        more = f" and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        raise StateError(
            f"the parts differ about {shown}{more}",
            hint="name the paths of each part so that no file is in two of them",
        )
    left = base.keys() - result.keys()
    added = [path for path, entry in result.items() if entry is not None]
    every = {*left, *added}
    if (obstacle := find_obstacle(every, every)) is not None:
        raise StateError(
            f"the parts cannot be combined: `{printable(obstacle)}` is a file of one and a "
            "directory of another"
        )
    return result


def _describe_missing(part: GraftPart, changed: TreeChanges) -> str:
    if not part.path:
        return f"`{part.name}` changes nothing"
    tops = list(dict.fromkeys("/".join(path.split("/")[:2]) for path in changed))
    shown = ", ".join(f"`{printable(path)}`" for path in tops[:_SHOWN])
    more = ", …" if len(tops) > _SHOWN else ""
    what = f"only {shown}{more}" if tops else "nothing"
    return f"`{part.name}` changes nothing at `{printable(part.path)}`, {what}"


def find_tree_changes(repository: str, base: Listing, tree: str) -> TreeChanges:
    """What a tree changes of the base."""
    listing = trees.load_listing(tree, repository=repository)
    changes: TreeChanges = {path: None for path in base if path not in listing}
    return changes | {path: e for path, e in listing.items() if base.get(path) != e}


class Grafting:
    """Makes a graft, step by step; each may be repeated after a crash."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._session = field.session
        self._project = field.project
        self._race = field.race
        self._repository = field.project.git_dir

    def compose(self, parts: Sequence[GraftPart]) -> tuple[str, str]:
        """The commit with the parts on the base, and its tree."""
        candidates = {one.name: one for one in self._session.store.candidates(self._race.id)}
        base_tree = trees.tree_of(self._race.base_commit, repository=self._repository)
        base = trees.load_listing(base_tree, repository=self._repository)
        changed = {}
        for part in parts:
            one = self._require(candidates, part.name)
            changed[part.name] = find_tree_changes(self._repository, base, one.tree)
        changes = combine(parts, changed, base, race=self._race.name)
        tree = trees.write_tree(self._session, base_tree, changes, repository=self._repository)
        listed = " ".join(printable(part.render()) for part in parts)
        commit = trees.write_commit(
            tree,
            f"Graft of {listed}",
            parent=self._race.base_commit,
            at=self._race.created_at,
            repository=self._repository,
            author=self._session.ref_cache.identity(self._project),
        )
        trees.keep(self._race, commit, repository=self._repository)
        return commit, tree

    def _require(self, candidates: dict[str, Candidate], name: str) -> Candidate:
        one = candidates.get(name)
        if one is None:
            listed = ", ".join(f"`{other}`" for other in candidates)
            raise StateError(
                f"the race `{self._race.name}` has no candidate `{name}`",
                hint=f"one of {listed}",
            )
        if not one.tree:
            raise StateError(
                f"`{name}` is {one.state} and has left no tree",
                hint=f"atoll race show {self._race.name}",
            )
        return one

    def add(self, name: str, parts: Sequence[GraftPart], commit: str, tree: str) -> Candidate:
        """Stores the candidate. One of a killed command with the same parts is used again."""
        spec = CandidateSpec(graft=tuple(part.render() for part in parts))
        for one in self._session.store.candidates(self._race.id):
            if one.name != name:
                continue
            if one.spec.graft == spec.graft and one.tree == tree:
                return one
            raise StateError(
                f"the race `{self._race.name}` already has a candidate `{name}`",
                hint="--name NAME",
            )
        found = load_changes(self._repository, self._race.base_commit, commit)
        return self._session.store.add_candidate(
            Candidate(
                self._race.id,
                0,
                name,
                CandidateState.CHECKING,
                spec,
                attempts=1,
                commit=commit,
                tree=tree,
                files=len(found.files),
                added=found.added,
                removed=found.removed,
            )
        )

    def plan_name(self, parts: Sequence[GraftPart], name: str | None) -> str:
        """The name that was given, or the next free `RACE-graft-N`; that of a killed command with
        the same parts is used again.
        """
        if name is not None:
            return parse_name(name)
        graft = tuple(part.render() for part in parts)
        candidates = self._session.store.candidates(self._race.id)
        capsules = {record.name for record in self._session.store.capsules(self._project.id)}
        for one in candidates:
            if one.spec.graft == graft and one.state is not CandidateState.DONE:
                return one.name
        taken = {one.name for one in candidates} | capsules
        stem = self._race.name[:30].rstrip("-")
        number = 1
        while f"{stem}-graft-{number}" in taken:
            number += 1
        return f"{stem}-graft-{number}"

    def make_capsule(self, candidate: Candidate) -> CapsuleRecord:
        """A capsule with the commit of the graft on its branch, which is exported."""
        store = self._session.store
        found = self._field.find_capsule(candidate)
        if found is None:
            [found] = creation.make_capsules(self._session, self._project, self._plans(candidate))
        lock = self._session.lock_of(found)
        lock.acquire(wait=True)
        with lock:
            exports.export(self._session, store.require_capsule(self._project.id, found.name))
        return store.require_capsule(self._project.id, found.name)

    def require_free(self, name: str, commit: str) -> None:
        """Raises StateError if there is a capsule or branch of this name."""
        candidate = Candidate(
            self._race.id, 0, name, CandidateState.CHECKING, CandidateSpec(), commit=commit
        )
        creation.require_free(self._session, self._project, self._plans(candidate))

    def _plans(self, candidate: Candidate) -> list[CapsulePlan]:
        spec = self._race.spec
        words = {
            "project.base": candidate.commit,
            "capsule.level": spec.level,
            "capsule.network": spec.network,
        }
        given = {key: text for key, text in words.items() if text is not None}
        config = load_config(
            Path(self._project.root),
            self._session.owner,
            given={**given, **parse_limits(spec.limits)},
        )
        plans = planning.plan_capsules(self._session, self._project, [candidate.name], config)
        base = self._race.base_commit
        # Names it as the candidate's own.
        own = self._field.variables(candidate)
        return [
            plan._replace(
                base_ref=spec.base_ref or base,
                base_commit=base,
                isolation=plan.isolation._replace(variables={**plan.isolation.variables, **own}),
            )
            for plan in plans
        ]
