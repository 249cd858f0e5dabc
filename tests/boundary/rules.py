"""What the host side may do, and what is a finding."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from atoll.keeper.networks import NAMES_PORT
from boundary.owner import Owner
from boundary.watch import MAX_OUTPUT_BYTES, Event, Watched

MAX_MEMORY_BYTES = 350 << 20
_BUILDS_LAYER = re.compile(
    r'"(read-tree", "(-m", "-u|--reset)", "|update-index", "-q", "--refresh"\]'
    r'|checkout-index", "-q", "-z", "--stdin"\])'
)
"""Git makes a commit's layer by delta in a view of its own, in which nothing of a capsule is."""
PROGRAMS = re.compile(
    r"git(-[a-z-]+)?|bwrap|atoll|python[0-9.]*|ldconfig|newuidmap|newgidmap|getconf|systemd-run|uname"
)
"""The names of programs that the host side may start. No shell, no program that walks trees."""
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/")
_WRITABLE = ("/dev/", "/proc/", "/sys/fs/cgroup/", "pipe:", "socket:", "anon_inode:", "/memfd:")
_RESERVED = re.compile(rf'htons\({NAMES_PORT}\).*(inet_addr\("127\.0\.0\.1"\)|AF_INET6, "::1")')
"""A holder connects its DNS sockets to themselves, so that they receive nothing from others."""
_CODES = {0, 1, 2, 3, 4, 5, 6, 130}
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_RAW = ("diff",)
"""Verbs whose output is the content itself when it goes to a file."""


class Problem(NamedTuple):
    kind: str
    verb: str
    detail: str


def check(owner: Owner, verb: str, done: Watched) -> list[Problem]:
    """All that one command did and should not have done."""
    found = [*_outcome(owner, verb, done)]
    judged = (_judge(owner, event) for event in done.events)
    found += [Problem(one[0], verb, one[1]) for one in judged if one is not None]
    if owner.marker.exists():
        found.append(Problem("executed", verb, "a command that was planted inside ran outside"))
        owner.marker.unlink()
    return shorten(found)


def shorten(found: list[Problem]) -> list[Problem]:
    """At most two of a kind for each verb."""
    kept: dict[tuple[str, str], list[Problem]] = {}
    for problem in dict.fromkeys(found):
        kept.setdefault((problem.kind, problem.verb), []).append(problem)
    return [problem for problems in kept.values() for problem in problems[:2]]


def _outcome(owner: Owner, verb: str, done: Watched):
    last = done.output[-300:].decode(errors="replace").strip()
    if done.code is None:
        yield Problem("timeout", verb, f"no end after {done.took_s:.0f} s")
    elif done.code not in _CODES and verb not in ("probe", "inside"):
        yield Problem("exit", verb, f"code {done.code}: {last}")
    bugs = (b"Traceback (most recent call last)", b"this is a bug in atoll")
    if verb != "inside" and any(text in done.output for text in bugs):
        yield Problem("traceback", verb, last)
    if done.peak_bytes > MAX_MEMORY_BYTES:
        yield Problem("memory", verb, f"{done.peak_bytes >> 20} MiB")
    if len(done.output) > MAX_OUTPUT_BYTES:
        yield Problem("output", verb, f"more than {MAX_OUTPUT_BYTES >> 20} MiB")
    if verb not in (*_RAW, "inside") and (control := _CONTROL.search(done.output)):
        near = done.output[max(0, control.start() - 40) : control.end() + 40]
        yield Problem("control characters", verb, repr(near))
    if b"/forged" in done.output and verb != "inside":
        yield Problem("forged record", verb, last)
    for secret, path in owner.canaries.items():
        if secret.encode() in done.output:
            where = "inside" if verb == "probe" else "in the output"
            yield Problem("canary", verb, f"{path.relative_to(owner.place)} was seen {where}")


def _judge(owner: Owner, event: Event) -> tuple[str, str] | None:
    if event.call.startswith("execve"):
        return _judge_program(owner, event)
    if event.call == "connect":
        return None if _may_connect(owner, event.path) else ("connect", event.path)
    if event.call.startswith("open") and event.path in map(str, owner.canaries.values()):
        return "read outside", event.text
    if event.is_write and not _may_write(owner, event):
        return "write outside", event.text
    if os.path.basename(event.program).startswith("git") and _is_agents(owner, event.path):
        return "git in a capsule", event.text
    return None


def _judge_program(owner: Owner, event: Event) -> tuple[str, str] | None:
    if "/forged" in event.text:
        return "forged record", event.text
    name, real = os.path.basename(event.path), os.path.realpath(event.path)
    own = os.path.dirname(owner.program[0])
    trusted = (*_SYSTEM, f"{own}/", f"{os.path.dirname(os.path.realpath(owner.program[0]))}/")
    is_below = _is_below(event.path, owner.place) and not event.path.startswith(f"{own}/")
    if event.failed:
        return ("program lookup", event.text) if is_below else None
    if not event.path.startswith("/") or is_below or not real.startswith(trusted):
        return "program", f"not one of the machine's: {event.text}"
    if not PROGRAMS.fullmatch(name):
        return "program", f"not an expected one: {event.text}"
    is_ours = name == "bwrap" or name.startswith("python") or _BUILDS_LAYER.search(event.text)
    if event.in_view and not is_ours:
        return "program", f"started in a capsule's view without walls: {event.text}"
    return None


def _may_connect(owner: Owner, path: str) -> bool:
    is_ours = path.startswith((f"{owner.atoll_home}/", "/proc/self/fd/"))
    is_ours |= bool(_RESERVED.search(path))
    return is_ours or "AF_NETLINK" in path or path == "/var/run/nscd/socket"


def _is_agents(owner: Owner, path: str) -> bool:
    """Whether a path of the host lies in a tree that an agent writes."""
    return _is_below(path, owner.atoll_home) and "/layers/u" in path


def _may_write(owner: Owner, event: Event) -> bool:
    path = event.path
    # In another mount namespace a path means other files: `/mnt`, `/tmp` and the checkout too.
    if event.in_view:
        return True
    # The checkout is compared as a whole.
    own = (owner.atoll_home, owner.project, owner.place / "traces")
    return any(_is_below(path, place) for place in own) or path.startswith(_WRITABLE)


def _is_below(path: str, place: object) -> bool:
    return path == str(place) or path.startswith(f"{place}/")
