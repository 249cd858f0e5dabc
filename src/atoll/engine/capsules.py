"""Everything that can be done with one capsule: the API that every interface calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from atoll.drivers import registry
from atoll.engine.capsule import exports, foreground_runs, parts, removal
from atoll.engine.enclosure import views
from atoll.engine.history import snapshots, upkeep
from atoll.engine.history.snapshots import TimelineEntry
from atoll.engine.history.workspace import require_layers
from atoll.engine.network import refusals, rules
from atoll.engine.network.egress_log import EgressAttempt
from atoll.engine.run import freezer, run_environment, runs
from atoll.engine.run.captured_output import TEXT_LIMIT_BYTES, Captured, Result
from atoll.engine.run.channels import Channel
from atoll.engine.run.runs import RunSpec
from atoll.engine.state.leases import isolation_plan, workspace_plan
from atoll.engine.state.session import Session
from atoll.host import locks, programs
from atoll.host.beneath import open_by_parts
from atoll.host.process import wait_until
from atoll.keeper.log import LogEntry
from atoll.model import state
from atoll.model.enclosure import Enclosure
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.state import (
    CapsuleState,
    Event,
    Patch,
    Process,
    RecoveryPoint,
    Run,
    Snapshot,
    SnapshotKind,
    Work,
)

if TYPE_CHECKING:
    from atoll.engine.agent.agents import Agent
    from atoll.engine.browser.browsers import Browser
    from atoll.engine.capsule.disk_use import DiskUse
    from atoll.engine.check.bisection import BisectReport, Tried
    from atoll.engine.check.capsule_checks import CheckReport
    from atoll.engine.check.checks import CheckProgress
    from atoll.engine.check.trials import Trial
    from atoll.engine.promotion.promotions import PromotionReport

__all__ = ["TEXT_LIMIT_BYTES", "Capsule", "Captured", "RunSpec"]


class Capsule:
    """A handle on one capsule. As a context manager it removes the capsule at the end, unless
    it holds work: then the capsule stays, with its processes stopped.
    """

    def __init__(self, *, session: Session, record: state.CapsuleRecord) -> None:
        self.session = session
        self.record = record

    def __repr__(self) -> str:
        return f"<Capsule {self.name} ({self.record.level}) at {self.record.workspace}>"

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def path(self) -> Path:
        """Where the workspace can be opened on the host. A view stays mounted from now on."""
        return views.host_path(self.session, self.record)

    def has_directory(self, relative: str) -> bool:
        """Whether the workspace holds this directory, reached without following a link."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            top = os.open(views.host_path(self.session, self.record, pin=False), flags)
        except (OSError, StateError):
            return False
        try:
            os.close(open_by_parts(top, os.fsencode(relative), flags))
        except OSError:
            return False
        finally:
            os.close(top)
        return True

    @property
    def is_view(self) -> bool:
        """Whether the workspace is mounted at the project's path, in a namespace of the capsule."""
        return workspace_plan(self.session, self.record).is_layered

    @property
    def workspace_driver(self) -> str:
        return workspace_plan(self.session, self.record).driver

    def visible(self) -> list[str] | None:
        """The host paths that its processes can read; None: all of them."""
        plan = isolation_plan(self.session, self.record)
        return registry.isolation_driver(plan.driver).visible(plan, self.session.owner)

    def limits(self) -> dict[str, tuple[float, str]]:
        """By name: the value, and whether it is `enforced`, `watched` or `not enforced`."""
        from atoll.engine.enclosure import cgroup_limits  # noqa: PLC0415 - looks at the host
        from atoll.host import view_client  # noqa: PLC0415 - likewise

        limits = isolation_plan(self.session, self.record).limits
        answer = view_client.ask(self.record.directory, {"ping": True}) if limits else None
        return cgroup_limits.describe(self.session, limits, None if answer is None else answer[0])

    @staticmethod
    def uncounted(limit: str, how: str) -> tuple[str, ...]:
        """What a limit of this name does not count when it is enforced like this."""
        from atoll.engine.enclosure import cgroup_limits  # noqa: PLC0415 - likewise

        return cgroup_limits.uncounted(limit, how)

    @property
    def network(self) -> str:
        return isolation_plan(self.session, self.record).network

    def allow(self, rule: str) -> None:
        """Allows one more network destination, effective at once."""
        rules.grant(self.session, self.record, rule)

    def revoke(self, rule: str) -> None:
        rules.revoke(self.session, self.record, rule)

    def allowed(self) -> list[rules.Allowed]:
        """Each rule with its source and what it expands to."""
        return rules.allowed(self.session, self.record)

    def attempts(
        self, *, count: int | None = None, follow: bool = False
    ) -> Iterator[EgressAttempt]:
        """The connection attempts of its processes, the oldest first."""
        return rules.attempts(self.record, count=count, follow=follow)

    def mark_refusals(self) -> refusals.Mark:
        """A mark for `refusals`: the present."""
        return refusals.mark(self.record)

    def refusals(self, start: refusals.Mark | Run) -> list[EgressAttempt]:
        """The connections that were refused since a mark, or since a run was started."""
        mark = refusals.of_run(start) if isinstance(start, Run) else start
        return refusals.since(self.session, self.record, mark)

    def describe_refusals(self, found: list[EgressAttempt]) -> str | None:
        """One line, with the commands that show and allow them; None without refusals."""
        return refusals.describe(self.record, found)

    @property
    def ports(self) -> dict[str, int]:
        return dict(self.record.ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        with self.alone():
            if self._find_obstacle() is not None:
                return
            _remove(self, force=False, keep_branch=False)
        upkeep.start(self.session)

    def enclosure(self, *, is_open: bool = False) -> Enclosure:
        """How a process is started inside, with the capsule's own variables."""
        return foreground_runs.enclosure(self.session, self.record, is_open=is_open)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Runs a command inside to its end. A command that fails is a result, not an error.

        `env` are variables for this run only. They are not recorded, and values of 8 bytes or more
        are removed from the recorded log.
        """
        run = self.start(RunSpec(argv=tuple(argv), timeout_s=timeout_s, private_env=env or {}))
        return self.follow(run, stdin=stdin)

    def start(
        self,
        spec: RunSpec,
        *,
        owner: bool = False,
        finish: Callable[[Session, Run], None] = exports.finish_when_over,
    ) -> Run:
        """Starts a run; with `owner` as the owner's own program, with all of their environment.

        `finish` is called for a background run, to provide for its end.
        """
        freezer.require_running(self.record)
        if spec.network is not None:
            rules.require_mode(self.session, self.record, spec.network)
        if self.record.automatic:
            self._snapshot_before(spec)
        # `runs.start` opens the view if necessary.
        inside = self.enclosure(is_open=True)
        if owner:
            from atoll.engine.run import owner_programs  # noqa: PLC0415 - only for `edit`

            inside, spec = owner_programs.for_the_owner(self.session, self.record, inside, spec)
        elif self.session.store.secret_grants(self.record.id):
            from atoll.engine.secret import delivery  # noqa: PLC0415 - for few capsules

            spec = delivery.add_secrets(self.session, self.record, inside, spec)
        run = runs.start(self.session, self.record, inside, spec)
        if spec.files or self.session.store.secrets(self.record.project_id):
            from atoll.engine.secret import delivery  # noqa: PLC0415 - for few capsules

            delivery.drop_revoked(self.session, self.record)
        if spec.background:
            finish(self.session, run)
        return run

    def parse_variables(self, words: Sequence[str], files: Sequence[str]) -> dict[str, str]:
        """Returns the variables of `--env` and `--env-file` for one run. Raises SpecError.

        Words win over files, and later ones over earlier ones.
        """
        found: dict[str, str] = {}
        for path in files:
            found |= run_environment.load_file(path)
        return found | run_environment.parse_words(words, self.session.owner)

    def _snapshot_before(self, spec: RunSpec) -> None:
        if any(part.has_changed(self.session, self.record) for part in parts.registered()):
            command = " ".join(spec.argv)[:60]
            self._snapshot(f"before `{printable(command)}`", SnapshotKind.AUTOMATIC)

    def set_automatic(self, *, automatic: bool) -> None:
        """Whether a snapshot is taken before every run."""
        require_layers(self.session, self.record)
        self.session.store.set_automatic(self.record, automatic=automatic)
        self.record = self.record._replace(automatic=automatic)

    def shell(self) -> str:
        """The program that `atoll shell` starts."""
        return programs.find_shell(self.session.owner)

    @property
    def editor_needs_walls(self) -> bool:
        """Whether an editor must run inside, as the capsule's user."""
        from atoll.engine.run import editors  # noqa: PLC0415 - for few verbs

        return editors.needs_walls(self.session, self.record)

    def terminal_editor(self) -> tuple[str, ...]:
        """The command line of the owner's terminal editor."""
        from atoll.engine.run import editors  # noqa: PLC0415 - for few verbs

        return editors.find_terminal_editor(self.session, self.record)

    def window_editor(self, paths: Sequence[str], *, program: str | None = None) -> tuple[str, ...]:
        """The command line of an editor with windows, which opens these paths."""
        from atoll.engine.run import editors  # noqa: PLC0415 - for few verbs

        return editors.find_window_editor(self.session, self.record, paths, program)

    def follow(self, run: Run, *, stdin: bytes = b"") -> Result:
        """Feeds and reads a foreground run to its end."""
        return foreground_runs.follow(self.session, self.record, run, stdin=stdin)

    def conclude(self, run: Run) -> Run:
        """Waits for the end of a run and records it.

        Raises IsolationError when a wall could not be built: then nothing was run.
        """
        return foreground_runs.conclude(self.session, self.record, run)

    def channel(self, run: Run, *, role: str, rows: int, cols: int) -> Channel | None:
        return runs.find_channel(self.session, run, role=role, rows=rows, cols=cols)

    def runs(self) -> list[Run]:
        """All runs, the oldest first, as they are now."""
        return runs.settled(self.session, self.record)

    def living(self) -> list[Run]:
        return runs.living(self.session, self.record)

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
        """Stops one run, or all runs, with every process that they started."""
        targets = [run] if run is not None else self.living()
        for target in targets:
            for part in parts.registered():
                part.end_run(self.session, self.record, target)
        ended = [runs.stop(self.session, target, grace_s=grace_s) for target in targets]
        if not self.living():
            freezer.resume(self.session, self.record)
        return ended

    @property
    def is_paused(self) -> bool:
        return freezer.is_paused(self.record)

    def pause(self) -> int:
        """Freezes every process until `resume`; returns their number."""
        return freezer.pause(self.session, self.record)

    def resume(self) -> int:
        return freezer.resume(self.session, self.record)

    def processes(self) -> list[tuple[Run, Process]]:
        return [
            (run, process) for run in self.living() for process in runs.processes(self.session, run)
        ]

    def log(self, run: Run, *, follow: bool = False) -> Iterator[LogEntry]:
        return runs.entries(self.session, run, follow=follow)

    def events(
        self, *, after: int = 0, follow: bool = False, timeout_s: float | None = None
    ) -> Iterator[Event]:
        """Changes of this capsule's state; as `Project.events`."""
        from atoll.engine.state.events import read_events  # noqa: PLC0415 - not for most verbs

        mine = self.record.id
        return read_events(
            self.session.store,
            after,
            follow=follow,
            matches=lambda event: event.capsule_id == mine,
            timeout_s=timeout_s,
        )

    @property
    def browser(self) -> Browser:
        """Its browsers: one inside for its agents, one on the host for its owner."""
        from atoll.engine.browser.browsers import Browser  # noqa: PLC0415 - for few verbs

        return Browser(self.session, self.record, self.start, self.alone)

    @property
    def agent(self) -> Agent:
        """Its agent: there may be none yet."""
        from atoll.engine.agent.agents import Agent  # noqa: PLC0415 - for few verbs

        return Agent(self.session, self.record, self.start)

    def check(
        self,
        names: Sequence[str] = (),
        *,
        again: bool = False,
        here: bool = False,
        jobs: int | None = None,
        on_progress: Callable[[CheckProgress], None] | None = None,
    ) -> CheckReport:
        """Runs the project's checks, or those with these names, on what the capsule has committed,
        each in a fresh capsule; a stored result for the same tree is returned unless `again`. With
        `here` in the capsule itself, one by one, without storing anything.
        """
        from atoll.engine.check import capsule_checks  # noqa: PLC0415 - for few verbs

        checks = capsule_checks.choose(self.session, self.record, names)
        report_to = on_progress or capsule_checks.silent
        if here:
            return checks.look(self.start, on_progress=report_to)
        with self.alone():
            target, has_more = capsule_checks.find_target(self.session, self.record)
        report = checks.check(target, again=again, most=jobs, on_progress=report_to)
        upkeep.start(self.session)
        return report._replace(has_uncommitted=has_more)

    def begin_trial(self, argv: Sequence[str], checks: Sequence[str] = ()) -> Trial:
        """Takes the snapshot to which a command is rolled back unless the checks pass."""
        from atoll.engine.check import trials  # noqa: PLC0415 - for one verb

        return trials.begin(self, checks, argv)

    def bisect(
        self,
        check: str | None = None,
        *,
        good: str | None = None,
        bad: str | None = None,
        jobs: int | None = None,
        on_tried: Callable[[Tried], None] | None = None,
    ) -> BisectReport:
        """Finds the snapshot after which a check began to fail, by trying it in forks. The numbers
        of snapshots in `good` and `bad` limit the search.
        """
        from atoll.engine.check import bisection  # noqa: PLC0415 - for one verb

        report = bisection.bisect(self, check, good=good, bad=bad, most=jobs, on_tried=on_tried)
        upkeep.start(self.session)
        return report

    def report(self) -> dict[str, dict[str, str]]:
        """Facts about its parts, by part; without parts that report none."""
        found = {p.name: dict(p.report(self.session, self.record)) for p in parts.registered()}
        return {name: facts for name, facts in found.items() if facts}

    def disk(self) -> DiskUse:
        """The disk space that the capsule takes, without the base that it shares."""
        from atoll.engine.capsule import disk_use  # noqa: PLC0415 - for few verbs

        return disk_use.of_capsule(self.session, self.record)

    def work(self, *, keep_branch: bool = False) -> Work:
        """What exists only in this capsule; with `keep_branch`, what its branch does not hold."""
        return removal.find_work(self.session, self.record, keep_branch=keep_branch)

    def diff(self, *, since: Snapshot | None = None, stat: bool = False) -> Patch:
        """Everything that differs from the base commit, or from a snapshot: committed or not,
        tracked or not.
        """
        from atoll.engine.capsule import work  # noqa: PLC0415 - for few verbs

        if since is not None:
            return work.diff_since(self.session, self.record, since, stat=stat)
        return work.diff(self.session, self.record, stat=stat)

    def commit(self, message: str, *, verify: bool = True) -> str:
        """Commits everything in the workspace on the capsule's branch; `verify` runs the hooks."""
        from atoll.engine.capsule import work  # noqa: PLC0415 - for few verbs

        return work.commit(self.session, self.record, message, verify=verify)

    def promote(
        self, to: str | None = None, *, accept: Sequence[str] = (), message: str | None = None
    ) -> PromotionReport:
        """Brings what it has committed to a stage, and asks no question. `Project.promotions` can
        do more.
        """
        from atoll.engine.promotion.promotions import Promotions  # noqa: PLC0415 - for few verbs

        projects = self.session.store.projects()
        project = next(one for one in projects if one.id == self.record.project_id)
        handle = Promotions(self.session, project)
        return handle.promote(self.record, to, accept=accept, message=message)

    def remove(self, *, force: bool = False, keep_branch: bool = False) -> RecoveryPoint | None:
        """Removes the capsule. Refuses when work would exist nowhere else; `force` stores that
        work as a recovery point first, which is returned.
        """
        [(_, point)] = remove_all([self], force=force, keep_branch=keep_branch)
        return point

    def export(self, *, everything: bool = False) -> exports.Exported:
        """Exports the capsule's commits to its branch in the owner's repository."""
        with self.alone():
            return exports.export(self.session, self.record, everything=everything)

    def snapshot(self, message: str = "", *, automatic: bool = False) -> Snapshot:
        """Takes a snapshot of the whole capsule."""
        self._warn_of_gaps()
        kind = SnapshotKind.AUTOMATIC if automatic else SnapshotKind.MANUAL
        return self._snapshot(message, kind)

    def _warn_of_gaps(self) -> None:
        for part in parts.registered():
            for warning in part.warnings(self.session, self.record):
                self.session.warn(warning)

    def _snapshot(self, message: str, kind: SnapshotKind) -> Snapshot:
        # Before, since a fork starts from the layers of the point and not from the capsule's own.
        upkeep.flatten_too_deep(self.session, self.record)
        with self.alone():
            made = snapshots.take(
                self.session, self.record, parts.registered(), message=message, kind=kind
            )
        upkeep.start(self.session)
        return made

    def snapshots(self) -> list[Snapshot]:
        """The oldest first."""
        return self.session.store.snapshots(self.record)

    def timeline(self, *, count: int | None = None) -> list[TimelineEntry]:
        """The latest snapshots, the oldest first, with the changes since the one before."""
        return snapshots.timeline(self.session, self.record, count=count)

    def require_snapshot(self, text: str | None = None) -> Snapshot:
        return snapshots.require_snapshot(self.session, self.record, text)

    def rollback(self, target: Snapshot | None = None) -> Snapshot:
        """Returns to a snapshot, or to the latest; the state before becomes a snapshot."""
        chosen = target or self.require_snapshot()
        self._warn_of_gaps()
        with self.alone():
            made = snapshots.roll_back(self.session, self.record, chosen, parts.registered())
        upkeep.start(self.session)
        return made

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other command works on this capsule meanwhile. Raises StateError when one does, or
        when one has removed it.
        """
        lock = self.session.lock_of(self.record)
        # Upkeep and `gc` hold it briefly from time to time, so this retries.
        patience_s = 5.0 if locks.is_locked(self.session.upkeep_lock().path) else 2.0
        if not wait_until(lock.acquire, timeout_s=patience_s):
            raise StateError(f"another command is working on `{self.name}`", hint="atoll ls")
        with lock:
            now = self.session.store.require_capsule(self.record.project_id, self.name)
            if (now.id, now.state) != (self.record.id, CapsuleState.READY):
                raise StateError(f"`{self.name}` has been removed", hint="atoll ls")
            # What was exported since decides whether Atoll may remove the branch.
            self.record = now
            yield

    def require_expendable(self, *, keep_branch: bool = False) -> None:
        """Raises StateError when removal would need `force`, saying why."""
        if (obstacle := self._find_obstacle(keep_branch=keep_branch)) is not None:
            raise obstacle

    def _find_obstacle(self, *, keep_branch: bool = False) -> StateError | None:
        """Why removal would need `force`."""
        if living := self.living():
            return StateError(
                f"`{self.name}` is still running " + ", ".join(f"`{run.label}`" for run in living),
                hint=f"atoll stop {self.name}, or atoll rm {self.name} --force",
            )
        work = self.work(keep_branch=keep_branch)
        if not work.any:
            return None
        return StateError(
            f"`{self.name}` has work that exists nowhere else: " + "; ".join(work.render()),
            hint=removal.render_hint(self.record, work, is_layered=self.is_view),
        )


def remove_all(
    capsules: Sequence[Capsule], *, force: bool = False, keep_branch: bool = False
) -> Iterator[tuple[Capsule, RecoveryPoint | None]]:
    """Removes capsules one by one and yields each with the recovery point that was made of it.

    Without `force` every capsule is checked before the first is removed. The locks are held from
    there on, so that no capsule has to be checked again.
    """
    with ExitStack() as locked:
        for capsule in capsules:
            locked.enter_context(capsule.alone())
            if not force:
                capsule.require_expendable(keep_branch=keep_branch)
        for index, capsule in enumerate(capsules):
            # Its commits may have been on the branch of one that is gone by now, too.
            may_be_last = index > 0 and bool(capsule.record.exported)
            point = _remove(capsule, force=force or may_be_last, keep_branch=keep_branch)
            yield capsule, point
    if capsules:
        upkeep.start(capsules[0].session)


def _remove(capsule: Capsule, *, force: bool, keep_branch: bool) -> RecoveryPoint | None:
    """Removes a locked capsule, which was checked unless it is removed by `force`."""
    removal.announce(capsule.session, capsule.record, keep_branch=keep_branch)
    return removal.remove(capsule.session, capsule.record, is_expendable=not force)
