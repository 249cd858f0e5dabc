"""Planning: decides what `new` will do, as a value, before anything is changed.

A request that a level cannot satisfy, or that the owner has not approved, is refused here; no
request is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import IsolationRequest, WorkspaceRequest
from atoll.drivers.layers.pool import Pool
from atoll.engine.enclosure import cgroup_limits
from atoll.engine.project import levels, trust
from atoll.engine.project.settings import Config
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model import state
from atoll.model.enclosure import TIME_LIMIT, Limits
from atoll.model.errors import IsolationError, PrerequisiteError, StateError
from atoll.model.names import parse_name, printable
from atoll.model.plan import CapsulePlan, FileSelection, IsolationPlan, Refs, WorkspacePlan

DEFAULT_PORT = "web"


class HostFacts(NamedTuple):
    """Facts from the owner's repository, read once for all planned capsules."""

    refs: Refs
    base_ref: str
    commit: str
    author: str
    email: str


def survey(session: Session, project: state.ProjectRecord, config: Config) -> HostFacts:
    refs = session.ref_cache.refs(project)
    base_ref, commit = _require_base(project, refs, config.settings.value("project.base"))
    author, email = session.ref_cache.identity(project)
    return HostFacts(refs=refs, base_ref=base_ref, commit=commit, author=author, email=email)


def plan_capsules(
    session: Session,
    project: state.ProjectRecord,
    names: Sequence[str],
    config: Config,
    *,
    dirty: bool = False,
) -> list[CapsulePlan]:
    """Plans capsules; changes nothing."""
    for name in names:
        parse_name(name)
    trust.require_trust(session, config)
    level = levels.require_level(config.settings.value("capsule.level"))
    wanted = config.settings.value("capsule.workspace")
    drivers = levels.require_drivers(level, session.home, wanted=wanted)
    _require_walls(names[0], config, level)
    _require_supported(config, level, dirty=dirty)
    if level.has_limits:
        _warn_of_limits(session, config)
    found = survey(session, project, config)
    planner = _Planner(session, project, config, level, drivers, found)
    return [planner.plan(name, dirty=dirty) for name in names]


def _warn_of_limits(session: Session, config: Config) -> None:
    """Warns of chosen limits that exceed this machine, or that cannot be enforced on it."""
    chosen = {
        name: value
        for name, value in config.settings.below("capsule.limits").items()
        if config.settings.source(f"capsule.limits.{name}") != "default"
    }
    if excess := cgroup_limits.describe_excess(chosen, cgroup_limits.capacity(session.home)):
        session.warn(excess)
    unheld = cgroup_limits.find_unheld(
        session, [name for name, value in chosen.items() if value is not None]
    )
    if unheld:
        names = ", ".join(f"`{name}`" for name in unheld)
        session.warn(f"not enforced on this machine, without cgroups: {names}\nhint: atoll doctor")


def selection_of(config: Config) -> FileSelection:
    """The settings for files in addition to the commit."""
    carry = config.settings.value("project.carry")
    return FileSelection(
        carry=None if carry is None else tuple(carry),
        never=tuple(config.settings.value("project.never") or ()),
    )


class _Planner:
    def __init__(
        self,
        session: Session,
        project: state.ProjectRecord,
        config: Config,
        level: levels.Level,
        drivers: levels.LevelDrivers,
        found: HostFacts,
    ) -> None:
        self._session = session
        self._project = project
        self._config = config
        self._level = level
        self._found = found
        self._drivers = drivers

    def plan(self, name: str, *, dirty: bool) -> CapsulePlan:
        settings, found = self._config.settings, self._found
        directory = self._session.capsule_directory(self._project.id, name)
        workspace = self._plan_workspace(name, directory)
        services = self._config.file.services if self._config.file else {}
        default = () if self._level.has_own_network else (DEFAULT_PORT,)
        return CapsulePlan(
            name=name,
            project=settings.value("project.name"),
            level=self._level.name,
            base_ref=found.base_ref,
            base_commit=found.commit,
            directory=str(directory),
            workspace=workspace,
            isolation=self._plan_isolation(workspace, directory),
            # In a network of its own, ports that are not declared are leased when they are found.
            ports=tuple(services) or default,
            numbers=dict(services),
            setup=tuple(settings.value("capsule.setup", ())),
            time_limit_s=settings.value(f"capsule.limits.{TIME_LIMIT.name}"),
            selection=selection_of(self._config)._replace(dirty=dirty),
            refs=found.refs,
        )

    def _plan_workspace(self, name: str, directory: Path) -> WorkspacePlan:
        request = WorkspaceRequest(
            name=name,
            repository=self._project.git_dir,
            checkout=self._project.root,
            base_commit=self._found.commit,
            path=str(directory / "workspace" / name),
            pool=str(self._session.pool(self._project.id)),
            mode=self._drivers.mode,
        )
        return registry.workspace_driver(self._drivers.workspace).plan(request)

    def _plan_isolation(self, workspace: WorkspacePlan, directory: Path) -> IsolationPlan:
        request = IsolationRequest(
            workspace=workspace.path,
            directory=str(directory),
            variables=self._config.settings.below("capsule.env"),
            author=self._found.author,
            email=self._found.email,
        )
        if workspace.is_layered:
            request = request._replace(
                home=_home_inside(self._session.owner.get("HOME", ""), workspace.path),
                is_root=os.geteuid() == 0,
                network=self._config.settings.value("capsule.network"),
                setup_network=self._config.settings.value("capsule.setup_network", ""),
                allow=tuple(self._config.settings.value("capsule.allow", ())),
                limits=_limits(self._config),
                private=str(Pool(workspace.pool).state),
                tools=registry.layered_driver(self._drivers.workspace).tools(workspace),
            )
        return registry.isolation_driver(self._drivers.isolation).plan(request)


def _limits(config: Config) -> Limits:
    """Those of the capsule; `time` is a limit of each run."""
    return Limits.of(config.settings.below("capsule.limits"))


def _home_inside(home: str, workspace: str) -> str:
    """The owner's home, so that absolute paths work, unless that is in the workspace."""
    place = os.path.normpath(home)
    if not os.path.isabs(home) or place == "/" or f"{place}/".startswith(f"{workspace}/"):
        return "/home/agent"
    return place


def _require_base(project: state.ProjectRecord, refs: Refs, ref: str) -> tuple[str, str]:
    """The short name of the ref, and its commit."""
    if ref == "HEAD" and refs.head_ref is not None and refs.head_commit is not None:
        return refs.head_ref.removeprefix("refs/heads/"), refs.head_commit
    commit = git.find_commit(ref, cwd=project.root)
    if commit is None and ref == "HEAD":
        raise StateError(
            f"`{printable(project.root)}` has no commit yet",
            hint="git add -A && git commit -m start",
        )
    if commit is None:
        raise StateError(
            f"`{printable(ref)}`: unknown or ambiguous revision",
            hint="git show-ref",
        )
    return ref, commit


def _require_walls(name: str, config: Config, level: levels.Level) -> None:
    """Raises IsolationError with every requested wall that the level does not have."""
    settings = config.settings
    walls = {
        f"limit `{limit}` is not enforced": f"--limit {limit}=none"
        for limit, value in settings.below("capsule.limits").items()
        if limit != TIME_LIMIT.name and value is not None and not level.has_limits
    }
    mode = settings.value("capsule.network")
    if mode not in level.networks:
        what = "the host's own" if level.networks == ("open",) else " or ".join(level.networks)
        walls[f"the network is {what}, not `{mode}`"] = f"--network {level.networks[0]}"
    in_file = [
        key
        for key in ("capsule.setup_network", "capsule.allow")
        if level.networks == ("open",) and settings.value(key, "open") not in ("open", ())
    ]
    walls |= {f"`{key}` has no effect on the host's own network": "" for key in in_file}
    if walls:
        flags = " ".join(flag for flag in walls.values() if flag)
        first = f"take {', '.join(f'`{key}`' for key in in_file)} out of atoll.toml"
        command = f"atoll new {name} {flags}"
        raise IsolationError(
            f"level `{level.name}` does not support: " + "; ".join(walls),
            hint=", then: ".join([*([first] if in_file else []), *([command] if flags else [])]),
        )


def _require_supported(config: Config, level: levels.Level, *, dirty: bool) -> None:
    """Raises PrerequisiteError with every setting that the level does not support yet."""
    settings = config.settings
    if dirty and level.workspace != levels.LAYERS:
        raise PrerequisiteError(
            f"level `{level.name}` starts from a commit: `--dirty` needs layers",
            hint=f"omit `--dirty`, or use level `{levels.DEFAULT}`",
        )
    missing: list[str] = []
    if level.workspace != levels.LAYERS:
        missing += [f"`project.carry`: {path}" for path in settings.value("project.carry") or ()]
    if settings.value("tools.use") != "none":
        missing.append(f"`tools.use = {settings.value('tools.use')}`")
    if missing:
        raise PrerequisiteError(
            f"level `{level.name}` does not support these yet: " + "; ".join(missing),
            hint="remove them from atoll.toml",
        )
