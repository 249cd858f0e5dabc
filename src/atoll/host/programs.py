"""Finds the programs that Atoll starts on the host, and builds their environment.

A program is searched in the system's directories first. Elsewhere it must be in an absolute
directory of the owner's PATH where only root and the owner can replace it or any of its parents,
and outside every project, every workspace and Atoll's home, where an agent may have written it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from atoll.model.errors import PrerequisiteError

SYSTEM_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/run/current-system/sw/bin",
    "/nix/var/nix/profiles/default/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/snap/bin",
)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""In lower case; programs also read them in upper case."""
_MOST_LINKS = 40
_PLACES = ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL")
"""Passed on from the owner's environment if they are absolute paths."""
_WORDS = ("USER", "LOGNAME", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES")
"""Passed on with any value. None of them holds a credential."""
_SWITCHES = frozenset(
    {
        *("ATOLL_DAEMON", "ATOLL_WATCH", "ATOLL_ROUTER_PORT", "ATOLL_SHARE_PORTS"),
        *("USER", "LOGNAME", "LANG", "LANGUAGE", "TERM", "TZ"),
    }
)
_GIT_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.gitProxy": "",
    "core.askPass": "",
    "core.pager": "cat",
    "core.editor": "false",
    "core.alternateRefsCommand": "true",
    "sequence.editor": "false",
    "credential.helper": "",
    "log.showSignature": "false",
    "submodule.recurse": "false",
    "maintenance.auto": "false",
    "gc.auto": "0",
}
"""Variables that make git start other programs or change its target."""

_untrusted: set[str] = set()


def distrust(roots: Iterable[str | os.PathLike[str]]) -> None:
    """Never start anything below these directories on the host, nor show it to a capsule.

    Applies to the given and the resolved paths, for the lifetime of this process.
    """
    for root in roots:
        named = os.path.abspath(os.fspath(root))
        # Except for `/`: nothing could be started at all.
        _untrusted.update({named, os.path.realpath(named)} - {"/"})


def untrusted_roots() -> tuple[str, ...]:
    return tuple(sorted(_untrusted))


def is_below(place: str, roots: Iterable[str]) -> bool:
    """Whether a path is one of the others or below one, by name alone."""
    return any(place == root or place.startswith(f"{root.rstrip('/')}/") for root in roots)


def find_program(name: str, *, avoid: Sequence[str] = (), path: str | None = None) -> str | None:
    """The absolute path of a program that may be started on the host, or None.

    `name` is a bare name or an absolute path. The system's directories are searched before the
    owner's PATH; with `path`, that PATH alone is searched in its own order. `avoid` adds to the
    directories of `distrust`.
    """
    roots = _all_roots(avoid)
    if os.path.isabs(name):
        places, name = [os.path.dirname(name)], os.path.basename(name)
    elif "/" in name or "\0" in name:
        return None
    else:
        places = [*SYSTEM_DIRECTORIES, *_entries(None)] if path is None else _entries(path)
    candidates = (os.path.join(place, name) for place in places if name)
    return next((p for p in candidates if _is_program(p) and _may_start(p, roots)), None)


def require_program(name: str) -> str:
    """As `find_program`, but always accepts Atoll's own interpreter.

    Raises PrerequisiteError if the program is missing.
    """
    if name == sys.executable and os.path.isabs(name):
        return name
    found = find_program(name)
    if found is None:
        raise PrerequisiteError(f"`{name}` is not installed", hint=f"install `{name}`")
    return found


def host_path() -> str:
    """The PATH of host programs: the system's directories, and git's if that is elsewhere."""
    git = find_program("git")
    extra = [] if git is None else [os.path.dirname(git)]
    return ":".join(dict.fromkeys([*SYSTEM_DIRECTORIES[:6], *extra]))


def find_any(names: Iterable[str], *, path: str, avoid: str) -> str | None:
    """As `find_program` for the first of `names` that is on that PATH and not below `avoid`."""
    found = (find_program(name, path=path, avoid=(avoid,)) for name in names)
    return next(filter(None, found), None)


def python_command(module: str, *arguments: str, site: bool = True) -> list[str]:
    """The command that runs `main` of one of Atoll's modules; without `site`, one that needs the
    standard library only.

    Atoll goes to the end of the search path: a back-port lying beside it must not stand in for the
    standard library.
    """
    root = str(Path(__file__).parents[2])
    program = f"import sys; sys.path.append({root!r}); from {module} import main; main()"
    return [sys.executable, "-I", *([] if site else ["-S"]), "-c", program, *arguments]


def own_environment() -> dict[str, str]:
    """The environment of host programs: constant, except for the paths of the owner's files."""
    owner = os.environ
    kept = {key: owner[key] for key in _PLACES if os.path.isabs(owner.get(key, ""))}
    kept |= {key: owner[key] for key in _WORDS if key in owner}
    settings = {f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(_GIT_SETTINGS)}
    settings |= {f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(_GIT_SETTINGS.values())}
    return {
        **kept,
        **settings,
        "GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS)),
        "PATH": host_path(),
        "LC_ALL": "C.UTF-8",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
    }


def owner_settings(owner: Mapping[str, str]) -> dict[str, str]:
    """What a background process needs of the owner's environment, so that capsules look as they do
    from a command: paths that exist, the locale, and Atoll's own switches. None is a credential.
    """
    return {
        name: value
        for name, value in owner.items()
        if name in _SWITCHES or name.startswith("LC_") or _names_place(value)
    }


def _names_place(value: str) -> bool:
    """Whether a value is a list of absolute paths of which one exists."""
    places = [place for place in value.split(":") if place]
    return all(map(os.path.isabs, places)) and any(map(os.path.lexists, places))


def trusted_path(path: str, *, avoid: Sequence[str] = ()) -> str:
    """The directories of a PATH from which programs may be started on the host."""
    roots = _all_roots(avoid)
    entries = [place for place in path.split(":") if os.path.isabs(place)]
    kept = [place for place in entries if _may_start(os.path.normpath(place), roots)]
    return ":".join(kept) or host_path()


def is_trusted(path: str, roots: Iterable[str]) -> bool:
    """Whether only root and the owner control what an absolute path resolves to.

    No component, through all links, may be below one of `roots`, belong to another user, or be
    writable by others; in a sticky directory such as `/tmp`, others cannot replace an entry.
    """
    roots = tuple(roots)
    pending = path.strip("/").split("/")[::-1]
    place, links = "/", 0
    while pending:
        name = pending.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)
            continue
        found = os.path.join(place, name)
        try:
            status = os.lstat(found)
        except OSError:
            return False
        if is_below(found, roots) or not _is_guarded(status):
            return False
        if not stat.S_ISLNK(status.st_mode):
            place = found
            continue
        links += 1
        if links > _MOST_LINKS:
            return False
        target = os.readlink(found)
        place = "/" if os.path.isabs(target) else place
        pending += target.strip("/").split("/")[::-1]
    return True


def _may_start(path: str, roots: Sequence[str]) -> bool:
    """The administrator controls write access to the system's directories."""
    is_system = path in SYSTEM_DIRECTORIES or os.path.dirname(path) in SYSTEM_DIRECTORIES
    if is_system:
        return not is_below(path, roots) and not is_below(os.path.realpath(path), roots)
    return is_trusted(path, roots)


def _all_roots(avoid: Sequence[str]) -> tuple[str, ...]:
    named = [os.path.abspath(root) for root in avoid if root]
    return (*_untrusted, *named, *map(os.path.realpath, named))


def _is_guarded(status: os.stat_result) -> bool:
    if status.st_uid not in (0, os.geteuid()):
        return False
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return True
    # Many systems give every user a private group with the same id.
    is_own_group = status.st_gid in (0, os.geteuid())
    return not mode & stat.S_IWOTH and (is_own_group or not mode & stat.S_IWGRP)


def _entries(path: str | None) -> list[str]:
    """The absolute directories of a PATH, the owner's when none is given."""
    text = os.environ.get("PATH", "") if path is None else path
    return [os.path.normpath(place) for place in text.split(":") if os.path.isabs(place)]


def _is_program(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


def find_shell(owner: Mapping[str, str]) -> str:
    """The owner's shell, or else the first that is installed."""
    found = (find_program(name) for name in (owner.get("SHELL"), "bash", "sh") if name)
    return next(filter(None, found), "/bin/sh")
