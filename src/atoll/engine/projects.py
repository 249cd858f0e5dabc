"""Projects: which repository a command is about, and what can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.engine import gone, networks, reaper, trust
from atoll.engine.capsules import Capsule
from atoll.engine.project_places import nearest_checkout, require_owners, require_text
from atoll.engine.session import Listener, Session, Warn, open_session
from atoll.host import files, git, points, programs
from atoll.model import state
from atoll.model.errors import StateError
from atoll.model.names import parse_name, printable, short_hash, slug
from atoll.model.plan import CapsulePlan
from atoll.model.state import CapsuleState, RecoveryPoint, Snapshot

if TYPE_CHECKING:
    from atoll.engine import bases, excluded, layers
    from atoll.engine.config import Config
    from atoll.engine.disk_use import DiskUse


class CapsuleSpec(NamedTuple):
    """What was asked for on top of the project's settings; None means: as the settings say."""

    level: str | None = None
    base: str | None = None
    network: str | None = None
    limits: tuple[str, ...] = ()
    dirty: bool = False
    workspace: str | None = None

    def given(self) -> dict[str, str]:
        """By setting key, for the last layer of the merge."""
        from atoll.engine.config import parse_limits  # noqa: PLC0415 - not for those who run

        words = {
            "capsule.level": self.level,
            "project.base": self.base,
            "capsule.network": self.network,
            "capsule.workspace": self.workspace,
        }
        named = {key: text for key, text in words.items() if text is not None}
        return {**named, **parse_limits(self.limits)}


class Project:
    """A handle on one project of the owner's."""

    def __init__(self, *, session: Session, record: state.Project) -> None:
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
        from atoll.engine.config import load_config  # noqa: PLC0415 - not for those who run

        given: Mapping[str, str] = spec.given() if spec is not None else {}
        return load_config(self.root, self.session.owner, given=given)

    def plan(self, name: str, spec: CapsuleSpec | None = None) -> CapsulePlan:
        """What `new` would do."""
        return self.plan_many([name], spec)[0]

    def plan_many(self, names: Sequence[str], spec: CapsuleSpec | None = None) -> list[CapsulePlan]:
        """What making several at once would do; what they share is looked up once."""
        from atoll.engine import making, planning  # noqa: PLC0415 - only for who makes something

        dirty = spec is not None and spec.dirty
        config = self.config(spec)
        plans = planning.plan_capsules(self.session, self.record, names, config, dirty=dirty)
        making.require_free(self.session, self.record, plans)
        return plans

    def new(
        self,
        name: str,
        *,
        level: str | None = None,
        base: str | None = None,
        network: str | None = None,
        limits: tuple[str, ...] = (),
        dirty: bool = False,
    ) -> Capsule:
        """Makes a capsule."""
        spec = CapsuleSpec(level=level, base=base, network=network, limits=limits, dirty=dirty)
        return self.make([self.plan(name, spec)])[0]

    def make(
        self,
        plans: Sequence[CapsulePlan],
        *,
        point: RecoveryPoint | None = None,
        tell: bases.Tell | None = None,
    ) -> list[Capsule]:
        """Carries plans out; `tell` hears how far a first copy of the project is."""
        from atoll.engine import making  # noqa: PLC0415 - only for those who make something

        if plans[0].project != self.name:
            self.session.store.remember_project(self.record._replace(name=plans[0].project))
        records = making.make_capsules(self.session, self.record, plans, point=point, tell=tell)
        return [Capsule(session=self.session, record=record) for record in records]

    def ask_excluded(self, plan: CapsulePlan) -> excluded.Question:
        """Begins to find out what the plan's capsule will not contain of the checkout."""
        from atoll.engine import excluded  # noqa: PLC0415 - only for those who make something

        return excluded.Question(self.session, self.record, plan)

    def fork(self, origin: Capsule, name: str, *, at: Snapshot | None = None) -> Capsule:
        """A new capsule from a point of another, or from how that is now. They share layers."""
        from atoll.engine import making  # noqa: PLC0415 - only for those who make something

        plan = self.plan(name, CapsuleSpec(level=origin.record.level))
        making.require_free(self.session, self.record, [plan])
        chosen = at or origin.snapshot(f"before fork to {name}", automatic=True)
        record = making.fork_capsule(self.session, self.record, origin.record, plan, chosen)
        return Capsule(session=self.session, record=record)

    def warm(self, *, tell: bases.Tell | None = None, thorough: bool = True) -> bases.Base:
        """Freezes, ahead of time, what the next capsule starts from."""
        from atoll.engine import bases, planning  # noqa: PLC0415 - as above

        config = self.config()
        trust.require_trust(self.session, config)
        found = planning.survey(self.session, self.record, config)
        ground = planning.ground_of(config)
        with Pool(self.session.pool(self.record.id)).turn(shared=True):
            return bases.ensure_base(
                self.session, self.record, found.commit, ground,
                refs=found.refs, tell=tell, thorough=thorough,
            )  # fmt: skip

    def check_base(self) -> layers.Gaps:
        """In which files a new capsule would differ from what it is made of."""
        from atoll.engine import layers, planning  # noqa: PLC0415 - as above

        config = self.config()
        found = planning.survey(self.session, self.record, config)
        ground = planning.ground_of(config)
        return layers.check_base(self.session, self.record, ground, found.commit)

    def base(self) -> layers.Frozen | None:
        """What was frozen last of this project; None when nothing was."""
        from atoll.engine import layers  # noqa: PLC0415 - for one verb

        return layers.find_frozen(self.session, self.record)

    def base_disk(self) -> DiskUse:
        """What the layers that all capsules share take, as allocated blocks."""
        from atoll.engine import disk_use  # noqa: PLC0415 - for few verbs

        return disk_use.of_base(self.session, self.record)

    def capsules(self) -> list[Capsule]:
        records = self.session.store.capsules(self.record.id)
        return [Capsule(session=self.session, record=record) for record in records]

    def capsule(self, name: str) -> Capsule:
        """The capsule with this name. Raises StateError when there is none, or none yet."""
        record = self.session.store.require_capsule(self.record.id, parse_name(name))
        if record.state is not CapsuleState.READY:
            raise StateError(
                f"another command is {record.state} `{name}`",
                hint="atoll ls",
            )
        return Capsule(session=self.session, record=record)

    def allow(self, rule: str) -> None:
        """Lets every capsule reach one more destination, also those that are made later."""
        networks.grant_project(self.session, self.record, rule)

    def revoke(self, rule: str) -> None:
        networks.revoke_project(self.session, self.record, rule)

    def allowed(self) -> list[networks.Allowed]:
        return networks.allowed_to_project(self.session, self.record)

    def recovery_points(self) -> list[RecoveryPoint]:
        """The newest first."""
        return points.points(self._shelf, warn=self.session.warn)

    @property
    def _shelf(self) -> points.Shelf:
        return points.Shelf(self.record.git_dir, self.session.home)

    def require_point(self, text: str) -> RecoveryPoint:
        """The point with this id, or the newest of the capsule with this name."""
        found = [p for p in self.recovery_points() if text in (p.id, p.capsule)]
        # Also of a repository that is gone: this one may have taken its place.
        found = found or [
            p for p in gone.recovery_points(self.session) if text in (p.id, p.capsule)
        ]
        if not found:
            raise StateError(
                f"there is no recovery point `{printable(text)}`", hint="atoll recover"
            )
        return found[0]

    def recover(self, point: RecoveryPoint, name: str) -> Capsule:
        """A new capsule that holds what the point holds; the point stays."""
        if point.repository:
            gone.warn_if_unrelated(self.session, self.record, point)
            point = gone.adopt(self.session, self.record, point)
        else:
            self._put_objects_back(point)
        plan = self.plan(name, CapsuleSpec(base=point.head_commit))
        # It starts at the HEAD of that moment, but its work began at the base of that moment.
        began = plan._replace(base_ref="recovered", base_commit=point.base_commit)
        return self.make([began], point=point)[0]

    def _put_objects_back(self, point: RecoveryPoint) -> None:
        from atoll.host import kept_objects  # noqa: PLC0415 - for one verb

        pool = Pool(self.session.pool(self.record.id))
        # A collection would take the store there for a dead builder's.
        with pool.turn(shared=True):
            missing = kept_objects.put_back(self._shelf, point, scratch=pool.root)
        if missing:
            gone.warn_of_missing(self.session, missing)

    @staticmethod
    def has_restorable_files(point: RecoveryPoint) -> bool:
        """Whether `recover` puts back what is kept beside a point: not if its layers could not be
        merged.
        """
        from atoll.host import restored  # noqa: PLC0415 - copies: for one verb

        files_at = point.files
        return files_at is not None and restored.find_kept(Path(files_at), WORKSPACE) is not None

    def drop(self, point: RecoveryPoint) -> None:
        if point.repository:
            gone.drop(self.session, point)
        else:
            points.drop(self._shelf, point)

    def draft(self) -> str:
        """What `init` would write."""
        from atoll.engine import detect  # noqa: PLC0415 - heavy, and for one verb

        return detect.render_project_file(detect.look(self.root, git.tracked(cwd=str(self.root))))

    @property
    def _file(self) -> Path:
        from atoll.engine.config import FILE_NAME  # noqa: PLC0415 - not for those who run

        return self.root / FILE_NAME

    def init(self, text: str) -> Config:
        """Writes the project file, which must not exist, and approves it."""
        path = self._file
        if os.path.lexists(path):
            raise StateError(f"`{path}` exists already", hint="edit it, then: atoll trust")
        files.write_new(path, text.encode())
        config = self.trust()
        from atoll.engine import watches  # noqa: PLC0415 - for one verb

        watches.note_use(self.session, self.record)
        watches.start_daemon(self.session)
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


def open_project(
    path: str | os.PathLike[str] = ".",
    *,
    home: str | os.PathLike[str] | None = None,
    listen: Listener | None = None,
    warn: Warn | None = None,
    background: bool = True,
) -> Project:
    """Opens the project that holds `path`, after putting right what a crash has left.

    Without `background` nothing touches the home once a call has returned, but for the views of
    capsules that are still there.

    Raises StateError when there is no usable repository, PrerequisiteError when Atoll's home
    cannot be used.
    """
    place = Path(home).absolute() if home is not None else None
    session = open_session(home=place, listen=listen, warn=warn, background=background)
    reaper.settle(session, at=os.path.abspath(path))
    _report_lost(session)
    return project_at(session, os.path.abspath(path))


def _report_lost(session: Session) -> None:
    """Capsules that only their directories show were in a database that is no longer there."""
    from atoll.engine import restore  # noqa: PLC0415 - the rest of it is for `gc`

    if found := [path.name for path in restore.lost(session)]:
        names = ", ".join(f"`{name}`" for name in found[:5]) + (", …" if found[5:] else "")
        session.warn(
            f"the database does not know {names}, whose files are in `{session.home}/projects`\n"
            "hint: atoll gc"
        )


def project_at(session: Session, path: str) -> Project:
    require_owners(session, path)
    # Before git is looked for, by a guess, and then by what git says.
    programs.distrust(nearest_checkout(path))
    try:
        checkout = git.find_checkout(path)
    except StateError as error:
        raise _explained(session, path, error) from error
    programs.distrust([checkout.root])
    require_text(checkout.repository)
    known = session.store.find_project(checkout.repository)
    root = checkout.root
    if known is not None and Path(root).is_relative_to(session.home):
        # Asked from inside a capsule: the owner's checkout stays the one that counts.
        root = known.root
    require_text(root)
    if known is not None and known.root == root:
        return Project(session=session, record=known)
    # The project file is not read here: a mistake in it must not keep anyone from `ls` and `rm`.
    name = known.name if known is not None else slug(Path(root).name) or "project"
    identity = known.id if known is not None else f"{name}-{short_hash(checkout.repository)}"
    record = state.Project(id=identity, name=name, root=root, git_dir=checkout.repository)
    if session.read_only:
        return Project(session=session, record=record)
    return Project(session=session, record=session.store.remember_project(record))


def _explained(session: Session, path: str, error: StateError) -> StateError:
    """Says so when there was a repository, and capsules of it still are."""
    real = os.path.realpath(path)
    lost = [p for p in gone.gone_projects(session) if programs.is_below(real, [p.root])]
    names = [c.name for project in lost for c in session.store.capsules(project.id)]
    if not names:
        return error
    shown = ", ".join(f"`{name}`" for name in names)
    return StateError(
        f"the repository `{printable(lost[0].git_dir)}` is gone; its capsules are still there: "
        f"{shown}",
        hint="atoll gc --gone stores their work and removes them",
    )
