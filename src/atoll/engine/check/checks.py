"""Runs checks on an exact tree, each in a fresh capsule, and stores what was observed.

A result is stored by the tree and by the definition of the check. Of several commands that want the
same result, one runs the check and the others wait for what it stores.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.engine.capsule import parts
from atoll.engine.capsule.temporary import FreshSpec, Workbench
from atoll.engine.check import attempts, logs
from atoll.engine.check.selection import select_checks as select_checks  # noqa: PLC0414 - API
from atoll.engine.history import snapshots
from atoll.engine.project import levels, trust
from atoll.engine.project.settings import load_config
from atoll.engine.state.session import Session
from atoll.host import locks
from atoll.host.process import wait_until
from atoll.model.check import CheckResult, CheckSpec, CheckStatus
from atoll.model.errors import AtollError, Interrupted, StateError
from atoll.model.state import CapsuleRecord, ProjectRecord, Snapshot, SnapshotKind

_STEP_S = 0.2


class CheckTarget(NamedTuple):
    """What is checked."""

    commit: str
    """In the owner's repository."""
    tree: str
    base_commit: str
    """What the work is based on."""
    level: str | None = None
    """None: the project's own."""
    network: str | None = None
    """None: the project's own. What a capsule wrote gets no wider network than the capsule has."""


class CheckProgress(NamedTuple):
    """One step of a check, for a live display."""

    name: str
    phase: str
    """`queued`, `running` or `ended`."""
    result: CheckResult | None = None


class CheckStopped(StateError):  # noqa: N818 - not an error, but a request
    """Checks were ended before they had a result."""


class Checker:
    """Runs checks on trees of one project. May be used by several threads at once."""

    def __init__(
        self,
        session: Session,
        project: ProjectRecord,
        *,
        most: int | None = None,
        on_progress: Callable[[CheckTarget, CheckProgress], None] | None = None,
    ) -> None:
        """`most` checks run at once, of all calls together; None: as many as there are CPUs."""
        self.session = session
        self.project = project
        count = len(os.sched_getaffinity(0)) if most is None else most
        self._turns = threading.BoundedSemaphore(max(1, count))
        self._on_progress = on_progress
        self._reporting = threading.Lock()
        self._stopped = threading.Event()

    def check(
        self, target: CheckTarget, specs: Sequence[CheckSpec], *, again: bool = False
    ) -> list[CheckResult]:
        """The results in the order of `specs`. A result for the same tree and definition that is
        stored is returned, and not observed anew unless `again`.

        A check that cannot be run has the status `error`, which is never returned as a stored
        result. Raises StateError when the project file is not trusted, IsolationError when the
        level is not available, CheckStopped after `stop`.
        """
        known = {spec.digest: self.find(target, spec) for spec in specs}
        if not again and all(is_reusable(known[spec.digest]) for spec in specs):
            return [self.reuse(target, spec, known[spec.digest]) for spec in specs]
        target = self._at_level(target)
        with Workbench(self.session, self.project, stem="check").open() as bench:
            call = _Call(self, target, bench, needs_template=self._needs_template(target, specs))
            # With `again`, what was stored before this call does not count.
            former = {
                digest: result.id if result is not None and again else 0
                for digest, result in known.items()
            }
            return call.run_all(specs, former)

    def stop(self) -> None:
        """Ends every check, of all calls, which raise CheckStopped. There are no more."""
        self._stopped.set()

    def report(self, target: CheckTarget, progress: CheckProgress) -> None:
        if self._on_progress is not None:
            with self._reporting:
                self._on_progress(target, progress)

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    @contextmanager
    def turn(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Waits until it is the turn of one more check."""
        while not self._turns.acquire(timeout=_STEP_S):
            give_up()
        try:
            yield
        finally:
            self._turns.release()

    def find(self, target: CheckTarget, spec: CheckSpec) -> CheckResult | None:
        """The stored result of a check on the tree of a target."""
        store = self.session.store
        return store.find_check_result(self.project.id, target.tree, spec.digest)

    def reuse(
        self, target: CheckTarget, spec: CheckSpec, result: CheckResult | None
    ) -> CheckResult:
        """A stored result as the answer of this call."""
        assert result is not None  # noqa: S101 - `is_reusable` was asked
        # Checks with the same definition share results, whatever their names are.
        known = result._replace(name=spec.name, is_known=True)
        self.report(target, CheckProgress(spec.name, "ended", known))
        return known

    def _at_level(self, target: CheckTarget) -> CheckTarget:
        """The target with the level and the network that its capsules have; raises when there can
        be none.
        """
        given = {} if target.level is None else {"capsule.level": target.level}
        config = load_config(Path(self.project.root), self.session.owner, given=given)
        trust.require_trust(self.session, config)
        level = levels.require_level(config.settings.value("capsule.level"))
        if level.workspace == "checkout":
            level = _plain_level(self.session)
        wanted = config.settings.value("capsule.workspace")
        levels.require_drivers(level, self.session.home, wanted=wanted)
        is_offered = target.network in level.networks and len(level.networks) > 1
        network = target.network if is_offered else None
        return target._replace(level=level.name, network=network)

    def _needs_template(self, target: CheckTarget, specs: Sequence[CheckSpec]) -> bool:
        """Whether the set-up is run once, in a capsule that the others are forks of."""
        config = load_config(Path(self.project.root), self.session.owner)
        level = levels.require_level(str(target.level))
        is_several = len(specs) > 1 or any(spec.retries for spec in specs)
        has_setup = bool(config.settings.value("capsule.setup", ()))
        return has_setup and is_several and level.workspace == levels.LAYERS


def is_reusable(result: CheckResult | None) -> bool:
    """Whether a stored result says something about the tree."""
    return result is not None and result.status is not CheckStatus.ERROR


def _plain_level(session: Session) -> levels.Level:
    """The level of check capsules for a project whose runs are at level `none`, in the checkout
    itself: an exact tree needs a workspace of its own.
    """
    clone = levels.require_level("clone")
    return levels.require_level("worktree") if levels.find_problems(clone, session.home) else clone


class _Call:
    """One call of `Checker.check`: its threads, and the capsule that its others are forks of."""

    def __init__(
        self, checker: Checker, target: CheckTarget, bench: Workbench, *, needs_template: bool
    ) -> None:
        self._checker = checker
        self._session = checker.session
        self._project = checker.project
        self._target = target
        self._bench = bench
        self._is_ended = threading.Event()
        self._templating = threading.Lock()
        self._needs_template = needs_template
        self._template: tuple[CapsuleRecord, Snapshot] | AtollError | None = None

    def run_all(self, specs: Sequence[CheckSpec], former: dict[str, int]) -> list[CheckResult]:
        from concurrent.futures import (  # noqa: PLC0415 - costs as much as a capsule
            FIRST_EXCEPTION,
            ThreadPoolExecutor,
            wait,
        )

        for spec in specs:
            self._checker.report(self._target, CheckProgress(spec.name, "queued"))
        with ThreadPoolExecutor(max_workers=min(len(specs), 64)) as pool:
            futures = [pool.submit(self._ensure, spec, former[spec.digest]) for spec in specs]
            try:
                while True:
                    done, waiting = wait(futures, timeout=_STEP_S, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    self._give_up()
                    if not waiting:
                        return [future.result() for future in futures]
            except BaseException:
                self._is_ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                attempts.end_all(self._session, self._bench, futures)
                raise

    def _give_up(self) -> None:
        if self._is_ended.is_set() or self._checker.is_stopped:
            raise CheckStopped("the checks were stopped")

    def _ensure(self, spec: CheckSpec, former: int) -> CheckResult:
        """The result that another command stores meanwhile, or a new one."""
        lock = self._session.check_lock(self._project.id, self._target.tree, spec.digest)
        with self._locked(lock):
            found = self._checker.find(self._target, spec)
            if found is not None and found.id > former and is_reusable(found):
                return self._checker.reuse(self._target, spec, found)
            with self._checker.turn(self._give_up):
                self._checker.report(self._target, CheckProgress(spec.name, "running"))
                result = self._observe(spec)
            self._session.reach("check.observed", spec.name)
            stored = self._session.store.add_check_result(result)
            self._session.reach("check.stored", spec.name)
        self._checker.report(self._target, CheckProgress(spec.name, "ended", stored))
        return stored

    @contextmanager
    def _locked(self, lock: locks.Lock) -> Iterator[None]:
        def is_taken() -> bool:
            self._give_up()
            return lock.acquire()

        wait_until(is_taken, timeout_s=None, interval_s=_STEP_S)
        with lock:
            yield

    def _observe(self, spec: CheckSpec) -> CheckResult:
        at = time.time()
        made: list[attempts.Attempt] = []
        while len(made) <= spec.retries:
            made.append(self._attempt(spec))
            # Its runs were stopped then, and say nothing.
            self._give_up()
            if made[-1].status in (CheckStatus.PASSED, CheckStatus.ERROR):
                break
        return build_result(
            self._session, self._project, self._target, spec, attempts.combine(made),
            at=at, count=len(made),
        )  # fmt: skip

    def _attempt(self, spec: CheckSpec) -> attempts.Attempt:
        self._give_up()
        try:
            capsule = self._make()
        except Interrupted:
            raise
        except AtollError as error:
            return attempts.failed_to_run(error)
        try:
            self._give_up()
            return attempts.run_in(
                self._session, capsule, spec, attempts.starter(self._session, capsule)
            )
        except Interrupted:
            raise
        except AtollError as error:
            return attempts.failed_to_run(error)
        finally:
            self._bench.remove(capsule)

    def _make(self) -> CapsuleRecord:
        if self._needs_template:
            return self._bench.fork(*self._require_template())
        return self._bench.make(self._fresh)

    @property
    def _fresh(self) -> FreshSpec:
        target = self._target
        return FreshSpec(
            commit=target.commit,
            base_commit=target.base_commit,
            level=target.level,
            network=target.network,
        )

    def _require_template(self) -> tuple[CapsuleRecord, Snapshot]:
        """A capsule in which the set-up has run, and its snapshot. A set-up that fails is not run
        again for each check.
        """
        with self._templating:
            if self._template is None:
                try:
                    self._template = self._make_template()
                except AtollError as error:
                    self._template = error
            if isinstance(self._template, AtollError):
                raise self._template
            return self._template

    def _make_template(self) -> tuple[CapsuleRecord, Snapshot]:
        capsule = self._bench.make(self._fresh)
        lock = self._session.lock_of(capsule)
        lock.acquire(wait=True)
        with lock:
            point = snapshots.take(
                self._session, capsule, parts.registered(),
                message="set up", kind=SnapshotKind.AUTOMATIC,
            )  # fmt: skip
        return capsule, point


def build_result(  # noqa: PLR0913 - what a result is made of
    session: Session,
    project: ProjectRecord,
    target: CheckTarget,
    spec: CheckSpec,
    observed: attempts.Attempt,
    *,
    at: float,
    count: int,
) -> CheckResult:
    """The result of a check, with its output in a log."""
    output = observed.output
    log = ""
    if output is not None and (content := output.log):
        log = logs.write_log(session, project.id, content, dropped_bytes=output.dropped_bytes)
    return CheckResult(
        id=0,
        project_id=project.id,
        tree=target.tree,
        commit=target.commit,
        name=spec.name,
        digest=spec.digest,
        command=spec.command,
        status=observed.status,
        at=at,
        took_s=observed.took_s,
        exit_code=observed.exit_code,
        attempts=count,
        figures=output.figures if output is not None else (),
        tests=observed.tests,
        warnings=output.warnings if output is not None else 0,
        message=observed.message,
        output=output.tail if output is not None else "",
        log=log,
    )
