"""What `new` will do, decided as a value before anything is touched.

Here requests are refused: what a level cannot keep, what does not exist yet, what the owner has
not approved. Nothing that was asked for is ever ignored.
"""

from __future__ import annotations

from pathlib import Path

from atoll.drivers import registry
from atoll.drivers.contracts import IsolationRequest, WorkspaceRequest
from atoll.engine import levels, trust
from atoll.engine.config import Config
from atoll.engine.session import Session
from atoll.host import git
from atoll.model import state
from atoll.model.errors import IsolationError, PrerequisiteError, StateError
from atoll.model.names import parse_name, printable
from atoll.model.plan import CapsulePlan, IsolationPlan, WorkspacePlan

DEFAULT_PORT = "web"


def plan_capsule(
    session: Session, project: state.Project, name: str, config: Config
) -> CapsulePlan:
    """Decides everything, changes nothing. Raises what the request deserves."""
    parse_name(name)
    trust.require_trust(session, config)
    settings = config.settings
    level = levels.require_level(settings.value("capsule.level"))
    _require_walls(name, config, level)
    _require_parts(config, level)
    base_ref, commit = _require_base(project, settings.value("project.base"))
    directory = session.capsule_directory(project.id, name)
    workspace = _plan_workspace(project, name, level, commit, directory)
    return CapsulePlan(
        name=name,
        project=settings.value("project.name"),
        level=level.name,
        base_ref=base_ref,
        base_commit=commit,
        directory=str(directory),
        workspace=workspace,
        isolation=_plan_isolation(project, config, level, workspace, directory),
        ports=tuple(config.file.services if config.file else ()) or (DEFAULT_PORT,),
        setup=tuple(settings.value("capsule.setup", ())),
        time_limit_s=settings.value("capsule.limits.time"),
    )


def _plan_workspace(
    project: state.Project, name: str, level: levels.Level, commit: str, directory: Path
) -> WorkspacePlan:
    request = WorkspaceRequest(
        name=name,
        repository=project.git_dir,
        checkout=project.root,
        base_commit=commit,
        path=str(directory / "workspace" / name),
    )
    return registry.workspace_driver(str(level.workspace)).plan(request)


def _plan_isolation(
    project: state.Project,
    config: Config,
    level: levels.Level,
    workspace: WorkspacePlan,
    directory: Path,
) -> IsolationPlan:
    request = IsolationRequest(
        workspace=workspace.path,
        directory=str(directory),
        variables=config.settings.below("capsule.env"),
        author=git.setting("user.name", cwd=project.root),
        email=git.setting("user.email", cwd=project.root),
    )
    return registry.isolation_driver(str(level.isolation)).plan(request)


def _require_base(project: state.Project, ref: str) -> tuple[str, str]:
    """The ref as people call it, and its commit."""
    commit = git.find_commit(ref, cwd=project.root)
    if commit is None and ref == "HEAD":
        raise StateError(
            f"`{printable(project.root)}` has no commit yet",
            hint="git add -A && git commit -m start",
        )
    if commit is None:
        raise StateError(f"`{printable(ref)}` names no commit here", hint="git branch --all")
    if ref == "HEAD":
        ref = git.current_branch(cwd=project.root) or ref
    return ref, commit


def _require_walls(name: str, config: Config, level: levels.Level) -> None:
    """Raises IsolationError for every wall that was asked for and that the level does not have."""
    settings = config.settings
    walls = {
        f"limit `{limit}` is not enforced": f"--limit {limit}=none"
        for limit, value in settings.below("capsule.limits").items()
        if limit != "time" and value is not None
    }
    if settings.value("capsule.network") != "open":
        mode = settings.value("capsule.network")
        walls[f"the network is the host's own, not `{mode}`"] = "--network open"
    in_file = [
        key
        for key in ("capsule.setup_network", "capsule.allow")
        if settings.value(key, "open") not in ("open", ())
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


def _require_parts(config: Config, level: levels.Level) -> None:
    """Raises PrerequisiteError for every part of the file that the level does not bring yet."""
    settings = config.settings
    missing = [f"secret `{secret}`" for secret in (config.file.secrets if config.file else ())]
    missing += [f"`project.carry`: {path}" for path in settings.value("project.carry") or ()]
    if settings.value("tools.use") != "none":
        missing.append(f"`tools.use = {settings.value('tools.use')}`")
    if missing:
        raise PrerequisiteError(
            f"level `{level.name}` does not bring these yet: " + "; ".join(missing),
            hint="take them out of atoll.toml for now",
        )
