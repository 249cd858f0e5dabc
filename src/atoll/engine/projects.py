"""Everything that can be done with one project: the API that every interface calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.engine.capsule import reaper
from atoll.engine.capsules import Capsule, remove_all
from atoll.engine.network import rules
from atoll.engine.project import missing_repository, trust
from atoll.engine.project.levels import NAMES as LEVEL_NAMES
from atoll.engine.project.project_paths import (
    is_clone,
    nearest_checkout,
    require_owners,
    require_text,
)
from atoll.engine.state.session import Listener, Session, Warn, open_session
from atoll.host import files, git, programs
from atoll.host.recovery import recovery_points
from atoll.host.recovery.recovery_points import Shelf
from atoll.model import state
from atoll.model.errors import SpecError, StateError
from atoll.model.names import BRANCH_PREFIX, parse_name, printable, short_hash, slug
from atoll.model.plan import CapsulePlan
from atoll.model.promotion import LOCAL
from atoll.model.state import RECOVERED, CapsuleState, Event, RecoveryPoint, Snapshot

if TYPE_CHECKING:
    from atoll.engine.agent.observation import AgentStatus
    from atoll.engine.agent.selection import AvailableAgent
    from atoll.engine.agent.turns import Start
    from atoll.engine.capsule.disk_use import DiskUse
    from atoll.engine.capsule.overview import Summary
    from atoll.engine.history import bases, layers
    from atoll.engine.project import excluded
    from atoll.engine.project.settings import Config
    from atoll.engine.promotion.promotions import Promotions
    from atoll.engine.race.races import Races
    from atoll.engine.secret.project_secrets import Secrets
    from atoll.model.agent import AgentSpec
    from atoll.model.check import CheckSpec
    from atoll.model.shapes import PortReport

T = TypeVar("T")

__all__ = ["LEVEL_NAMES", "CapsuleSpec", "Project", "open_project", "project_at"]


class CapsuleSpec(NamedTuple):
    """Options of a new capsule that override the project's settings; None: no override."""

    level: str | None = None
    base: str | None = None
    network: str | None = None
    limits: tuple[str, ...] = ()
    dirty: bool = False
    workspace: str | None = None

    def given(self) -> dict[str, str]:
        """The overrides by setting key."""
        from atoll.engine.project.settings import parse_limits  # noqa: PLC0415 - not for `run`

        words = {
            "capsule.level": self.level,
            "project.base": self.base,
            "capsule.network": self.network,
            "capsule.workspace": self.workspace,
        }
        named = {key: text for key, text in words.items() if text is not None}
        return {**named, **parse_limits(self.limits)}


class Project:
    """A handle on one project."""

    def __init__(self, *, session: Session, record: state.ProjectRecord) -> None:
        self.session = session
        self.record = record

    def __repr__(self) -> str:
        return f"<Project {self.name} at {self.root}>"

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def root(self) -> Path:
        return Path(self.record.root)

    def config(self, spec: CapsuleSpec | None = None) -> Config:
        from atoll.engine.project.settings import load_config  # noqa: PLC0415 - not for `run`

        given: Mapping[str, str] = spec.given() if spec is not None else {}
        return load_config(self.root, self.session.owner, given=given)

    def plan(self, name: str, spec: CapsuleSpec | None = None) -> CapsulePlan:
        """What `new` would do."""
        return self.plan_many([name], spec)[0]

    def plan_many(self, names: Sequence[str], spec: CapsuleSpec | None = None) -> list[CapsulePlan]:
        """The plans of several capsules; what they share is looked up once."""
        from atoll.engine.capsule import creation, planning  # noqa: PLC0415 - only to create

        dirty = spec is not None and spec.dirty
        config = self.config(spec)
        plans = planning.plan_capsules(self.session, self.record, names, config, dirty=dirty)
        creation.require_free(self.session, self.record, plans)
        return plans

    def new(  # noqa: PLR0913 - the options of `atoll new`
        self,
        name: str,
        *,
        level: str | None = None,
        base: str | None = None,
        network: str | None = None,
        limits: tuple[str, ...] = (),
        dirty: bool = False,
        workspace: str | None = None,
    ) -> Capsule:
        """Makes a capsule."""
        spec = CapsuleSpec(level, base, network, limits, dirty, workspace)
        return self.make([self.plan(name, spec)])[0]

    def new_many(self, names: Sequence[str], spec: CapsuleSpec | None = None) -> list[Capsule]:
        """Makes several capsules at once: all of them, or none."""
        return self.make(self.plan_many(names, spec))

    @staticmethod
    def on_all(capsules: Sequence[Capsule], act: Callable[[Capsule], T]) -> list[T]:
        """Does the same with several capsules at once; results are in the order of the capsules."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only for several

        with ThreadPoolExecutor() as pool:
            return list(pool.map(act, capsules))

    def make(
        self,
        plans: Sequence[CapsulePlan],
        *,
        point: RecoveryPoint | None = None,
        on_progress: bases.FreezeProgress | None = None,
    ) -> list[Capsule]:
        """Creates the planned capsules; `on_progress` reports the progress of a first copy."""
        from atoll.engine.capsule import creation  # noqa: PLC0415 - only to create

        if plans[0].project != self.name:
            self.session.store.remember_project(self.record._replace(name=plans[0].project))
        records = creation.make_capsules(
            self.session, self.record, plans, point=point, on_progress=on_progress
        )
        return [Capsule(session=self.session, record=record) for record in records]

    def ask_excluded(self, plan: CapsulePlan) -> excluded.ExcludedQuery:
        """Starts to list the files of the checkout that the capsule will not contain."""
        from atoll.engine.project import excluded  # noqa: PLC0415 - only to create

        return excluded.ExcludedQuery(self.session, self.record, plan)

    def spawn(
        self,
        spec: AgentSpec,
        options: CapsuleSpec | None = None,
        *,
        on_progress: bases.FreezeProgress | None = None,
    ) -> list[Capsule]:
        """Starts an agent in a capsule of its own, or in several, or in the one that `spec` names.

        `options` are those of new capsules. Everything is checked before a capsule is made. When a
        start fails or is interrupted, the capsules that it made and in which nothing runs yet are
        removed.
        """
        from atoll.engine.agent import spawning  # noqa: PLC0415 - for few verbs

        task = spawning.plan(self.session, self.record, spec, self._taken_names())
        if spec.inside is not None:
            if options not in (None, CapsuleSpec()):
                raise SpecError("`--in` uses a capsule as it is: `atoll new` chose its options")
            capsule = self.capsule(spec.inside)
            capsule.agent.begin(task.chosen, task.task, rows=spec.rows, cols=spec.cols)
            return [capsule]
        rules = self.config(options).settings.values.get("capsule.allow")
        has_chosen = rules is not None and rules.source != "default"
        plans = self.plan_many(task.names, options)
        if not has_chosen:
            plans = spawning.without_other_models(task, plans)
        spawning.require_possible(task, plans[0])
        made = self.make(plans, on_progress=on_progress)
        started: list[Capsule] = []
        try:
            for capsule in made:
                capsule.agent.begin(task.chosen, task.task, rows=spec.rows, cols=spec.cols)
                started.append(capsule)
        except BaseException:
            list(remove_all([one for one in made if one not in started], force=True))
            raise
        return made

    def _taken_names(self) -> set[str]:
        """Names that a new capsule cannot have."""
        names = {record.name for record in self.session.store.capsules(self.record.id)}
        prefix = f"refs/heads/{BRANCH_PREFIX}"
        refs = git.refs_below(prefix, cwd=self.record.git_dir)
        return names | {ref.removeprefix(prefix) for ref, _ in refs}

    def names_agent(self, word: str) -> bool:
        """Whether a word is the name of an agent. Raises SpecError for one that looks like a
        mistyped name.
        """
        from atoll.engine.agent import selection  # noqa: PLC0415 - for few verbs

        if selection.is_known(self.session, word):
            return True
        selection.require_not_mistyped(self.session, word)
        return False

    def agents(self) -> list[AgentStatus]:
        """Every agent of the project as it is now, in the order of the capsules."""
        from atoll.engine.agent import agents  # noqa: PLC0415 - for few verbs

        return agents.statuses(self.session, self.record.id)

    def available_agents(self) -> list[AvailableAgent]:
        """Every agent that Atoll knows, with what is missing on this machine."""
        from atoll.engine.agent import selection  # noqa: PLC0415 - for few verbs

        return selection.available(self.session, self.record)

    @property
    def rings_bell(self) -> bool:
        """Whether the owner wants to hear the terminal's bell when an agent wants a person."""
        from atoll.engine.agent import notifications  # noqa: PLC0415 - for few verbs

        return notifications.rings_bell(self.session)

    def fork(self, origin: Capsule, name: str, *, at: Snapshot | None = None) -> Capsule:
        """Creates a capsule from a snapshot of another, or from its current state."""
        from atoll.engine.capsule import creation  # noqa: PLC0415 - only to create

        plan = self.plan(name, CapsuleSpec(level=origin.record.level))
        creation.require_free(self.session, self.record, [plan])
        chosen = at or origin.snapshot(f"before fork to {name}", automatic=True)
        record = creation.fork_capsule(self.session, self.record, origin.record, plan, chosen)
        return Capsule(session=self.session, record=record)

    def relative_path(self, directory: str) -> str:
        """Where a directory is in the project, below its root; empty when it is the root or
        elsewhere.
        """
        place = Path(os.path.realpath(directory))
        top = Path(os.path.realpath(self.root))
        return str(place.relative_to(top)) if place != top and place.is_relative_to(top) else ""

    @property
    def secrets(self) -> Secrets:
        """Its secrets, and which capsules may use them."""
        from atoll.engine.secret.project_secrets import Secrets  # noqa: PLC0415 - for few verbs

        return Secrets(self.session, self.record, lambda name: self.capsule(name).record)

    @property
    def races(self) -> Races:
        """Its races: several attempts at one task."""
        from atoll.engine.race.races import Races  # noqa: PLC0415 - for few verbs

        return Races(self.session, self.record, _CapsuleActs(self.session, self.record))

    @property
    def promotions(self) -> Promotions:
        """Brings work of capsules to the owner's branches and beyond, and takes it back."""
        from atoll.engine.promotion.promotions import Promotions  # noqa: PLC0415 - for few verbs

        return Promotions(self.session, self.record)

    def summaries(self) -> list[Summary]:
        """What `ls` shows of each capsule, in the order in which they were made."""
        from atoll.engine.capsule import overview  # noqa: PLC0415 - for one verb

        return overview.summaries(self.session, self.record)

    def ports(self, capsule: Capsule | None = None) -> PortReport:
        """Every port of the project's capsules, or of one, as the daemon sees them now."""
        from atoll.engine.network import ports  # noqa: PLC0415 - for few verbs

        return ports.report(self.session, self.record, capsule.record if capsule else None)

    @staticmethod
    def router_cure(report: PortReport) -> str:
        """The command that gives the router another port, when it cannot have its own."""
        from atoll.engine.network import urls  # noqa: PLC0415 - for few verbs

        free = urls.find_free(report["router"]["port"])
        return f"export {urls.VARIABLE}={free or 'PORT'}"

    def checkout(self, capsule: Capsule | None, *, ports: Collection[int] = ()) -> PortReport:
        """Gives a capsule the project's declared ports, and those in `ports`, on the host's
        loopback; None takes them from the capsule that has them.
        """
        from atoll.engine.network import ports as ports_of  # noqa: PLC0415 - for few verbs

        record = capsule.record if capsule else None
        return ports_of.checkout(self.session, self.record, record, ports)

    def describe_layers(self, base: bases.Base) -> list[layers.Layer]:
        """The layers of a base, as they can be shown."""
        from atoll.engine.history import layers  # noqa: PLC0415 - for one verb

        return layers.describe(self.session, self.record, base.layers)

    def check_layers(self) -> list[layers.Checked]:
        """Reads every frozen layer; damaged ones that no capsule uses are removed."""
        from atoll.engine.history import layers  # noqa: PLC0415 - for one verb

        return layers.check(self.session, self.record)

    def warm(
        self, *, on_progress: bases.FreezeProgress | None = None, thorough: bool = True
    ) -> bases.Base:
        """Freezes the base of new capsules ahead of time."""
        from atoll.engine.capsule import planning  # noqa: PLC0415 - only to create
        from atoll.engine.history import bases  # noqa: PLC0415 - only to create

        config = self.config()
        trust.require_trust(self.session, config)
        found = planning.survey(self.session, self.record, config)
        selection = planning.selection_of(config)
        with Pool(self.session.pool(self.record.id)).turn(shared=True):
            return bases.ensure_base(
                self.session, self.record, found.commit, selection,
                refs=found.refs, on_progress=on_progress, thorough=thorough,
            )  # fmt: skip

    def check_base(self) -> layers.Gaps:
        """The files in which a new capsule would differ from the project."""
        from atoll.engine.capsule import planning  # noqa: PLC0415 - only to create
        from atoll.engine.history import layers  # noqa: PLC0415 - only to create

        config = self.config()
        found = planning.survey(self.session, self.record, config)
        selection = planning.selection_of(config)
        return layers.check_base(self.session, self.record, selection, found.commit)

    def base(self) -> layers.LayerSummary | None:
        """The current base; None when nothing is frozen yet."""
        from atoll.engine.history import layers  # noqa: PLC0415 - for one verb

        return layers.find_frozen(self.session, self.record)

    def base_disk(self) -> DiskUse:
        """The disk space of the layers that all capsules share."""
        from atoll.engine.capsule import disk_use  # noqa: PLC0415 - for few verbs

        return disk_use.of_base(self.session, self.record)

    def capsules(self) -> list[Capsule]:
        """All but those that a running command made for itself."""
        records = self.session.store.capsules(self.record.id)
        return [Capsule(session=self.session, record=r) for r in records if not r.temporary]

    def capsule(self, name: str) -> Capsule:
        """The capsule with this name. Raises StateError when there is none, or none yet."""
        record = self.session.store.require_capsule(self.record.id, parse_name(name))
        if record.state is not CapsuleState.READY:
            raise StateError(
                f"another command is {record.state} `{name}`",
                hint="atoll ls",
            )
        return Capsule(session=self.session, record=record)

    @staticmethod
    def remove(
        capsules: Sequence[Capsule], *, force: bool = False, keep_branch: bool = False
    ) -> Iterator[tuple[Capsule, RecoveryPoint | None]]:
        """Removes capsules as `Capsule.remove` does, and yields each with its recovery point as
        soon as it is removed. Without `force` none is removed unless all can be.
        """
        return remove_all(capsules, force=force, keep_branch=keep_branch)

    def events(
        self, *, after: int = 0, follow: bool = False, timeout_s: float | None = None
    ) -> Iterator[Event]:
        """Changes of state after a cursor (the id of an event), the oldest first; with `follow`
        also those to come, for at most `timeout_s`. Raises StateError when events after the cursor
        are no longer kept.
        """
        from atoll.engine.state.events import read_events  # noqa: PLC0415 - not for most verbs

        mine = self.record.id
        return read_events(
            self.session.store,
            after,
            follow=follow,
            matches=lambda event: event.project_id == mine,
            timeout_s=timeout_s,
        )

    def newest_event(self) -> int:
        """The cursor after which only events to come are read."""
        return self.session.store.newest_event()

    def allow(self, rule: str) -> None:
        """Allows one more network destination to every capsule, present and future."""
        rules.grant_project(self.session, self.record, rule)

    def revoke(self, rule: str) -> None:
        rules.revoke_project(self.session, self.record, rule)

    def allowed(self) -> list[rules.Allowed]:
        return rules.allowed_to_project(self.session, self.record)

    def recovery_points(self) -> list[RecoveryPoint]:
        """The newest first."""
        return recovery_points.points(self._shelf, warn=self.session.warn)

    def lost_points(self) -> list[RecoveryPoint]:
        """Recovery points of repositories that are gone, the newest first."""
        return missing_repository.list_points(self.session)

    @property
    def _shelf(self) -> Shelf:
        return Shelf(self.record.git_dir, self.session.home)

    def require_point(self, text: str) -> RecoveryPoint:
        """The point with this id, or the newest of the capsule with this name."""
        found = [p for p in self.recovery_points() if text in (p.id, p.capsule)]
        # Also of a repository that is gone: this one may have taken its place.
        found = found or [
            p for p in missing_repository.list_points(self.session) if text in (p.id, p.capsule)
        ]
        if not found:
            raise StateError(
                f"there is no recovery point `{printable(text)}`", hint="atoll recover"
            )
        return found[0]

    def recover(self, point: RecoveryPoint, name: str) -> Capsule:
        """Creates a capsule from a recovery point, which stays."""
        if point.repository:
            missing_repository.warn_if_unrelated(self.session, self.record, point)
            point = missing_repository.adopt(self.session, self.record, point)
        else:
            self._put_objects_back(point)
        plan = self.plan(name, CapsuleSpec(base=point.head_commit))
        # It starts at the HEAD of the point, but its work is based on the base of the point.
        began = plan._replace(base_ref=RECOVERED, base_commit=point.base_commit)
        return self.make([began], point=point)[0]

    def _put_objects_back(self, point: RecoveryPoint) -> None:
        from atoll.host.recovery import kept_lfs_objects  # noqa: PLC0415 - for one verb

        pool = Pool(self.session.pool(self.record.id))
        # A collection would take the store there for a dead builder's.
        with pool.turn(shared=True):
            missing = kept_lfs_objects.put_back(self._shelf, point, scratch=pool.root)
        if missing:
            missing_repository.warn_of_missing(self.session, missing)

    @staticmethod
    def has_restorable_files(point: RecoveryPoint) -> bool:
        """Whether `recover` puts back what is kept beside a point: not if its layers could not be
        merged.
        """
        from atoll.host.recovery import restored_files  # noqa: PLC0415 - copies: for one verb

        files_at = point.files
        return (
            files_at is not None
            and restored_files.find_saved(Path(files_at), WORKSPACE) is not None
        )

    def drop(self, point: RecoveryPoint) -> None:
        if point.repository:
            missing_repository.drop(self.session, point)
        else:
            recovery_points.drop(self._shelf, point)

    def draft(self) -> str:
        """What `init` would write."""
        from atoll.engine.project import detection  # noqa: PLC0415 - heavy, and for one verb

        return detection.render_project_file(
            detection.detect(self.root, git.tracked(cwd=str(self.root)))
        )

    @property
    def _file(self) -> Path:
        from atoll.engine.project.settings import FILE_NAME  # noqa: PLC0415 - not for `run`

        return self.root / FILE_NAME

    def init(self, text: str) -> Config:
        """Writes the project file, which must not exist, and approves it."""
        path = self._file
        if os.path.lexists(path):
            raise StateError(f"`{path}` exists already", hint="edit it, then: atoll trust")
        files.write_new(path, text.encode())
        config = self.trust()
        from atoll.engine.history import checkout_watch  # noqa: PLC0415 - for one verb

        checkout_watch.note_use(self.session, self.record)
        checkout_watch.start_daemon(self.session)
        return config

    def trust(self) -> Config:
        """Approves the project file as it is now. Raises StateError when there is none."""
        config = self.config()
        if config.file is None:
            raise StateError(f"`{self.root}` has no atoll.toml", hint="atoll init")
        trust.trust(self.session, config.file)
        return config

    def untrust(self) -> bool:
        return trust.untrust(self.session, str(self._file))

    def is_trusted(self, config: Config) -> bool:
        return config.file is not None and trust.is_trusted(self.session, config.file)


class _CapsuleActs:
    """What a race does to capsules."""

    def __init__(self, session: Session, project: state.ProjectRecord) -> None:
        self._session = session
        self._project = project

    def starter(self, capsule: state.CapsuleRecord) -> Start:
        return Capsule(session=self._session, record=capsule).start

    def stop(self, capsule: state.CapsuleRecord) -> None:
        Capsule(session=self._session, record=capsule).stop()

    def remove(
        self, capsules: Sequence[state.CapsuleRecord], *, force: bool
    ) -> list[RecoveryPoint | None]:
        handles = [Capsule(session=self._session, record=record) for record in capsules]
        return [point for _, point in remove_all(handles, force=force)]

    def promote(
        self,
        capsule: state.CapsuleRecord,
        *,
        to: str,
        checks: Sequence[CheckSpec],
        accept: Sequence[str],
    ) -> tuple[bool, str]:
        # Without a name it is the first stage that lands, whatever it is called.
        from atoll.engine.promotion.promotions import Promotions  # noqa: PLC0415 - for few verbs

        chosen = None if to == LOCAL else to
        report = Promotions(self._session, self._project).promote(
            capsule, chosen, checks=checks, accept=accept
        )
        spec = report.promotion.spec
        hint = f"; {spec.hint}" if spec.hint else ""
        return spec.exit_code == 0, f"{spec.reason}{hint}" if spec.reason else ""


def open_project(
    path: str | os.PathLike[str] = ".",
    *,
    home: str | os.PathLike[str] | None = None,
    listen: Listener | None = None,
    warn: Warn | None = None,
    ask_passphrase: Callable[[], str] | None = None,
    background: bool = True,
) -> Project:
    """Opens the project that holds `path`, after putting right what a crash has left.

    `ask_passphrase` is called when the vault is locked and ATOLL_PASSPHRASE is not set. Without
    `background` nothing touches the home once a call has returned, but for the views of capsules
    that are still there.

    Raises StateError when there is no usable repository, PrerequisiteError when Atoll's home
    cannot be used.
    """
    place = Path(home).absolute() if home is not None else None
    session = open_session(home=place, listen=listen, warn=warn, background=background)
    session.ask_passphrase = ask_passphrase
    reaper.settle(session, at=os.path.abspath(path))
    _report_lost(session)
    return project_at(session, os.path.abspath(path))


def _report_lost(session: Session) -> None:
    """Warns of capsules whose directories exist and whose database records are lost."""
    from atoll.engine.state import restore  # noqa: PLC0415 - the rest of it is for `gc`

    if found := [path.name for path in restore.lost(session)]:
        names = ", ".join(f"`{name}`" for name in found[:5]) + (", …" if found[5:] else "")
        session.warn(
            f"the database has no record of {names}, whose files are in `{session.home}/projects`\n"
            "hint: atoll gc"
        )


def project_at(session: Session, path: str) -> Project:
    require_owners(session, path)
    # First by a guess, before git is looked up, then as git reports it.
    programs.distrust(nearest_checkout(path))
    try:
        checkout = git.find_checkout(path)
    except StateError as error:
        raise _explained(session, path, error) from error
    programs.distrust([checkout.root])
    if is_clone(checkout.repository, session.home) and not session.read_only:
        # The owner may have installed a filter since it was cloned.
        git.mark_untrusted(checkout.repository)
    require_text(checkout.repository)
    known = session.store.find_project(checkout.repository)
    root = checkout.root
    if known is not None and Path(root).is_relative_to(session.home):
        # Called from inside a workspace: the owner's checkout is used.
        root = known.root
    require_text(root)
    if known is not None and known.root == root:
        return Project(session=session, record=known)
    # The project file is not read here: a mistake in it must not prevent `ls` and `rm`.
    name = known.name if known is not None else slug(Path(root).name) or "project"
    identity = known.id if known is not None else f"{name}-{short_hash(checkout.repository)}"
    record = state.ProjectRecord(id=identity, name=name, root=root, git_dir=checkout.repository)
    if session.read_only:
        return Project(session=session, record=record)
    return Project(session=session, record=session.store.remember_project(record))


def _explained(session: Session, path: str, error: StateError) -> StateError:
    """Adds the capsules that are left of a repository that was deleted."""
    real = os.path.realpath(path)
    lost = [
        p for p in missing_repository.gone_projects(session) if programs.is_below(real, [p.root])
    ]
    names = [c.name for project in lost for c in session.store.capsules(project.id)]
    if not names:
        return error
    shown = ", ".join(f"`{name}`" for name in names)
    return StateError(
        f"the repository `{printable(lost[0].git_dir)}` was deleted; its capsules still exist: "
        f"{shown}",
        hint="atoll gc --gone stores their work and removes them",
    )
