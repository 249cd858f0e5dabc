"""What there is of capsules with layers: their whole content, and what belongs to none of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from atoll.drivers.layers.pool import Pool
from atoll.drivers.layers.repository import PIN_PREFIX
from atoll.engine.capsules import Capsule
from atoll.engine.history import upkeep
from atoll.engine.state.leases import find_damage
from atoll.engine.state.session import Session, open_session
from atoll.host import git, locks, procfs, view_client
from atoll.host.process import wait_until
from atoll.model.layers import LayerKind
from atoll.model.state import ProjectRecord
from atoll.testing.faults import HOME_ENTRIES, damage_of_repository

Portrait = dict[str, Any]

_POOL_ENTRIES = {"carried.json", "commits", "history", "inside", "latest", "layers", "pins"}
_PROGRAMS = (
    b"atoll.keeper.forkserver",
    b"atoll.engine.history.upkeep",
    b"atoll.engine.capsule.exports",
)
_ENDED_S = 20.0
_SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")

_PAINTER = r"""
import hashlib, json, os, stat, subprocess, sys

with open("/proc/self/mountinfo", "rb") as lines:
    mounts = {os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1"))
              for line in lines}

def entries(root, skip):
    found = {}
    for place, names, files in os.walk(root):
        # Toolchains of the host are mounted in a private home.
        names[:] = [name for name in names if os.path.join(place, name) not in mounts]
        for name in [*names, *files]:
            path = os.path.join(place, name)
            inner = os.path.relpath(path, root)
            if inner.startswith(skip):
                continue
            status = os.lstat(path)
            said = stamp = None
            if stat.S_ISLNK(status.st_mode):
                said = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as stream:
                    said = hashlib.sha256(stream.read()).hexdigest()
                stamp = status.st_mtime_ns
            found[inner] = [stat.filemode(status.st_mode), status.st_uid, said, stamp]
    return found

def git(*args):
    done = subprocess.run(["git", *args], capture_output=True, text=True)
    return [done.returncode, done.stdout]

os.environ["GIT_OPTIONAL_LOCKS"] = "0"
# Loose objects that nothing names are no state; the index is shown as git reads it.
print(json.dumps({
    "workspace": entries(".", (".git/objects", ".git/index")),
    "home": entries(os.environ["HOME"], ()),
    "tmp": entries(os.environ["TMPDIR"], (".atoll-index-",)),
    "head": git("symbolic-ref", "HEAD"),
    "refs": git("for-each-ref"),
    "index": git("ls-files", "--stage", "-v"),
    "status": git("status", "--porcelain=v2", "--untracked-files=all", "--ignored"),
    "stash": git("stash", "list"),
    "sound": git("fsck", "--full", "--no-dangling", "--no-progress"),
}, sort_keys=True))
"""


def portrait(capsule: Capsule) -> Portrait:
    """All that a capsule holds, as a run in it sees it: workspace, git, HOME and TMPDIR."""
    # Behind walls only the system's own interpreter is certain to be seen.
    python = next((path for path in _SYSTEM_PYTHONS if Path(path).exists()), sys.executable)
    done = capsule.run([python, "-I", "-S", "-c", _PAINTER])
    if done.exit_code != 0:
        raise AssertionError(done.stderr.decode(errors="replace"))
    found: Portrait = json.loads(done.stdout)
    return found


def timeless(painted: Portrait) -> Portrait:
    """A portrait without the times at which files were written."""
    return {
        part: {n: entry[:-1] for n, entry in found.items()} if isinstance(found, dict) else found
        for part, found in painted.items()
    }


def differences(one: Portrait, other: Portrait) -> list[str]:
    """Where two portraits differ, in words; empty when they do not."""
    found = []
    for part in sorted(one.keys() | other.keys()):
        left, right = one.get(part), other.get(part)
        if left == right:
            continue
        if isinstance(left, dict) and isinstance(right, dict):
            names = [n for n in sorted(left.keys() | right.keys()) if left.get(n) != right.get(n)]
            found += [f"{part}: {n}: {left.get(n)} != {right.get(n)}" for n in names]
        else:
            found.append(f"{part}: {left} != {right}")
    return found


def checkout_digest(root: Path) -> str:
    """The owner's checkout bit by bit, with the times; and what git's own files say."""
    digest = hashlib.sha256()
    for path in sorted(_owners_files(root)):
        status = path.lstat()
        said = b""
        if stat.S_ISLNK(status.st_mode):
            said = os.fsencode(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            said = path.read_bytes()
        own = f"{path.relative_to(root)} {status.st_mode} {status.st_uid} {len(said)}"
        when = 0 if root / ".git" in path.parents else status.st_mtime_ns
        digest.update(f"{own} {when}\0".encode() + said)
    return digest.hexdigest()


def _owners_files(root: Path) -> Iterator[Path]:
    # Refs are looked at by their names.
    skipped = {
        root / ".git",
        *(root / ".git" / n for n in ("objects", "refs", "logs", "packed-refs")),
    }
    for place, directories, names in os.walk(root):
        here = Path(place)
        yield from (here / n for n in (*directories, *names) if here / n not in skipped)
        directories[:] = [n for n in directories if here / n not in skipped or n == ".git"]


class Keeper(NamedTuple):
    pid: int
    name: str


def keepers_of(home: Path) -> list[Keeper]:
    """Every process that serves this home: fork servers, holders, guards, upkeep and exports."""
    label = os.fsencode(home)
    found = []
    for entry in _processes():
        try:
            words = [word.rstrip(b"/") for word in (entry / "cmdline").read_bytes().split(b"\0")]
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if label in words and any(program in word for word in words for program in _PROGRAMS):
            found.append(Keeper(pid=int(entry.name), name=name))
    return sorted(found)


def runs_of(home: Path) -> list[int]:
    """Every process that a run of this home has started.

    Behind walls its environment has no path of the host, but its keeper is among its ancestors.
    """
    place = os.fsencode(home) + b"/"
    served = procfs.family([keeper.pid for keeper in keepers_of(home)], procfs.processes())
    descendants = {process.pid for process in served}
    found = []
    for entry in _processes():
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes()
            is_of_home = place in environment or int(entry.name) in descendants
            if b"ATOLL_RUN=" in environment and is_of_home:
                found.append(int(entry.name))
    return sorted(found)


def _processes() -> Iterator[Path]:
    own = str(os.getpid())
    return (e for e in Path("/proc").iterdir() if e.name.isdigit() and e.name != own)


def views_of(home: Path) -> list[int]:
    """Every process that sees something mounted in this home."""
    place = os.fsencode(home) + b"/"
    found = []
    for entry in _processes():
        with contextlib.suppress(OSError):
            if place in (entry / "mountinfo").read_bytes():
                found.append(int(entry.name))
    return found


def find_remains(home: Path, checkout: Path, *, refs: Collection[str]) -> list[str]:
    """What `atoll gc` should not have left, beside ready capsules; in words.

    `refs` are those that the owner's repository should have, Atoll's pins aside.
    """
    session = open_session(home=home)
    # Background work may just have started.
    wait_until(lambda: not _background(home), timeout_s=_ENDED_S)
    problems = [
        f"in home: {path.name}"
        for path in home.iterdir()
        if path.name not in {*HOME_ENTRIES, "trash"}
    ]
    problems += [f"in trash: {path.name}" for path in home.glob("trash/*")]
    problems += [f"in the database: {line}" for line in find_damage(session.store)]
    problems += [f"`{c.name}` is {c.state}" for c in session.store.unsettled()]
    living = {Path(capsule.directory) for capsule in session.store.capsules()}
    problems += [f"directory {path}" for path in {*home.glob("projects/*/*")} ^ living]
    problems += [f"lock {p.name}" for p in home.glob("locks/*") if not locks.is_locked(p)]
    problems += _stray_processes(session)
    for project in session.store.projects():
        if project.root == str(checkout):
            problems += _stray_layers(session, project)
            problems += _stray_refs(session, project, set(refs))
            problems += damage_of_repository(project.root, Path(project.git_dir))
    session.forkserver.close()
    return problems


def _background(home: Path) -> list[Keeper]:
    return [keeper for keeper in keepers_of(home) if not keeper.name.startswith("atoll-")]


def _stray_processes(session: Session) -> list[str]:
    def strays() -> list[str]:
        answers = [view_client.ask(c.directory, {"ping": True}) for c in session.store.capsules()]
        replies = [answer[0] for answer in answers if answer is not None]
        expected = {reply[key] for reply in replies for key in ("pid", "waiting")}
        found = [k for k in keepers_of(session.home) if k.pid not in expected]
        if replies:
            # One monitor serves all keepers of a home, and ends after the last of them.
            found = [k for k in found if k.name != "atoll-idle"]
        seen = set(views_of(session.home)) - expected
        return [*(f"process {k.pid} ({k.name})" for k in found), *(f"view of {p}" for p in seen)]

    # Processes that were signalled may need a moment to exit.
    wait_until(lambda: not strays(), timeout_s=_ENDED_S)
    return strays()


def _stray_layers(session: Session, project: ProjectRecord) -> list[str]:
    pool = Pool(session.pool(project.id))
    if not pool.layers.is_dir():
        return []
    problems = [f"in pool: {p.name}" for p in pool.root.iterdir() if p.name not in _POOL_ENTRIES]
    problems += [f"in pool: {p.name}" for p in pool.layers.iterdir() if p.name.startswith(".")]
    problems += [f"in pool: {p.name}" for p in pool.root.glob("commits/.*")]
    found = set(pool.all())
    needed = {x for c in session.store.capsules() for x in upkeep.layers_of(session, c)}
    used = upkeep.used_layers(session, project)
    problems += [f"layer {name} is not used" for name in sorted(found - used)]
    problems += [f"layer {name} is missing" for name in sorted(needed - found)]
    for name in sorted(found):
        layer = pool.find(name)
        if layer is not None:
            problems += [f"layer {name} is damaged: {path}" for path in pool.damage(layer)]
        elif not LayerKind.UPPER.matches(name):
            problems.append(f"layer {name} is half-made")
    return problems


def _stray_refs(session: Session, project: ProjectRecord, refs: set[str]) -> list[str]:
    cwd = project.git_dir
    found = {ref for ref, _ in git.refs_below("refs/", cwd=cwd)}
    pool = Pool(session.pool(project.id))
    layers = pool.all() if pool.layers.is_dir() else []
    pins = {PIN_PREFIX + name for name in layers if LayerKind.GIT.matches(name)}
    problems = [f"ref {ref}" for ref in sorted(found ^ (refs | pins))]
    objects = Path(cwd, "objects")
    return [*problems, *(f"quarantine {path.name}" for path in objects.glob("tmp_*"))]
