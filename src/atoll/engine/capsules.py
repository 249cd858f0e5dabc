"""Capsules: made from a plan, after the lease is written; and what can be asked of one.

Making goes through `STEPS["new"]`; whatever interrupts it, the lease says what to undo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from atoll.drivers import registry
from atoll.engine import ports, removal, runs
from atoll.engine.session import Session
from atoll.host import git
from atoll.keeper.log import Entry
from atoll.model import state
from atoll.model.errors import AtollError, StateError
from atoll.model.names import printable
from atoll.model.plan import CapsulePlan, Enclosure
from atoll.model.state import (
    CapsuleState,
    Outcome,
    Process,
    RecoveryPoint,
    Run,
    Work,
    require_outcome,
)


def make_capsule(
    session: Session,
    project: state.Project,
    plan: CapsulePlan,
    *,
    point: RecoveryPoint | None = None,
) -> state.Capsule:
    """Carries a plan out, with what `point` holds. What fails on the way is undone."""
    session.reach("new.planned", plan.name)
    lock = session.capsule_lock(project.id, plan.name)
    if not lock.acquire():
        raise StateError(f"another command is working on `{plan.name}`", hint="atoll ls")
    with lock:
        _require_free(session, project, plan)
        capsule = ports.lease_with_ports(
            session, plan.ports, lambda found: session.store.lease_capsule(project, plan, found)
        )
        session.reach("new.leased", plan.name)
        try:
            _apply(session, capsule, plan, lock.fd, point=point)
        except BaseException as error:
            # A StateError says that something was there before: it is not ours to remove.
            keep_branch = isinstance(error, StateError)
            removal.announce(session, capsule, keep_branch=keep_branch)
            removal.remove(session, capsule)
            raise
        session.store.set_ready(capsule)
        session.reach("new.ready", plan.name)
    return session.store.require_capsule(project.id, plan.name)


def _require_free(session: Session, project: state.Project, plan: CapsulePlan) -> None:
    if session.store.find_capsule(project.id, plan.name) is not None:
        raise StateError(
            f"there is a capsule `{plan.name}` already", hint=f"atoll show {plan.name}"
        )
    branch = plan.workspace.branch
    if branch is None or git.find_ref(f"refs/heads/{branch}", cwd=project.root) is None:
        return
    place = git.checked_out_at(branch, cwd=project.root)
    where = f" and is checked out at `{printable(place)}`" if place else ""
    raise StateError(
        f"the branch `{branch}` exists already{where}",
        hint=f"git branch -m {branch} {branch}-old, or choose another name",
    )


def _apply(
    session: Session,
    capsule: state.Capsule,
    plan: CapsulePlan,
    lock: int,
    *,
    point: RecoveryPoint | None,
) -> None:
    driver = registry.workspace_driver(plan.workspace.driver)
    driver.apply(plan.workspace, lock=lock)
    session.reach("new.workspace", plan.name)
    registry.isolation_driver(plan.isolation.driver).apply(plan.isolation)
    session.reach("new.isolation", plan.name)
    for command in plan.setup:
        outcome = _run_setup(session, capsule, command)
        if not outcome.good:
            raise SetupError(command, outcome)
    if point is not None:
        # After the set-up, which may change what the point holds.
        driver.restore(plan.workspace, point, lock=lock)
    session.reach("new.setup", plan.name)


class SetupError(AtollError):
    """A set-up command of the project file said no; the capsule was not kept."""

    exit_code = 1
    kind = "setup"

    def __init__(self, command: str, outcome: Outcome) -> None:
        said = f", after saying\n{outcome.message}" if outcome.message else ""
        super().__init__(
            f"the set-up command `{command}` failed with exit code {outcome.shell_code}{said}",
            hint="mend it in atoll.toml, then: atoll trust",
        )


def _run_setup(session: Session, capsule: state.Capsule, command: str) -> Outcome:
    handle = Capsule(session=session, record=capsule)
    spec = runs.RunSpec(argv=("/bin/sh", "-c", command), stdin=False)
    states = (CapsuleState.CREATING,)
    run = runs.start(session, capsule, handle.enclosure(), spec, states=states)
    result = handle.follow(run)
    if not result.outcome.good:
        # The capsule goes, and its log with it: the end of what was said is all that stays.
        said = (result.stdout + result.stderr)[-4000:].decode(errors="replace").strip()
        tail = "\n".join(f"  {printable(line)}" for line in said.splitlines()[-12:])
        return result.outcome._replace(message=tail or None)
    return result.outcome


class Result(NamedTuple):
    """A finished run with its output, as the library gives it."""

    run: Run
    outcome: Outcome
    stdout: bytes
    stderr: bytes

    @property
    def exit_code(self) -> int:
        return self.outcome.shell_code


class Capsule:
    """A handle on one capsule. As a context manager it removes the capsule at the end, unless
    it holds work: then the capsule stays, with its processes stopped.
    """

    def __init__(self, *, session: Session, record: state.Capsule) -> None:
        self.session = session
        self.record = record

    def __repr__(self) -> str:
        return f"<Capsule {self.name} ({self.record.level}) at {self.path}>"

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def path(self) -> Path:
        """Where the workspace can be opened on the host."""
        return Path(self.record.workspace)

    @property
    def ports(self) -> dict[str, int]:
        return dict(self.record.ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if not self.work().any:
            self.remove()

    def enclosure(self) -> Enclosure:
        """How a process is started inside, with the capsule's own variables."""
        project = self.session.store.project_name(self.record.project_id)
        own = {
            "ATOLL_CAPSULE": self.name,
            "ATOLL_PROJECT_NAME": project,
            **ports.variables(self.record.ports),
        }
        return removal.enclosure(self.session, self.record).adding(own)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> Result:
        """Runs a command inside to its end. A command that fails is a result, not an error."""
        run = self.start(runs.RunSpec(argv=tuple(argv), timeout_s=timeout_s))
        return self.follow(run, stdin=stdin)

    def start(self, spec: runs.RunSpec) -> Run:
        return runs.start(self.session, self.record, self.enclosure(), spec)

    def follow(self, run: Run, *, stdin: bytes = b"") -> Result:
        """Feeds and reads a foreground run to its end."""
        streams: dict[str, list[bytes]] = {"out": [], "err": []}
        channel = runs.find_channel(self.session, run, role="foreground")
        if channel is not None:
            with channel:
                channel.write(stdin)
                channel.close_input()
                for stream, data in channel.exchange():
                    streams[stream].append(data)
        ended = self.conclude(run)
        return Result(
            run=ended,
            outcome=require_outcome(ended),
            stdout=b"".join(streams["out"]),
            stderr=b"".join(streams["err"]),
        )

    def conclude(self, run: Run) -> Run:
        """Waits for the end of a run and records it."""
        self.session.reach("run.ended", run.label)
        ended = runs.wait(self.session, run)
        self.session.reach("run.recorded", run.label)
        return ended

    def channel(self, run: Run, *, role: str, rows: int, cols: int) -> runs.Channel | None:
        return runs.find_channel(self.session, run, role=role, rows=rows, cols=cols)

    def runs(self) -> list[Run]:
        """All runs, the oldest first, as they are now."""
        return [runs.settle(self.session, run) for run in self.session.store.runs(self.record)]

    def living(self) -> list[Run]:
        return [run for run in self.runs() if run.state is not state.RunState.ENDED]

    def find_run(self, number: int | None) -> Run | None:
        """The run with a number, or the latest."""
        found = [run for run in self.runs() if number in (None, run.number)]
        return found[-1] if found else None

    def require_run(self, number: int | None = None) -> Run:
        run = self.find_run(number)
        if run is None:
            what = "run" if number is None else f"run {number}"
            raise StateError(f"`{self.name}` has no {what}", hint=f"atoll show {self.name}")
        return run

    def wait(self, run: Run, *, timeout_s: float | None = None) -> Run:
        return runs.wait(self.session, run, timeout_s=timeout_s)

    def stop(self, run: Run | None = None, *, grace_s: float | None = None) -> list[Run]:
        """Ends one run, or all of them, with everything that they started."""
        targets = [run] if run is not None else self.living()
        return [runs.stop(self.session, target, grace_s=grace_s) for target in targets]

    def processes(self) -> list[tuple[Run, Process]]:
        return [
            (run, process) for run in self.living() for process in runs.processes(self.session, run)
        ]

    def log(self, run: Run, *, follow: bool = False) -> Iterator[Entry]:
        return runs.entries(self.session, run, follow=follow)

    def work(self, *, keep_branch: bool = False) -> Work:
        """What exists only in this capsule; with `keep_branch`, what its branch does not hold."""
        return removal.find_work(self.session, self.record, keep_branch=keep_branch)

    def remove(self, *, force: bool = False, keep_branch: bool = False) -> RecoveryPoint | None:
        """Removes the capsule. Refuses when work would exist nowhere else; `force` stores that
        work as a recovery point first, which is returned.
        """
        with self._alone():
            if not force:
                self._require_expendable(keep_branch=keep_branch)
            removal.announce(self.session, self.record, keep_branch=keep_branch)
            return removal.remove(self.session, self.record)

    def require_expendable(self, *, keep_branch: bool = False) -> None:
        """Raises StateError when removal would need `force`, saying why."""
        with self._alone():
            self._require_expendable(keep_branch=keep_branch)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other command works on this capsule meanwhile. Raises StateError when one does, or
        when one has removed it.
        """
        lock = self.session.lock_of(self.record)
        if not lock.acquire():
            raise StateError(f"another command is working on `{self.name}`", hint="atoll ls")
        with lock:
            now = self.session.store.require_capsule(self.record.project_id, self.name)
            if (now.id, now.state) != (self.record.id, CapsuleState.READY):
                raise StateError(f"`{self.name}` has been removed", hint="atoll ls")
            yield

    def _require_expendable(self, *, keep_branch: bool) -> None:
        if living := self.living():
            raise StateError(
                f"`{self.name}` is still running " + ", ".join(f"`{run.label}`" for run in living),
                hint=f"atoll stop {self.name}, or atoll rm {self.name} --force",
            )
        work = self.work(keep_branch=keep_branch)
        if work.any:
            raise StateError(
                f"`{self.name}` holds work that exists nowhere else: " + "; ".join(work.render()),
                hint=self._way_out(work),
            )

    def _way_out(self, work: Work) -> str:
        if work.uncommitted or work.untracked or work.nested:
            return (
                f'atoll commit {self.name} -m "…", or atoll rm {self.name} --force '
                "(stores it; atoll recover brings it back)"
            )
        return f"git merge {self.record.branch}, or atoll rm {self.name} --keep-branch"
