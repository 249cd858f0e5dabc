"""What `new` will do, decided as a value before anything is touched.

Here requests are refused: what a level cannot keep, what does not exist yet, what the owner has
not approved. Nothing that was asked for is ever ignored.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import IsolationRequest, WorkspaceRequest
from atoll.drivers.layers.pool import Pool
from atoll.engine import confines, levels, machine, trust
from atoll.engine.config import Config
from atoll.engine.session import Session
from atoll.host import git
from atoll.model import state
from atoll.model.errors import IsolationError, PrerequisiteError, StateError
from atoll.model.names import parse_name, printable
from atoll.model.plan import CapsulePlan, Ground, IsolationPlan, Refs, WorkspacePlan

DEFAULT_PORT = "web"


class Survey(NamedTuple):
    """What planning asks the owner's repository, once for all capsules that are planned."""

    refs: Refs
    base_ref: str
    commit: str
    author: str
    email: str


def survey(session: Session, project: state.Project, config: Config) -> Survey:
    refs = session.acquaintance.refs(project)
    base_ref, commit = _require_base(project, refs, config.settings.value("project.base"))
    author, email = session.acquaintance.identity(project)
    return Survey(refs=refs, base_ref=base_ref, commit=commit, author=author, email=email)


def plan_capsules(
    session: Session,
    project: state.Project,
    names: Sequence[str],
    config: Config,
    *,
    dirty: bool = False,
) -> list[CapsulePlan]:
    """Decides everything, changes nothing. Raises what the request deserves."""
    for name in names:
        parse_name(name)
    trust.require_trust(session, config)
    level = levels.require_level(config.settings.value("capsule.level"), session.home)
    _require_walls(names[0], config, level)
    _require_parts(config, level, dirty=dirty)
    if level.limits:
        _warn_of_limits(session, config)
    found = survey(session, project, config)
    planner = _Planner(session, project, config, level, found)
    return [planner.plan(name, dirty=dirty) for name in names]


def _warn_of_limits(session: Session, config: Config) -> None:
    """Limits that somebody chose and that exceed this machine, or that nothing holds here."""
    chosen = {
        name: value
        for name, value in config.settings.below("capsule.limits").items()
        if config.settings.source(f"capsule.limits.{name}") != "default"
    }
    if excess := machine.describe_excess(chosen, machine.capacity(session.home)):
        session.warn(excess)
    unheld = confines.find_unheld(
        session, [name for name, value in chosen.items() if value is not None]
    )
    if unheld:
        told = ", ".join(f"`{name}`" for name in unheld)
        session.warn(f"not held on this machine, for want of cgroups: {told}\nhint: atoll doctor")


def ground_of(config: Config) -> Ground:
    """What the settings say of the files beside the commit."""
    carry = config.settings.value("project.carry")
    return Ground(
        carry=None if carry is None else tuple(carry),
        never=tuple(config.settings.value("project.never") or ()),
    )


class _Planner:
    def __init__(
        self,
        session: Session,
        project: state.Project,
        config: Config,
        level: levels.Level,
        found: Survey,
    ) -> None:
        self._session = session
        self._project = project
        self._config = config
        self._level = level
        self._found = found
        wanted = config.settings.value("capsule.workspace")
        self._driver = levels.choose_driver(level, session.home, wanted)

    def plan(self, name: str, *, dirty: bool) -> CapsulePlan:
        settings, found = self._config.settings, self._found
        directory = self._session.capsule_directory(self._project.id, name)
        workspace = self._plan_workspace(name, directory)
        services = self._config.file.services if self._config.file else {}
        default = () if self._level.own_network else (DEFAULT_PORT,)
        return CapsulePlan(
            name=name,
            project=settings.value("project.name"),
            level=self._level.name,
            base_ref=found.base_ref,
            base_commit=found.commit,
            directory=str(directory),
            workspace=workspace,
            isolation=self._plan_isolation(workspace, directory),
            # In a network of its own what nobody declared is leased when it is found.
            ports=tuple(services) or default,
            numbers=dict(services),
            setup=tuple(settings.value("capsule.setup", ())),
            time_limit_s=settings.value("capsule.limits.time"),
            ground=ground_of(self._config)._replace(dirty=dirty),
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
        )
        return registry.workspace_driver(self._driver).plan(request)

    def _plan_isolation(self, workspace: WorkspacePlan, directory: Path) -> IsolationPlan:
        request = IsolationRequest(
            workspace=workspace.path,
            directory=str(directory),
            variables=self._config.settings.below("capsule.env"),
            author=self._found.author,
            email=self._found.email,
        )
        if workspace.pool:
            request = request._replace(
                home=_home_inside(self._session.owner.get("HOME", ""), workspace.path),
                is_root=os.geteuid() == 0,
                network=self._config.settings.value("capsule.network"),
                setup_network=self._config.settings.value("capsule.setup_network", ""),
                allow=tuple(self._config.settings.value("capsule.allow", ())),
                limits=_limits(self._config),
                private=str(Pool(workspace.pool).state),
                tools=registry.layered_driver(self._driver).tools(workspace),
            )
        return registry.isolation_driver(str(self._level.isolation)).plan(request)


def _limits(config: Config) -> dict[str, float]:
    """As the keeper names them; time is each run's own matter."""
    units = {"memory": "memory_bytes", "disk": "disk_bytes", "output": "output_bytes"}
    units |= {"idle": "idle_s"}
    return {
        units.get(name, name): value
        for name, value in config.settings.below("capsule.limits").items()
        if value is not None and name != "time"
    }


def _home_inside(home: str, workspace: str) -> str:
    """The owner's path, so that what names it works; another where the workspace is there."""
    place = os.path.normpath(home)
    if not os.path.isabs(home) or place == "/" or f"{place}/".startswith(f"{workspace}/"):
        return "/home/agent"
    return place


def _require_base(project: state.Project, refs: Refs, ref: str) -> tuple[str, str]:
    """The ref as people call it, and its commit."""
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
            f"`{printable(ref)}` names no commit here, or several things at once",
            hint="git show-ref",
        )
    return ref, commit


def _require_walls(name: str, config: Config, level: levels.Level) -> None:
    """Raises IsolationError for every wall that was asked for and that the level does not have."""
    settings = config.settings
    walls = {
        f"limit `{limit}` is not enforced": f"--limit {limit}=none"
        for limit, value in settings.below("capsule.limits").items()
        if limit != "time" and value is not None and not level.limits
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
            f"level `{level.name}` cannot keep what was asked for: " + "; ".join(walls),
            hint=", then: ".join([*([first] if in_file else []), *([command] if flags else [])]),
        )


def _require_parts(config: Config, level: levels.Level, *, dirty: bool) -> None:
    """Raises PrerequisiteError for every part of the file that the level does not bring yet."""
    settings = config.settings
    if dirty and level.workspace != levels.LAYERS:
        raise PrerequisiteError(
            f"level `{level.name}` starts from a commit: `--dirty` needs layers",
            hint=f"leave `--dirty` out, or take level `{levels.DEFAULT}`",
        )
    missing = [f"secret `{secret}`" for secret in (config.file.secrets if config.file else ())]
    if level.workspace != levels.LAYERS:
        missing += [f"`project.carry`: {path}" for path in settings.value("project.carry") or ()]
    if settings.value("tools.use") != "none":
        missing.append(f"`tools.use = {settings.value('tools.use')}`")
    if missing:
        raise PrerequisiteError(
            f"level `{level.name}` does not bring these yet: " + "; ".join(missing),
            hint="take them out of atoll.toml for now",
        )
