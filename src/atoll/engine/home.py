"""What concerns no single project: the whole home, this machine, the daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.engine.projects import Project, project_at
from atoll.engine.state import session as sessions
from atoll.engine.state.session import Listener, Session, Warn, open_session
from atoll.host import disk_space, process

if TYPE_CHECKING:
    from atoll.engine.agent.observation import AgentStatus
    from atoll.engine.bench.table import BenchReport
    from atoll.engine.bench.workspace import BenchOptions
    from atoll.engine.capsule.reaper import Collected
    from atoll.engine.capsules import Capsule
    from atoll.engine.demo import Demo
    from atoll.engine.project.levels import Level
    from atoll.engine.state.restore import Restored
    from atoll.engine.verify.wall_test import WallReport
    from atoll.model.shapes import DaemonStatusShape
    from atoll.model.state import CapsuleRecord, Finding, Problem, RecoveryPoint

BENCHES = ("workspace", "sandbox", "network", "idle", "race")


class Home:
    """A handle on one Atoll home, for operations on all projects or on none.

    Static methods need no usable home: they repair it, or only examine the machine.
    """

    def __init__(self, *, session: Session) -> None:
        self.session = session

    def __repr__(self) -> str:
        return f"<Home {self.path}>"

    @property
    def path(self) -> Path:
        return self.session.home

    def projects(self) -> list[Project]:
        records = self.session.store.projects()
        return [Project(session=self.session, record=record) for record in records]

    def project(self, where: str) -> Project:
        """The project at a path, or the clone of a URL, which is made or refreshed."""
        from atoll.engine.capsule import reaper  # noqa: PLC0415 - for few verbs
        from atoll.engine.project import repositories  # noqa: PLC0415 - for few verbs

        path = where
        if repositories.is_url(where):
            path = str(repositories.ensure_clone(self.session, where))
        reaper.settle(self.session, at=os.path.abspath(path))
        return project_at(self.session, os.path.abspath(path))

    def agents(self) -> list[AgentStatus]:
        """Every agent of every project as it is now."""
        from atoll.engine.agent import agents  # noqa: PLC0415 - for one verb

        return agents.statuses(self.session, None)

    @property
    def rings_bell(self) -> bool:
        """Whether the owner wants to hear the terminal's bell when an agent wants a person."""
        from atoll.engine.agent import notifications  # noqa: PLC0415 - for one verb

        return notifications.rings_bell(self.session)

    def collect(
        self, *, dry_run: bool = False, gone: bool = False, bases: bool = False
    ) -> Collected:
        """Removes what crashed commands left and what no capsule needs, in all projects.

        `gone` includes capsules whose repository is gone, `bases` every base that is not in use.
        """
        from atoll.engine.capsule import reaper  # noqa: PLC0415 - for one verb
        from atoll.engine.check import logs  # noqa: PLC0415 - likewise

        found = reaper.collect(self.session, dry_run=dry_run, gone=gone, bases=bases)
        swept = logs.sweep(self.session, dry_run=dry_run)
        return found._replace(files=(*found.files, *swept))

    def orphans(self) -> list[CapsuleRecord]:
        """Capsules whose repository is gone."""
        from atoll.engine.project import missing_repository  # noqa: PLC0415 - for few verbs

        return missing_repository.orphans(self.session)

    def recovery_points(self) -> list[RecoveryPoint]:
        """Recovery points of repositories that are gone, the newest first."""
        from atoll.engine.project import missing_repository  # noqa: PLC0415 - for few verbs

        return missing_repository.list_points(self.session)

    def require_point(self, text: str) -> RecoveryPoint:
        """The point of a repository that is gone with this id, or the newest of this capsule."""
        from atoll.engine.project import missing_repository  # noqa: PLC0415 - for few verbs

        return missing_repository.require_point(self.session, text)

    def write_checkout(self, point: RecoveryPoint, directory: str) -> str:
        """Restores a point of a repository that is gone as a new repository; returns its path."""
        from atoll.engine.project import missing_repository  # noqa: PLC0415 - for few verbs

        return missing_repository.write_checkout(self.session, point, directory)

    def drop(self, point: RecoveryPoint) -> None:
        from atoll.engine.project import missing_repository  # noqa: PLC0415 - for few verbs

        missing_repository.drop(self.session, point)

    def levels(self) -> list[tuple[Level, list[Problem]]]:
        """Every level with what keeps it from working here."""
        from atoll.engine.project import levels  # noqa: PLC0415 - for one verb

        return [(level, levels.find_problems(level, self.path)) for level in levels.LEVELS]

    def daemon_status(self) -> DaemonStatusShape:
        """Raises StateError when no daemon runs."""
        from atoll.engine.network import daemon_client  # noqa: PLC0415 - for one verb

        return daemon_client.status(self.session)

    def stop_daemon(self) -> DaemonStatusShape:
        """Returns the daemon's last status. Raises StateError when no daemon runs."""
        from atoll.engine.network import daemon_client  # noqa: PLC0415 - for one verb

        return daemon_client.stop(self.session)

    def daemon_log(self) -> Iterator[str]:
        from atoll.engine.network import daemon_client  # noqa: PLC0415 - for one verb

        return daemon_client.log_lines(self.path)

    @staticmethod
    def verify(
        project: Project, capsule: Capsule, *, on_progress: Callable[[str], None]
    ) -> WallReport:
        """Attacks the walls of a capsule; `on_progress` is called with the name of the next one."""
        from atoll.engine.verify import attack  # noqa: PLC0415 - for one verb

        return attack.verify(project, capsule, on_progress=on_progress)

    @staticmethod
    def make_room(*, everything: bool) -> None:
        """Releases the reserve on a full disk, for a command that frees room."""
        sessions.make_room(everything=everything)

    @staticmethod
    def repair(*, warn: Warn | None = None) -> Restored | None:
        """Restores a lost or damaged database; None when there is nothing to repair."""
        from atoll.engine.state import restore  # noqa: PLC0415 - for one verb

        home = Home.default_path()
        if not home.is_dir() or restore.is_read_only(home):
            return None
        done = restore.repair(home)
        if done is not None:
            restore.refresh(open_session(warn=warn))
        return done

    @staticmethod
    def default_path() -> Path:
        return sessions.home_path(os.environ)

    @staticmethod
    def is_shortage(error: BaseException) -> bool:
        """Whether an error means that a filesystem is full."""
        return disk_space.is_shortage(error)

    @staticmethod
    def find_shortage(path: object = None) -> disk_space.Shortage | None:
        """What is used up on the filesystem of a path, or of the home."""
        named = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        return disk_space.find_shortage(Path(named) if named else Home.default_path())

    @staticmethod
    def pause(seconds: float) -> None:
        process.pause(seconds)

    @staticmethod
    def on_command(listener: Callable[[str], None]) -> None:
        """Reports each command that Atoll runs on the host."""
        process.on_command = listener

    @staticmethod
    def examine() -> list[Finding]:
        """Tries each thing that Atoll needs of this host."""
        from atoll.engine import doctor  # noqa: PLC0415 - for one verb

        return doctor.examine()

    @staticmethod
    def schema() -> dict[str, object]:
        """The JSON schema of atoll.toml."""
        from atoll.model.projectfile import project_schema  # noqa: PLC0415 - heavy

        return project_schema()

    @staticmethod
    def bench(
        what: str, options: BenchOptions, *, on_progress: Callable[[str], None]
    ) -> BenchReport:
        """Measures one of BENCHES on this machine."""
        from atoll.engine.bench import (  # noqa: PLC0415 - one verb
            idle,
            network,
            race,
            sandbox,
            workspace,
        )

        measures = (
            workspace.measure,
            sandbox.measure,
            network.measure,
            idle.measure,
            race.measure,
        )
        return dict(zip(BENCHES, measures, strict=True))[what](options, on_progress)

    @staticmethod
    def demo(place: Path) -> Demo:
        """Makes the sample project, with a home of its own, below a directory."""
        from atoll.engine.demo import Demo  # noqa: PLC0415 - for one verb

        return Demo(place)


def open_home(*, listen: Listener | None = None, warn: Warn | None = None) -> Home:
    """Raises PrerequisiteError when the home cannot be used, StateError when its state cannot."""
    return Home(session=open_session(listen=listen, warn=warn))
