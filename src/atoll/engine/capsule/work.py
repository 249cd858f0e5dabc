"""The work in a capsule, as git: read from its files on the host, never by asking its git.

Only hooks run inside, because a commit was asked for, and they run as a run of the capsule does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from atoll.drivers import registry
from atoll.drivers.contracts import Author, CommitResult
from atoll.engine.capsule import exports, foreground_runs, removal
from atoll.engine.run import freezer, internal_runs
from atoll.engine.secret import scan
from atoll.engine.state.leases import isolation_plan, snapshot_layers, workspace_plan
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.host.process import Completed
from atoll.host.programs import host_path
from atoll.model.errors import DriverError, IsolationError, PrerequisiteError, StateError
from atoll.model.names import printable
from atoll.model.plan import WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.state import CapsuleRecord, Patch, Snapshot

_HOOK_S = 3600.0
_PLACE_S = 60.0
_SAID_BYTES = 4000
_HOOK = (
    'test -x "$(git rev-parse --git-path "hooks/$1")" || exit 0; d=$(mktemp -d) && '
    'cp "$(git rev-parse --git-path index)" "$d/index" 2>/dev/null; '
    'export GIT_INDEX_FILE="$d/index"; if test "$2" = apart; then mkdir -p "$d/objects/info"; '
    'git rev-parse --path-format=absolute --git-path objects >"$d/objects/info/alternates"; '
    'export GIT_OBJECT_DIRECTORY="$d/objects"; fi; git add --all . && '
    'git hook run --ignore-missing "$1"; code=$?; rm -rf "$d"; exit $code'
)
"""Hooks see everything as staged, in a separate index, and with `apart` also with separate objects,
where they may not write to the repository."""
_MESSAGE = (
    'f=$(mktemp) && cat >"$f" && git hook run --ignore-missing commit-msg -- "$f" >&2 && '
    'cat "$f"; code=$?; rm -f "$f"; exit $code'
)
_PLACE = (
    "git index-pack --stdin --fix-thin >/dev/null && "
    'git update-ref -m commit "refs/heads/$1" "$2" "$3" && git reset --quiet'
)
"""Adds a commit that was created on the host to the capsule's own repository."""
_ALONE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": os.devnull,
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
}
"""With the system's PATH: for a git that may write to the repository, unlike restricted runs, and
so must not start anything that these prepared in HOME."""


def diff(session: Session, capsule: CapsuleRecord, *, stat: bool = False) -> Patch:
    """Everything that differs from where the capsule started: committed or not, tracked or not."""
    plan = workspace_plan(session, capsule)
    driver = registry.workspace_driver(plan.driver)
    return driver.diff(plan, base=capsule.base_commit, stat=stat)


def diff_since(
    session: Session, capsule: CapsuleRecord, snapshot: Snapshot, *, stat: bool = False
) -> Patch:
    """What has changed since a point."""
    plan = workspace_plan(session, capsule)
    return registry.layered_driver(plan.driver).diff_since(
        plan, snapshot_layers(snapshot), stat=stat
    )


def commit(
    session: Session,
    capsule: CapsuleRecord,
    message: str,
    *,
    verify: bool = True,
    otherwise: Author | None = None,
) -> str:
    """Commits everything in the workspace on its branch, after the project's own hooks agree.

    `otherwise` is the author if git has no name and address of the owner's.
    """
    if capsule.branch is None:
        raise StateError(
            f"`{capsule.name}` is the checkout itself and has no branch of its own",
            hint="git commit",
        )
    if not message.strip():
        raise StateError("the message of a commit cannot be empty", hint='-m "what was done"')
    plan = workspace_plan(session, capsule)
    author = _require_author(session, capsule, otherwise)
    if not plan.is_layered:
        return _commit_in_worktree(session, capsule, message, verify=verify)
    # Before anything moves: it has to take the commit.
    freezer.require_running(capsule)
    driver = registry.layered_driver(plan.driver)
    if verify and driver.has_hook(plan, "pre-commit"):
        _run_hook(session, capsule, "pre-commit")
    if verify and driver.has_hook(plan, "commit-msg"):
        message = _checked_message(session, capsule, message)
    search = scan.find_search(session, capsule)
    made = _made(capsule, plan, message, author, search)
    scan.require_clean(capsule, plan.repository, made.commit, search)
    exports.warn_of(session, capsule, made.notes)
    exports.place(session, capsule, plan, made.commit)
    _give(session, capsule, made)
    return made.commit


def _made(
    capsule: CapsuleRecord,
    plan: WorkspacePlan,
    message: str,
    author: Author,
    search: SecretSearch | None,
) -> CommitResult:
    name = capsule.name
    try:
        return registry.layered_driver(plan.driver).commit(plan, message, author, search=search)
    except StateError as error:
        hint = error.hint or f"atoll diff {name}; atoll run {name} -- git status"
        raise StateError(f"`{name}`: {error.message}", hint=hint) from error


def _ask(  # noqa: PLR0913 - as `internal_runs.ask`
    session: Session,
    capsule: CapsuleRecord,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float,
    also_write: Sequence[str] = (),
) -> Completed:
    """Runs a program inside, with the capsule's own variables."""
    own = {**foreground_runs.variables(session, capsule), **(env or {})}
    return internal_runs.ask(
        session, capsule, argv,
        stdin=stdin, env=own, timeout_s=timeout_s, also_write=also_write,
    )  # fmt: skip


def _run_hook(session: Session, capsule: CapsuleRecord, name: str) -> None:
    _, write = internal_runs.narrowest(session, capsule)
    done = _ask(
        session,
        capsule,
        ("/bin/sh", "-c", _HOOK, "sh", name, "shared" if write is None else "apart"),
        timeout_s=_HOOK_S,
    )
    if done.code != 0:
        said = _tail(done.stdout + done.stderr)
        raise DriverError(
            f"the hook `{name}` of `{capsule.name}` failed (exit code {done.code}){said}",
            hint=f"atoll run {capsule.name} -- git hook run {name}, or: "
            f"atoll commit {capsule.name} -m '…' --no-verify",
        )


def _checked_message(session: Session, capsule: CapsuleRecord, message: str) -> str:
    """The message as the hook `commit-msg` leaves it."""
    done = _ask(
        session,
        capsule,
        ("/bin/sh", "-c", _MESSAGE),
        stdin=os.fsencode(message.rstrip("\n") + "\n"),
        timeout_s=_HOOK_S,
    )
    if done.code != 0:
        raise DriverError(
            f"the hook `commit-msg` of `{capsule.name}` failed{_tail(done.stderr)}",
            hint=f"write another message, or: atoll commit {capsule.name} -m '…' --no-verify",
        )
    return os.fsdecode(done.stdout)


def _tail(said: bytes) -> str:
    lines = said[-_SAID_BYTES:].decode(errors="replace").strip().splitlines()[-12:]
    return "".join(f"\n  {printable(line)}" for line in lines)


def _give(session: Session, capsule: CapsuleRecord, made: CommitResult) -> None:
    """Moves the capsule's own branch to the commit. The result is not trusted: the commit is in the
    owner's repository already.
    """
    before = made.parent or "0" * len(made.commit)
    branch = str(capsule.branch)
    try:
        done = _ask(
            session,
            capsule,
            ("/bin/sh", "-c", _PLACE, "sh", branch, made.commit, before),
            stdin=made.pack,
            env={**_ALONE, "PATH": host_path()},
            timeout_s=_PLACE_S,
            also_write=(".git/**",),
        )
    except (StateError, DriverError, IsolationError) as error:
        reason = f"\n  {error.message}"
    else:
        if done.code == 0:
            return
        reason = _tail(done.stderr)
    session.warn(
        f"the commit is in the branch `{branch}`, but `{capsule.name}` itself could not be updated"
        f"{reason}"
    )


def _commit_in_worktree(
    session: Session, capsule: CapsuleRecord, message: str, *, verify: bool
) -> str:
    """Commits with the worktree's own git, which shares the owner's repository."""
    flags = () if verify else ("--no-verify",)
    branch = f"refs/heads/{capsule.branch}"
    repository = workspace_plan(session, capsule).repository
    before = git.find_ref(branch, cwd=repository)
    work = removal.find_work(session, capsule)
    if not work.uncommitted and not work.untracked:
        raise StateError(
            f"`{capsule.name}` has nothing to commit", hint=f"atoll diff {capsule.name}"
        )
    for argv, given in (
        (("git", "add", "--all", "--", "."), b""),
        (("git", "commit", "--quiet", *flags, "--file=-"), os.fsencode(message)),
    ):
        done = _ask(session, capsule, argv, stdin=given, timeout_s=_HOOK_S)
        if done.code != 0:
            raise DriverError(
                f"git refuses to commit in `{capsule.name}`{_tail(done.stdout + done.stderr)}",
                hint=f"atoll run {capsule.name} -- git status, or, if a hook refuses: --no-verify",
            )
    after = git.find_ref(branch, cwd=repository)
    if after is None or after == before:
        raise StateError(
            f"the workspace of `{capsule.name}` is not on its branch `{capsule.branch}`",
            hint=f"atoll run {capsule.name} -- git switch {capsule.branch}",
        )
    return after


def _require_author(session: Session, capsule: CapsuleRecord, otherwise: Author | None) -> Author:
    plan = isolation_plan(session, capsule)
    name, address = plan.author, plan.email
    if not name or not address:
        name, address = git.identity(cwd=workspace_plan(session, capsule).checkout)
    if otherwise is not None and not (name and address):
        return otherwise
    if not name or not address:
        raise PrerequisiteError(
            "git has no user name and email",
            hint='git config --global user.name "NAME" && git config --global user.email "ADDRESS"',
        )
    return Author(name, address)
