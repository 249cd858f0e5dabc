"""What can be asked of a capsule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from atoll.drivers import registry
from atoll.engine import (
    browsers,
    chores,
    exports,
    freezer,
    networks,
    places,
    ports,
    refusals,
    removal,
    runs,
    snapshots,
    timeline,
    views,
)
from atoll.engine.attempts import Attempt
from atoll.engine.browsers import Browser
from atoll.engine.captured import Captured, Result
from atoll.engine.channels import Channel
from atoll.engine.leases import isolation_plan, workspace_plan
from atoll.engine.session import Session
from atoll.engine.timeline import Moment
from atoll.host import locks
from atoll.host.process import wait_until
from atoll.keeper.log import Entry
from atoll.model import state
from atoll.model.errors import IsolationError, StateError
from atoll.model.names import printable
from atoll.model.plan import Enclosure
from atoll.model.state import (
    CapsuleState,
    Process,
    RecoveryPoint,
    Run,
    Snapshot,
    Work,
    require_outcome,
)


class Capsule:
    """A handle on one capsule. As a context manager it removes the capsule at the end, unless
    it holds work: then the capsule stays, with its processes stopped.
    """

    def __init__(self, *, session: Session, record: state.Capsule) -> None:
        self.session = session
        self.record = record

    def __repr__(self) -> str:
        return f"<Capsule {self.name} ({self.record.level}) at {self.record.workspace}>"

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def path(self) -> Path:
        """Where the workspace can be opened on the host. One in a view is held from now on."""
        return views.host_path(self.session, self.record)

    def has_directory(self, relative: str) -> bool:
        """Whether its workspace holds this directory, which is no link."""
        return places.has_directory(self.session, self.record, relative)

    @property
    def is_view(self) -> bool:
        """Whether its workspace lies at the project's own path, where only it can see it."""
        return bool(workspace_plan(self.session, self.record).pool)

    @property
    def workspace_driver(self) -> str:
        return workspace_plan(self.session, self.record).driver

    def visible(self) -> list[str] | None:
        """What of the host's own files its processes see, read-only; None: all of them."""
        plan = isolation_plan(self.session, self.record)
        return registry.isolation_driver(plan.driver).visible(plan, self.session.owner)

    def limits(self) -> dict[str, tuple[float, str]]:
        """By name: the value, and how it is held: `enforced`, `watched` or `not held`."""
        from atoll.engine import confines  # noqa: PLC0415 - looks at the host
        from atoll.host import views  # noqa: PLC0415 - likewise

        limits = isolation_plan(self.session, self.record).limits
        answer = views.ask(self.record.directory, {"ping": True}) if limits else None
        return confines.tell(self.session, limits, None if answer is None else answer[0])

    @staticmethod
    def uncounted(limit: str, how: str) -> tuple[str, ...]:
        """What a limit of this name does not include when it is held like this."""
        from atoll.engine import confines  # noqa: PLC0415 - likewise

        return confines.uncounted(limit, how)

    @property
    def network(self) -> str:
        return isolation_plan(self.session, self.record).network

    def allow(self, rule: str) -> None:
        """Lets its processes reach one more destination, at once."""
        networks.grant(self.session, self.record, rule)

    def revoke(self, rule: str) -> None:
        networks.revoke(self.session, self.record, rule)

    def allowed(self) -> list[networks.Allowed]:
        """Each rule with where it comes from and what it stands for."""
        return networks.allowed(self.session, self.record)

    def attempts(self, *, count: int | None = None, follow: bool = False) -> Iterator[Attempt]:
        """What its processes wanted to reach, the oldest first."""
        return networks.attempts(self.record, count=count, follow=follow)

    def mark_refusals(self) -> refusals.Mark:
        """From now on, for `refusals`."""
        return refusals.mark(self.record)

    def refusals(self, start: refusals.Mark) -> list[Attempt]:
        """What its processes have wanted to reach since then, and were not allowed to."""
        return refusals.since(self.session, self.record, start)

    @property
    def ports(self) -> dict[str, int]:
        return dict(self.record.ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if not self.work().any:
            self.remove()

    def enclosure(self, *, is_open: bool = False) -> Enclosure:
        """How a process is started inside, with the capsule's own variables."""
        project = self.session.store.project_name(self.record.project_id)
        inside = removal.enclosure(self.session, self.record, is_open=is_open)
        own = {
            "ATOLL_CAPSULE": self.name,
            "ATOLL_PROJECT_NAME": project,
            **ports.variables_of(self.session, self.record),
            **browsers.variables(self.session, self.record, inside),
        }
        return inside.adding(own)

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

    def start(self, spec: runs.RunSpec, *, owner: bool = False) -> Run:
        """Starts a run; with `owner` as the owner's own program, with all of their environment."""
        freezer.require_running(self.record)
        if spec.network is not None:
            networks.require_mode(self.session, self.record, spec.network)
        if self.record.automatic:
            self._snapshot_before(spec)
        # A start opens the view by itself when it must.
        inside = self.enclosure(is_open=True)
        if owner:
            from atoll.engine import edits  # noqa: PLC0415 - only for `edit`

            inside, spec = edits.for_the_owner(self.session, self.record, inside, spec)
        run = runs.start(self.session, self.record, inside, spec)
        if spec.background and inside.holder:
            exports.export_when_over(self.session, self.record, run)
        return run

    def _snapshot_before(self, spec: runs.RunSpec) -> None:
        if snapshots.has_changed(self.session, self.record):
            command = " ".join(spec.argv)[:60]
            self._snapshot(f"before `{printable(command)}`", automatic=True)

    def set_automatic(self, *, automatic: bool) -> None:
        """Whether a snapshot is taken before every run."""
        snapshots.require_layers(self.session, self.record)
        self.session.store.set_automatic(self.record, automatic=automatic)
        self.record = self.record._replace(automatic=automatic)

    def follow(self, run: Run, *, stdin: bytes = b"") -> Result:
        """Feeds and reads a foreground run to its end."""
        captured = Captured()
        channel = runs.find_channel(self.session, run, role="foreground")
        if channel is not None:
            with channel:
                channel.write(stdin)
                channel.close_input()
                for stream, data in channel.exchange():
                    captured.add(stream, data)
        ended = self.conclude(run)
        return Result(
            run=ended,
            outcome=require_outcome(ended),
            stdout=captured.content("out"),
            stderr=captured.content("err"),
            dropped_bytes=captured.dropped_bytes("out") + captured.dropped_bytes("err"),
        )

    def conclude(self, run: Run) -> Run:
        """Waits for the end of a run and records it.

        Raises IsolationError when a wall could not be built: then nothing was run.
        """
        self.session.reach("run.ended", run.label)
        ended = runs.wait(self.session, run)
        if (outcome := require_outcome(ended)).reason is state.Reason.NO_WALLS:
            raise IsolationError(
                f"the walls around `{run.label}` cannot be built: {outcome.message}",
                hint="atoll doctor",
            )
        self.session.reach("run.recorded", run.label)
        exports.export_after_run(self.session, self.record)
        return ended

    def channel(self, run: Run, *, role: str, rows: int, cols: int) -> Channel | None:
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
        browser = browsers.find_inside(self.session, self.record)
        if browser is not None and browser.number in [target.number for target in targets]:
            browsers.close_inside(self.session, self.record)
        ended = [runs.stop(self.session, target, grace_s=grace_s) for target in targets]
        if not self.living():
            freezer.resume(self.session, self.record)
        return ended

    @property
    def is_paused(self) -> bool:
        return freezer.is_paused(self.record)

    def pause(self) -> int:
        """Holds every process still until `resume`; returns how many there are."""
        return freezer.pause(self.session, self.record)

    def resume(self) -> int:
        return freezer.resume(self.session, self.record)

    def processes(self) -> list[tuple[Run, Process]]:
        return [
            (run, process) for run in self.living() for process in runs.processes(self.session, run)
        ]

    def log(self, run: Run, *, follow: bool = False) -> Iterator[Entry]:
        return runs.entries(self.session, run, follow=follow)

    @property
    def browser(self) -> Browser:
        """Its browsers: one inside for its agents, one on the host for its owner."""
        return Browser(self.session, self.record, self.start, self._alone)

    def work(self, *, keep_branch: bool = False) -> Work:
        """What exists only in this capsule; with `keep_branch`, what its branch does not hold."""
        return removal.find_work(self.session, self.record, keep_branch=keep_branch)

    def remove(
        self, *, force: bool = False, keep_branch: bool = False, is_last: bool = True
    ) -> RecoveryPoint | None:
        """Removes the capsule. Refuses when work would exist nowhere else; `force` stores that
        work as a recovery point first, which is returned. Upkeep follows the last of several.
        """
        with self._alone():
            if not force:
                self._require_expendable(keep_branch=keep_branch)
            removal.announce(self.session, self.record, keep_branch=keep_branch)
            # Nothing runs and the lock is ours: what was just looked at needs no second look.
            point = removal.remove(self.session, self.record, is_expendable=not force)
        if is_last:
            chores.start(self.session)
        return point

    def export(self, *, everything: bool = False) -> exports.Exported:
        """Brings the capsule's commits into the owner's repository, as its branch."""
        with self._alone():
            return exports.export(self.session, self.record, everything=everything)

    def snapshot(self, message: str = "", *, automatic: bool = False) -> Snapshot:
        """Makes a point to which the whole capsule can return."""
        browsers.tell_of_open(self.session, self.record)
        return self._snapshot(message, automatic=automatic)

    def _snapshot(self, message: str, *, automatic: bool) -> Snapshot:
        # Before, since a fork starts from the layers of the point and not from the capsule's own.
        chores.relieve(self.session, self.record)
        with self._alone():
            made = snapshots.take(self.session, self.record, message=message, automatic=automatic)
        chores.start(self.session)
        return made

    def snapshots(self) -> list[Snapshot]:
        """The oldest first."""
        return self.session.store.snapshots(self.record)

    def timeline(self, *, count: int | None = None) -> list[Moment]:
        """The latest points, the oldest first, with what changed up to each."""
        return timeline.moments(self.session, self.record, count=count)

    def require_snapshot(self, text: str | None = None) -> Snapshot:
        return snapshots.require_snapshot(self.session, self.record, text)

    def rollback(self, target: Snapshot | None = None) -> Snapshot:
        """Returns to a point, or to the latest; what there was is a point afterwards."""
        chosen = target or self.require_snapshot()
        browsers.tell_of_open(self.session, self.record)
        with self._alone():
            made = snapshots.roll_back(self.session, self.record, chosen)
        chores.start(self.session)
        return made

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
        # Upkeep holds it for a moment now and then, which is no reason to give up.
        patience_s = 5.0 if locks.is_locked(self.session.upkeep_lock().path) else 0.0
        if not wait_until(lock.acquire, timeout_s=patience_s):
            raise StateError(f"another command is working on `{self.name}`", hint="atoll ls")
        with lock:
            now = self.session.store.require_capsule(self.record.project_id, self.name)
            if (now.id, now.state) != (self.record.id, CapsuleState.READY):
                raise StateError(f"`{self.name}` has been removed", hint="atoll ls")
            # What was brought out since decides whether the branch is ours to remove.
            self.record = now
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
                hint=removal.render_way_out(self.record, work, is_layered=self.is_view),
            )
