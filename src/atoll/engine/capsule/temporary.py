"""Capsules that a command makes for itself and removes, such as those in which checks run.

They hold no work. The command holds a lock that their rows name, so that the next command removes
those of a killed one. `ls` does not list them, and their commits are not exported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.engine.capsule import creation, planning, removal
from atoll.engine.project.settings import load_config
from atoll.engine.state.session import Session
from atoll.model import state
from atoll.model.plan import CapsulePlan
from atoll.model.state import CapsuleRecord


class FreshSpec(NamedTuple):
    """What a temporary capsule starts from."""

    commit: str
    base_commit: str = ""
    """What its changes are relative to; empty: `commit` itself."""
    level: str | None = None
    """None: the project's own."""
    network: str | None = None
    """None: as the project's."""
    visible: tuple[str, ...] = ()
    """More commits whose history git sees inside."""


class Workbench:
    """Makes temporary capsules, and removes those that are left at its end."""

    def __init__(self, session: Session, project: state.ProjectRecord, *, stem: str) -> None:
        """`stem` is the beginning of their names, such as `check`."""
        self._session = session
        self._project = project
        self._stem = stem
        self._token = os.urandom(8).hex()

    @contextmanager
    def open(self) -> Iterator[Workbench]:
        lock = self._session.temporary_lock(self._token)
        lock.acquire(wait=True)
        try:
            yield self
        finally:
            try:
                self._remove_all()
            finally:
                lock.release(remove=True)

    def make(self, spec: FreshSpec) -> CapsuleRecord:
        """A fresh capsule; may be called by several threads at once. Raises what `new` raises."""
        [plan] = self._plans(spec)
        [made] = creation.make_capsules(self._session, self._project, [plan])
        return made

    def fork(self, origin: CapsuleRecord, point: state.Snapshot) -> CapsuleRecord:
        """A fork of a capsule at one of its snapshots."""
        spec = FreshSpec(commit=origin.base_commit, level=origin.level)
        [plan] = self._plans(spec)
        return creation.fork_capsule(self._session, self._project, origin, plan, point)

    def remove(self, capsule: CapsuleRecord) -> None:
        """Removes one with its processes; its files are not kept."""
        lock = self._session.lock_of(capsule)
        lock.acquire(wait=True)
        with lock:
            current = self._session.store.capsule(capsule.id)
            if current is not None:
                removal.finish(self._session, current)

    def capsules(self) -> list[CapsuleRecord]:
        """Those that it has made and that are still there."""
        found = self._session.store.capsules(self._project.id)
        return [capsule for capsule in found if capsule.temporary == self._token]

    def _plans(self, spec: FreshSpec) -> list[CapsulePlan]:
        given = {"project.base": spec.commit}
        if spec.level is not None:
            given["capsule.level"] = spec.level
        if spec.network is not None:
            given["capsule.network"] = spec.network
        config = load_config(Path(self._project.root), self._session.owner, given=given)
        name = f"{self._stem}-{os.urandom(4).hex()}"
        plans = planning.plan_capsules(self._session, self._project, [name], config)
        return [
            plan._replace(
                base_commit=spec.base_commit or plan.base_commit,
                temporary=self._token,
                visible=spec.visible,
            )
            for plan in plans
        ]

    def _remove_all(self) -> None:
        for capsule in self.capsules():
            self.remove(capsule)
