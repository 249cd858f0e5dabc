"""Tests what this host supports. Each feature is tried; none is inferred from a name or version."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from atoll.drivers import registry
from atoll.engine.capsule import disk_use
from atoll.engine.network import ports
from atoll.engine.project import levels
from atoll.engine.run import runs
from atoll.engine.run.runs import RunSpec
from atoll.engine.state.leases import find_damage
from atoll.engine.state.session import home_path, open_session
from atoll.host import files, git, kernel, locks, procfs, programs, sockets
from atoll.host.process import run, wait_until
from atoll.model.enclosure import LIMITS, Enclosure
from atoll.model.errors import AtollError
from atoll.model.names import printable
from atoll.model.state import Finding
from atoll.model.units import render_size

_LOW_SPACE_BYTES = 1 << 30
_INSTALL = "apt-get install"
VISIBLE = "visible"
"""The check that fails if files of the owner are visible inside, not if a feature is missing."""

Probe = Callable[[], str]
"""Tries something and returns what it found; raises AtollError or OSError when it does not work."""


def examine() -> list[Finding]:
    return [
        _try("git", _git, cure=f"{_INSTALL} git"),
        _try("home", _home, cure="set ATOLL_HOME to a directory that you can write to"),
        _try("state", _state),
        _try("space", _space, cure="free some space, or set ATOLL_HOME to another disk"),
        _try("worktree", _worktree),
        *(_workspace(name) for name in registry.LAYERED),
        _try("process tree", _daemon),
        _try("ports", _ports),
        _try("bubblewrap", _bubblewrap, cure=f"{_INSTALL} bubblewrap"),
        _try("user namespaces", _user_namespaces, needed=False,
             cure="sysctl -w kernel.unprivileged_userns_clone=1"),
        _try("walls", _walls, cure="use atoll new NAME --level clone, which does not isolate"),
        _try(VISIBLE, _visible, cure="atoll verify NAME --all shows each attack"),
        _try("toolchains", _toolchains, needed=False),
        _try("egress", _egress, cure="use atoll new NAME --network none"),
        _try("limits", _limits, needed=False),
        _try("browser", _browser, needed=False, cure=f"{_INSTALL} chromium"),
    ]  # fmt: skip


def _try(name: str, probe: Probe, *, cure: str | None = None, needed: bool = True) -> Finding:
    started = time.monotonic()
    try:
        detail, good = probe(), True
    except AtollError as error:
        detail, good, cure = error.message, False, error.hint or cure
    except OSError as error:
        detail, good = str(error), False
    took = time.monotonic() - started
    return Finding(
        name=name, good=good, detail=detail, cure=None if good else cure, needed=needed,
        took_s=took, is_exposure=name == VISIBLE,
    )  # fmt: skip


def _git() -> str:
    found = git.version()
    if found < (2, 36):
        raise OSError(f"git {'.'.join(map(str, found))} is older than 2.36")
    return f"git {'.'.join(map(str, found))}"


def _home() -> str:
    home = home_path(os.environ)
    files.require_own_directory(home)
    return str(home)


def _state() -> str:
    session = open_session()
    try:
        damage = find_damage(session.store)
        if damage:
            raise OSError("the database is damaged: " + "; ".join(damage[:3]))
        return f"{session.store.path.name} is intact, capsules: {len(session.store.capsules())}"
    finally:
        session.store.close()


def _space() -> str:
    home = home_path(os.environ)
    free = files.free_bytes(home)
    if free < _LOW_SPACE_BYTES:
        raise OSError(f"only {render_size(free) if free else 0} free at {home}")
    session = open_session(home=home, warn=lambda _: None)
    used = disk_use.of_home(session)
    session.store.close()
    size = (render_size(used.bytes) if used.bytes else "0") + (
        "" if used.is_complete else " or more"
    )
    return f"{render_size(free)} free, {size} used by Atoll"


def _worktree() -> str:
    """Makes a repository with a worktree below Atoll's home, as `new` would."""
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=home_path(os.environ)) as place:
        repository, tree = Path(place, "repository"), Path(place, "tree")
        identity = {
            f"GIT_{who}_{what}": "atoll"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        git.git("init", "--quiet", str(repository), cwd=place)
        git.git(
            "commit", "--quiet", "--allow-empty", "-m", "probe", cwd=str(repository), env=identity
        )
        git.git("worktree", "add", "--quiet", "-b", "probe", str(tree), cwd=str(repository))
        return "created and removed one"


def _workspace(name: str) -> Finding:
    """Tries one of the drivers that level `clone` chooses from."""

    def probe() -> str:
        home = home_path(os.environ)
        mode, reason = registry.layered_driver(name).probe(home)
        if mode is None:
            raise OSError(reason)
        level = next(level for level in levels.LEVELS if level.workspace == levels.LAYERS)
        is_chosen = levels.require_drivers(level, home).workspace == name
        return f"{reason}; chosen" if is_chosen else reason

    # One of them is enough, and `copy` needs nothing but a mount namespace.
    return _try(f"workspace {name}", probe, needed=name == registry.LAYERED[-1])


def _daemon() -> str:
    """Starts a daemon under a keeper and checks that the keeper ends it."""
    session = open_session()
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=session.home) as place:
        token = runs.new_token()
        daemon = ("/bin/sh", "-c", "trap '' TERM; (setsid sleep 600 &) ; sleep 600")
        payload = runs.keeper_spec(
            token,
            Enclosure(env={"PATH": os.defpath}, cwd=place),
            RunSpec(argv=daemon, background=True),
        )
        lock = session.run_lock(token)
        lock.acquire()
        try:
            runs.launch_keeper(session, place, payload, lock)
        finally:
            lock.release()
        wait_until(lambda: len(procfs.marked(token)) >= 3, timeout_s=5)
        started = len(procfs.marked(token))
        runs.end_keeper(place, grace_s=0.1)
        wait_until(lambda: not locks.is_locked(lock.path), timeout_s=10)
        lock.path.unlink(missing_ok=True)
        left = procfs.marked(token)
    session.store.close()
    if left or not started:
        raise OSError(f"{len(left)} of {started} processes outlived their run")
    return f"a daemon that ignores SIGTERM was killed ({started} processes)"


def _ports() -> str:
    for port in range(ports.FIRST, ports.LAST):
        held = sockets.find_hold(port)
        if held is not None:
            second = sockets.find_hold(port)
            held.close()
            if second is not None:
                second.close()
                raise OSError(f"port {port} could be taken twice")
            return f"{ports.FIRST} to {ports.LAST}, exclusive"
    raise OSError("no port is free")


def _bubblewrap() -> str:
    found = programs.find_program("bwrap")
    if found is None:
        raise OSError("bwrap is not installed; level `sandbox` needs it")
    answer = run(
        (found, "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "true"),
        allowed=range(256),
    )
    if answer.code != 0:
        raise OSError(f"bwrap cannot build a sandbox: {os.fsdecode(answer.stderr).strip()}")
    return run((found, "--version")).text.strip()


def _user_namespaces() -> str:
    said = kernel.can_unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET)
    if said is not None:
        raise OSError(f"the kernel refused: {said}")
    return "user, mount and network namespaces can be created"


def _walls() -> str:
    """Builds a test sandbox, without cached results."""
    driver = registry.isolation_driver("sandbox")
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=home_path(os.environ)) as place:
        mode, reason = driver.probe(Path(place))
    if mode is None:
        raise OSError(reason)
    return reason


def _visible() -> str:
    """Runs the attacks of `atoll verify` on visible files, in a temporary capsule."""
    from atoll.engine.verify import short  # noqa: PLC0415 - only here

    home = home_path(os.environ)
    files.require_own_directory(home)
    findings = short.check_visible(home)
    through = [f for f in findings if f.verdict == "gave way"]
    if through:
        failed = "; ".join(f"{f.id} {f.title}: {printable(f.detail)}" for f in through)
        raise OSError(failed)
    tried = [f for f in findings if f.verdict == "held"]
    if not tried:
        raise OSError(f"no attempt could be made: {printable(findings[0].detail)}")
    return f"{len(tried)} attacks on the owner's files, keys and sockets were blocked"


def _toolchains() -> str:
    """Which program directories capsules see, and which directories of PATH they do not."""
    shown, refused = registry.survey_toolchains(os.environ, [str(home_path(os.environ))])
    found = f"capsules see {len(shown)} of your program directories"
    return found + "".join(f"; not {refusal}" for refusal in refused)


def _egress() -> str:
    """Tests that the kernel redirects connections that leave a capsule's network."""
    said = kernel.can_intercept()
    if said is not None:
        raise OSError(f"outgoing connections of a capsule cannot be redirected: {said}")
    return "outgoing connections of a capsule are redirected"


def _limits() -> str:
    """Reports which limits are enforced by the kernel, only watched, or not enforced."""
    from atoll.engine.enclosure import cgroup_limits  # noqa: PLC0415 - only here
    from atoll.host import cgroups, scopes  # noqa: PLC0415 - likewise

    direct, manager = cgroups.find_cgroup_parents(), scopes.find_manager()
    scoped = None if manager is None else cgroup_limits.try_scopes(manager)
    places = cgroup_limits.choose(direct, scoped)
    by_state: dict[str, list[str]] = {"enforced": [], "watched": [], "not enforced": []}
    for kind in (kind for kind in LIMITS if kind.controller):
        how = cgroup_limits.holding(kind.field, places.parents)
        missing = places.missing.get(kind.controller)
        why = f" ({missing})" if missing is not None else ""
        left = ", ".join(cgroup_limits.uncounted(kind.field, how))
        by_state[how].append(kind.name + why + (f", not counting {left}" if left else ""))
    said = "; ".join(f"{how}: {', '.join(names)}" for how, names in by_state.items() if names)
    is_scoped = cgroup_limits.prefers_scope(direct.parents, scoped)
    return said + ("; by a scope of the systemd user manager" if is_scoped else "")


def _browser() -> str:
    """Which one `atoll open` would start."""
    from atoll.engine.browser import windows  # noqa: PLC0415 - only here

    session = open_session()
    try:
        found = windows.require_browser(session, avoid=os.devnull)
    finally:
        session.store.close()
    return f"{run((found.program, '--version')).text.strip()}, {found.program}"
