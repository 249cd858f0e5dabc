"""Sandboxed processes: bwrap around every command, in a root that the holder built.

Of the host only the paths of `visible_paths.py` are visible, read-only. Every process has lost all
privileges before it starts: no capability, no new privileges, no nested user namespace, a seccomp
filter, and, where root creates the capsule, its own kernel uid.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

from atoll.drivers.contracts import IsolationRequest, ProbeResult
from atoll.drivers.isolation import proxy_variables, seccomp, toolchains, visible_paths
from atoll.drivers.isolation.hidden_paths import NeverShown
from atoll.drivers.isolation.namespace import NamespaceProcess
from atoll.drivers.isolation.package_stores import FoundStore, find_stores, variables_of
from atoll.drivers.isolation.process import home_variables
from atoll.drivers.isolation.toolchains import VisibleToolchain
from atoll.drivers.isolation.visible_paths import Person
from atoll.drivers.isolation.wall_test import find_cure, try_walls
from atoll.drivers.layers import probes
from atoll.drivers.layers.store_overlays import place_of
from atoll.host.programs import find_program, is_below
from atoll.keeper import private_files
from atoll.model.enclosure import (
    Bwrap,
    Copy,
    Devpts,
    Directory,
    Enclosure,
    Link,
    PrivateTmpfs,
    RootEntry,
    SandboxRoot,
    SharedStore,
    Shown,
    Tmpfs,
    View,
)
from atoll.model.errors import IsolationError
from atoll.model.plan import IsolationPlan
from atoll.model.presets import widest
from atoll.model.state import Problem

_FIRST_UID = 2_000_000_000
_UIDS = 100_000_000
_ROOTS = ("/mnt", "/srv", "/media", "/opt", "/run", "/tmp")  # noqa: S108 - only in its own view
_COVERED = ("/dev", "/proc")
_INSIDE_UID = 1000
_PROGRAM = "bwrap"
_INSTALL = "apt-get install bubblewrap"
_SMALL = "mode=755,size=64m"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - inside
_SHARED_MEMORY_BYTES = 256 << 20
_TERMINALS = "/dev/pts"
_MOST_PTYS = 256
"""Of the kernel's 4096 for all; without its own limit, one capsule could use 3072.

Bound with `-try`, since a root that an earlier version built and that is still in use has none.
"""
_SETTINGS = "/proc/sys"
_FIRST_PROCESS = "/proc/1"
_PRIVATE_PROC = (
    "keys", "key-users", "kallsyms", "kcore", "config.gz", "timer_list", "sched_debug", "kmsg",
    "latency_stats", "vmallocinfo", "slabinfo", "pagetypeinfo", "sysrq-trigger",
)  # fmt: skip
"""Kernel internals and keys of other users; ordinary programs do not read them."""


class SandboxProcess(NamespaceProcess):
    name = "sandbox"

    def check(self, home: Path) -> list[Problem]:
        program = find_program(_PROGRAM)
        if program is None:
            return [Problem(what="bwrap is not installed", cure=_INSTALL)]
        status = os.stat(program)
        known_as = f"walls of {program} {status.st_ino} {status.st_mtime_ns}"
        way, reason = probes.remembered(home, known_as, self.probe, is_curable=True)
        if way is not None:
            return []
        return [Problem(what=f"cannot create a sandbox: {reason}", cure=find_cure())]

    def plan(self, request: IsolationRequest) -> IsolationPlan:
        _require_place(request)
        plan = super().plan(request)
        number = zlib.crc32(request.directory.encode(errors="surrogateescape")) % _UIDS
        return plan._replace(
            home=request.home,
            uid=_FIRST_UID + number if request.is_root else None,
            network=request.network,
            setup_network=request.setup_network,
            allow=request.allow,
            limits=request.limits,
        )

    def probe(self, place: Path) -> ProbeResult:
        return ProbeResult(*try_walls(self, place))

    def visible(self, plan: IsolationPlan, owner: Mapping[str, str]) -> list[str] | None:
        entries = [*self._machine(plan, _root(plan), owner), *self._own(plan, owner)]
        places = [e.at for e in entries if isinstance(e, Copy) or _is_read_only(e)]
        own = os.path.dirname(str(plan.private))
        return visible_paths.topmost(place for place in places if not is_below(place, [own]))

    def extend_view(self, plan: IsolationPlan, view: View, owner: Mapping[str, str]) -> View:
        root = _root(plan)
        entries = [*self._machine(plan, root, owner), *self._own(plan, owner)]
        return view._replace(
            uid=plan.uid,
            network=widest(plan.network, plan.setup_network),
            root=SandboxRoot(root, tuple(entries)),
            stores=tuple(
                SharedStore(found.store.name, found.source, tuple(found.store.hidden))
                for found in _stores(plan, owner)
            ),
        )

    def _machine(self, plan: IsolationPlan, root: str, owner: Mapping[str, str]) -> list[RootEntry]:
        host = os.path.basename(plan.holder)
        return [
            Directory("/proc"),
            Directory("/dev"),
            Devpts(_TERMINALS, f"newinstance,ptmxmode=0666,mode=0620,max={_MOST_PTYS}"),
            Tmpfs("/run", _SMALL),
            PrivateTmpfs(private_files.PLACE, private_files.OPTIONS),
            Link("/var/run", "/run"),
            Link("/var/tmp", "/tmp"),  # noqa: S108 - inside
            *visible_paths.system(root, _private_places(plan, owner)),
            *visible_paths.settings(_person(plan, owner), host, proxy_variables.settings(plan)),
        ]

    def _own(self, plan: IsolationPlan, owner: Mapping[str, str]) -> list[RootEntry]:
        """The capsule's own files and what is shown among them; parents come first."""
        # Atoll's home may be named by a link; nothing in it may be one.
        private = os.path.realpath(str(plan.private))
        shown = [
            Shown("/tmp", f"{private}/tmp"),  # noqa: S108 - inside
            Shown(plan.home, f"{private}/home"),
            Shown(plan.workspace, plan.workspace, is_fixed=True),
        ]
        needed = [*_objects(plan), *([plan.tools] if plan.tools else [])]
        shown += [_read_only(place, plan) for place in needed]
        taken = {entry.at for entry in shown}
        found = toolchains.find(owner, _own_places(plan))
        shown += [
            _optional(place, plan)
            for place in visible_paths.programs(found.shown)
            if place.at not in taken
        ]
        shown += [
            Shown(store.at, place_of(private, store.store.name), is_store=True)
            for store in _stores(plan, owner)
        ]
        return sorted(shown, key=lambda entry: entry.at.split("/"))

    def enclosure(self, plan: IsolationPlan, owner: Mapping[str, str]) -> Enclosure:
        inside = super().enclosure(plan, owner)
        program = find_program(_PROGRAM, avoid=(plan.workspace,))
        if program is None:
            raise IsolationError("bwrap is not installed", hint=_INSTALL)
        person = _person(plan, owner)
        env = {
            **inside.env,
            **home_variables(plan.home, "/tmp"),  # noqa: S108 - inside
            "USER": person.name,
            "LOGNAME": person.name,
            **proxy_variables.variables(plan, inside.env),
            **variables_of(_stores(plan, owner)),
            **plan.variables,
        }
        walls = Bwrap(
            program=program,
            root=_root(plan),
            options=tuple(self._options(plan, person)),
            filter=seccomp.build(os.uname().machine),
            uid=plan.uid,
            workspace=plan.workspace,
        )
        network = widest(plan.network, plan.setup_network)
        return inside._replace(env=env, walls=walls, limits=plan.limits, network=network)

    def _options(self, plan: IsolationPlan, person: Person) -> list[str]:
        return [
            "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
            "--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--cap-drop", "ALL",
            "--uid", str(person.uid), "--gid", str(person.gid),
            "--hostname", os.path.basename(plan.holder),
            "--bind", _root(plan), "/",
            "--proc", "/proc", *_covers(),
            "--dev", "/dev", "--dev-bind-try", _root(plan) + _TERMINALS, _TERMINALS,
            "--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", _SHARED_MEMORY,
            "--remount-ro", "/dev",
        ]  # fmt: skip


def _is_open(place: str) -> bool:
    """Whether others than root may read or write it: no process inside is root to the kernel."""
    try:
        return bool(os.stat(place).st_mode & (stat.S_IROTH | stat.S_IWOTH))
    except OSError:
        return False


def _covers() -> list[str]:
    """Over parts of `/proc` that are the kernel's own: not to be changed, or not to be read.

    The creator of a namespace may change its settings, capabilities or not. Nor is the first
    process to be reached: bwrap, of the same user as the command, whose memory that could write.
    """
    private = [f"/proc/{name}" for name in _PRIVATE_PROC]
    hidden = [word for p in private if _is_open(p) for word in ("--ro-bind", os.devnull, p)]
    first = ["--perms", "0555", "--size", "4096", "--tmpfs", _FIRST_PROCESS]
    first += ["--remount-ro", _FIRST_PROCESS]
    return ["--ro-bind", _SETTINGS, _SETTINGS, *hidden, *first]


def _objects(plan: IsolationPlan) -> list[str]:
    """Where the capsule's history store is seen, and the Git LFS objects that belong to it."""
    place = Path(str(plan.private)).parent
    # Made with the first view: only there does it hold anything.
    return [str(place / "objects"), *([str(place / "lfs")] if (place / "lfs").is_dir() else [])]


def _require_place(request: IsolationRequest) -> None:
    for place in (request.workspace, str(request.private)):
        covered = next((c for c in _COVERED if is_below(place, [c])), None)
        if covered is not None:
            raise IsolationError(
                f"`{place}` is not visible in the sandbox, which replaces `{covered}`",
                hint="move it elsewhere, or use level `clone`",
            )


def _is_read_only(entry: RootEntry) -> bool:
    return isinstance(entry, Shown) and entry.is_read_only


def _read_only(place: str, plan: IsolationPlan) -> Shown:
    source, is_shifted = os.path.realpath(place), plan.uid is not None
    return Shown(place, source, is_read_only=True, is_shifted=is_shifted)


def _optional(place: VisibleToolchain, plan: IsolationPlan) -> Shown:
    return _read_only(place.at, plan)._replace(source=place.source, is_optional=True)


def _own_places(plan: IsolationPlan) -> list[str]:
    """Where a capsule's own files are: no toolchain of the owner is there."""
    return [place for place in (plan.workspace, plan.holder, str(plan.private)) if place]


def _stores(plan: IsolationPlan, owner: Mapping[str, str]) -> list[FoundStore]:
    return find_stores(owner, home=plan.home, workspace=plan.workspace, roots=_own_places(plan))


def _private_places(plan: IsolationPlan, owner: Mapping[str, str]) -> list[str]:
    """What may be in a system directory without being part of the system."""
    never = NeverShown(owner, _own_places(plan))
    return [*never.roots, *never.homes, *never.places]


def _person(plan: IsolationPlan, owner: Mapping[str, str]) -> Person:
    if plan.uid is not None:
        return Person("agent", _INSIDE_UID, _INSIDE_UID, plan.home)
    name = owner.get("USER") or "agent"
    return Person(name, os.geteuid(), os.getegid(), plan.home)


def _root(plan: IsolationPlan) -> str:
    """A directory that every user can reach, to be covered in the holder's view alone."""
    needed = [plan.holder, plan.workspace, str(plan.private), plan.tools or "/usr", plan.home]
    for place in _ROOTS:
        if os.path.isdir(place) and not any(is_below(p, [place]) for p in needed):
            return place
    raise IsolationError(
        "there is no directory to build a capsule's root in",
        hint="mkdir /mnt; or move Atoll's home",
    )
