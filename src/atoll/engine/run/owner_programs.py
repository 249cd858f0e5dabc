"""Programs that `atoll edit` starts in a capsule's view, with the owner's rights.

The files there are written by an agent. So the program is never one of them, no search path of its
environment contains them, and git gets a repository that Atoll created on the host: it has the
owner's objects, the capsule's branch and a constant configuration, and git reads neither the
configuration of the agent's repository nor that of repositories nested in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.drivers.layers import history
from atoll.engine.run.runs import RunSpec
from atoll.engine.state.leases import workspace_plan
from atoll.engine.state.session import Session
from atoll.host import files, git, programs
from atoll.model.enclosure import Enclosure
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.names import printable
from atoll.model.plan import WorkspacePlan
from atoll.model.state import CapsuleRecord

_STORE = "edit.git"
_SEARCH_PATHS = (
    "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PERL5LIB", "RUBYLIB", "NODE_PATH",
    "GEM_PATH", "GEM_HOME", "CLASSPATH", "LUA_PATH", "LUA_CPATH", "GUILE_LOAD_PATH",
    "EMACSLOADPATH", "XDG_DATA_DIRS", "XDG_CONFIG_DIRS", "INFOPATH", "MANPATH", "FPATH",
)  # fmt: skip
_PLACES = (
    "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONSTARTUP", "BASH_ENV", "ENV", "ZDOTDIR",
)  # fmt: skip
_COMMANDS = (
    "NODE_OPTIONS", "EDITOR", "VISUAL", "PAGER", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_PAGER",
    "GIT_EXTERNAL_DIFF", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS", "LESSOPEN",
)  # fmt: skip
_LOCATIONS = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS",
    "GIT_ATTR_SOURCE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE",
)  # fmt: skip
_CREDENTIALS = ("ATOLL_PASSPHRASE",)
_HOOK = """#!/bin/sh
test "$1" = prepared || exit 0
echo "atoll: this is a view of a capsule's files; commit with: atoll commit NAME -m MESSAGE" >&2
exit 1
"""
"""A commit made there would be neither in the owner's repository nor in the capsule's."""


def for_the_owner(
    session: Session, capsule: CapsuleRecord, inside: Enclosure, spec: RunSpec
) -> tuple[Enclosure, RunSpec]:
    """Returns a run of a host program with the owner's environment, outside the sandbox.

    Raises StateError if root would change file ownership, PrerequisiteError if there is no such
    program.
    """
    if inside.walls is not None and inside.walls.uid is not None:
        raise StateError(
            f"running as root would change file ownership inside the capsule `{capsule.name}`",
            hint=f"atoll shell {capsule.name}",
        )
    argv = find_program(session, capsule, spec.argv)
    env = {**environment(session, capsule), "ATOLL_CAPSULE": capsule.name}
    return inside._replace(env=env, walls=None), spec._replace(argv=argv)


def find_program(session: Session, capsule: CapsuleRecord, argv: Sequence[str]) -> tuple[str, ...]:
    """The command with the absolute path of its program, which is outside of the project.

    Raises PrerequisiteError when there is none.
    """
    path = session.owner.get("PATH", os.defpath)
    found = programs.find_program(argv[0], path=path, avoid=_roots(session, capsule))
    if found is None:
        name = printable(argv[0])
        raise PrerequisiteError(
            f"`{name}` was not found on your PATH: it must be outside of projects, in a directory "
            "that only you and root can write",
            hint=f"atoll run {capsule.name} -- {name}",
        )
    return (found, *argv[1:])


def environment(session: Session, capsule: CapsuleRecord) -> dict[str, str]:
    """All of the owner's variables, without paths into the project."""
    roots = _roots(session, capsule)
    left_out = (*_LOCATIONS, *_CREDENTIALS)
    env = {key: value for key, value in session.owner.items() if key not in left_out}
    env["PATH"] = programs.trusted_path(env.get("PATH", ""), avoid=roots)
    for key in _SEARCH_PATHS:
        env[key] = ":".join(p for p in env.get(key, "").split(":") if _is_outside(p, roots))
    for key in _PLACES:
        env[key] = value if _is_outside(value := env.get(key, ""), roots) else ""
    for key in _COMMANDS:
        is_inside = any(word in env.get(key, "") for word in ("./", *roots))
        env[key] = "" if is_inside else env.get(key, "")
    for key in (*_SEARCH_PATHS, *_PLACES, *_COMMANDS):
        if not env[key]:
            del env[key]
    plan = workspace_plan(session, capsule)
    return {**env, **_git_variables(session, capsule, plan, env)} if plan.is_layered else env


def _roots(session: Session, capsule: CapsuleRecord) -> tuple[str, ...]:
    plan = workspace_plan(session, capsule)
    named = [plan.checkout, capsule.workspace, str(session.home)]
    return tuple(dict.fromkeys([*named, *map(os.path.realpath, named)]))


def _is_outside(place: str, roots: Sequence[str]) -> bool:
    """A relative entry is one of the place where the program starts: the project."""
    return os.path.isabs(place) and not (
        programs.is_below(os.path.normpath(place), roots)
        or programs.is_below(os.path.realpath(place), roots)
    )


def _git_variables(
    session: Session, capsule: CapsuleRecord, plan: WorkspacePlan, env: Mapping[str, str]
) -> dict[str, str]:
    store = _prepare_store(session, capsule, plan)
    settings = {
        "core.bare": "false",
        "core.fsmonitor": "false",
        "core.untrackedCache": "false",
        "core.hooksPath": f"{store}/hooks",
        "submodule.recurse": "false",
        "status.submoduleSummary": "false",
        "diff.submodule": "short",
        "diff.ignoreSubmodules": "all",
    }
    given = env.get("GIT_CONFIG_COUNT", "0")
    first = int(given) if given.isdecimal() else 0
    numbered = list(enumerate(settings.items(), first))
    return {
        "GIT_DIR": str(store),
        "GIT_WORK_TREE": capsule.workspace,
        "GIT_CEILING_DIRECTORIES": os.path.dirname(capsule.workspace),
        "GIT_CONFIG_COUNT": str(first + len(settings)),
        **{f"GIT_CONFIG_KEY_{n}": key for n, (key, _) in numbered},
        **{f"GIT_CONFIG_VALUE_{n}": value for n, (_, value) in numbered},
    }


def _fetch(plan: WorkspacePlan, store: Path, commit: str) -> None:
    """Copies what the branch has beyond the history that the capsule was made with."""
    env = {"GIT_DIR": str(store)}
    if git.git("cat-file", "-e", commit, cwd=str(store), env=env, allowed=(0, 1, 128)).code == 0:
        return
    asked = f"{commit}\n^{plan.base_commit}\n".encode()
    words = ("pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q")
    pack = git.git(*words, cwd=plan.repository, stdin=asked).stdout
    git.git("index-pack", "--stdin", cwd=str(store), env=env, stdin=pack)


def _prepare_store(session: Session, capsule: CapsuleRecord, plan: WorkspacePlan) -> Path:
    """A repository of the host's at the capsule's branch, or at its base before an export."""
    store = Path(capsule.directory, _STORE)
    if not store.is_dir():
        made = Path(f"{store}.{os.urandom(6).hex()}")
        # Not the owner's objects: where those are, the view shows the capsule's.
        git.make_store(str(made), like=plan.repository, objects=str(history.require_store(plan)))
        (made / "hooks").mkdir()
        (made / "hooks" / "reference-transaction").write_text(_HOOK)
        (made / "hooks" / "reference-transaction").chmod(0o700)
        try:
            made.rename(store)
        except OSError:
            # Another command was faster.
            files.remove_tree(made, within=session.home)
    ref = f"refs/heads/{capsule.branch}"
    commit = git.find_ref(ref, cwd=plan.repository) or capsule.base_commit
    env = {"GIT_DIR": str(store), "GIT_WORK_TREE": str(store)}
    _fetch(plan, store, commit)
    git.git("update-ref", ref, commit, cwd=str(store), env=env)
    git.git("symbolic-ref", "HEAD", ref, cwd=str(store), env=env)
    git.git("read-tree", "--reset", commit, cwd=str(store), env=env)
    listed = git.git("ls-files", "--stage", "-z", cwd=str(store), env=env).stdout.split(b"\0")
    links = [entry.partition(b"\t")[2] for entry in listed if entry.startswith(b"160000 ")]
    if links:
        # Git would ask a nested repository, with the configuration that it has there.
        names = b"".join(name + b"\0" for name in links)
        words = ("update-index", "-z", "--skip-worktree", "--stdin")
        git.git(*words, cwd=str(store), env=env, stdin=names)
    return store
