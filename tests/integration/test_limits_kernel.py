"""Limits as the kernel holds them, in groups of this test's own; nothing of them stays.

Law: only processes that a test has started are put into groups, each of them ends by itself after
a while, and every group's name holds the test's own token.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import atoll
from atoll.host import cgroups, kernel
from atoll.host.cgroups import CgroupParents, find_cgroup_parents, make_group, sweep
from atoll.keeper import process_tree
from atoll.keeper.groups import Group
from atoll.keeper.rlimits import rlimits
from atoll.model.enclosure import Limits
from cgroup_counters import counters
from present import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEGABYTE = 1 << 20
LIFETIME_S = 100
V1_USES = ("memory", "pids", "cpu", "freezer")

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

EATS = "import sys; b = bytearray(b'x') * (int(sys.argv[1]) << 20); print('full')"
FORKS = """
import os, sys, time
born = 0
try:
    while born < int(sys.argv[1]):
        if os.fork() == 0:
            time.sleep(100)
        born += 1
except BlockingIOError:
    print(born, "then refused", flush=True)
else:
    print(born, flush=True)
time.sleep(100)
"""
SPINS = """
import time
began = time.monotonic()
while time.monotonic() - began < 1.5:
    pass
print(time.process_time(), time.monotonic() - began)
"""
COUNTS = """
import os, sys, time
place = os.open(sys.argv[1], os.O_WRONLY)
count = 0
while True:
    count += 1
    os.pwrite(place, b"%020d" % count, 0)
    time.sleep(0.001)
"""
DAEMONS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
        time.sleep(100)
time.sleep(100)
"""
IS_BORN = """
import os, sys
sys.path.append(sys.argv[1])
from atoll.keeper.groups import Group
group = Group(dict(zip(sys.argv[2::2], sys.argv[3::2])))
def places():
    return [use for use, place in zip(sys.argv[2::2], sys.argv[3::2])
            if os.getpid() in Group({use: place}).pids()]
pid = group.fork()
if pid == 0:
    born = places()
    group.enter()
    print(*born, "then", *places(), flush=True)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), places(), flush=True)
"""
HOPS = """
import os, time
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """Stands in for `atoll`, too: other people's capsules may live on this machine."""
    word = f"t{uuid.uuid4().hex[:12]}"
    monkeypatch.setattr(cgroups, "_PARENT", word)
    return word


@pytest.fixture(autouse=True)
def nothing_left(token: str) -> Iterator[None]:
    """Fails a test that leaves a group or a parent; removes it all the same."""
    yield
    left = ours(token)
    for directory in left:
        Group({"unified": directory, "freezer": directory}).kill()
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    if left:
        pytest.fail(f"groups left behind (now removed): {left}")


def ours(token: str) -> list[str]:
    """All directories with the token, the deepest first."""
    mounts = {found.mount for found in cgroups.load_hierarchies()}
    trees = (path for mount in mounts for path, _, _ in os.walk(mount))
    return sorted((path for path in trees if token in path), reverse=True)


def test_leftovers_are_noticed(token, need):
    parent = need("unified").parents["unified"]
    assert ours(token) == []
    os.makedirs(f"{parent}/inner")
    assert ours(token) == [f"{parent}/inner", parent]
    for path in ours(token):
        os.rmdir(path)


def absent(reason: str) -> None:
    """A skip on a laptop, a failure in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def need(token: str) -> Callable[..., CgroupParents]:
    """`need("memory")`: the places of this host, which must have these; `v1_only` hides others."""

    def require(*uses: str, v1_only: bool = False) -> CgroupParents:
        trees = cgroups.load_hierarchies()
        found = find_cgroup_parents([each for each in trees if not (v1_only and each.is_unified)])
        for use in uses:
            if use not in found.parents:
                absent(f"needs a group for `{use}`: {found.missing[use]}")
        return found

    return require


@pytest.fixture
def v1_mounts() -> dict[str, str]:
    """Root's hierarchies of version 1, by use."""
    if os.geteuid() != 0:
        absent("needs root, to hand a part of a hierarchy to somebody else")
    found = {
        use: each.mount
        for use in V1_USES
        for each in cgroups.load_hierarchies()
        if use in each.controllers
    }
    if len(found) < len(V1_USES):
        absent("needs cgroup v1 with memory, pids, cpu and freezer")
    return found


@pytest.fixture
def make(token: str, need: Callable[..., CgroupParents]) -> Iterator[Callable[..., Group]]:
    """`make(Limits(pids=5), "pids")`: a group on this host; ended and removed at the end."""
    made: list[tuple[CgroupParents, Group]] = []

    def build(
        limits: Limits,
        *uses: str,
        only: tuple[str, ...] = (),
        v1_only: bool = False,
        name: str | None = None,
    ) -> Group:
        places = need(*uses, v1_only=v1_only)
        if only:
            places = CgroupParents({use: places.parents[use] for use in only}, {})
        found = make_group(places, f"{token}-{name or len(made)}", limits)
        made.append((places, Group(found.directories)))
        assert found.unmet == {}
        return made[-1][1]

    yield build
    for places, group in made:
        assert group.kill()
        assert group.remove() == []
        assert sweep(places, f"{token}-", lambda _: False) == ([], {})


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(group, code, *args)`: a program in the group."""
    started: list[subprocess.Popen[str]] = []

    def begin(group: Group | None, code: str, *args: object) -> subprocess.Popen[str]:
        def prepare() -> None:
            signal.alarm(LIFETIME_S)
            if group is not None:
                group.enter()

        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code, *map(str, args)],
            preexec_fn=prepare,  # noqa: PLW1509 - what it does takes no lock
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait(30)
        present(process.stdout).close()


def test_a_child_is_born_in_a_group_of_version_2_and_enters_the_others(token, need, start):
    places = need("unified", "pids")
    made = make_group(places, f"{token}-0", Limits(pids=50))
    uses = [word for use in ("unified", "pids") for word in (use, made.directories[use])]
    process = start(None, IS_BORN, Path(atoll.__file__).parents[1], *uses)
    said = process.communicate(timeout=60)[0].splitlines()
    assert said[0].startswith("unified ")
    assert said[0].endswith("then unified pids")
    assert said[1] == "7 []"
    assert sweep(places, f"{token}-", lambda _: False).stuck == {}


def as_user(uid: int, function: Callable[[], None]) -> None:
    """Runs it in a child of that user; what fails there fails here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(LIFETIME_S)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            function()
            os.write(writer, b"ok")
        except BaseException:  # noqa: BLE001 - told to the parent, which fails
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    if said != "ok":
        pytest.fail(f"as user {uid}:\n{said or 'the child died'}")


def is_gone(pid: int) -> bool:
    process = process_tree.find_process(pid)
    return process is None or process.is_dead


def end(group: Group, process: subprocess.Popen[str]) -> None:
    """Kills all, and waits until the dead are reaped: as long as they are not, they count."""
    assert group.kill()
    process.wait(30)
    assert poll(lambda: counters(group).pids == 0)


def poll(is_so: Callable[[], bool], timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_so()


# What is enforced


def test_memory(make, start):
    group = make(Limits(memory_bytes=64 * MEGABYTE), "memory")
    fits = start(group, EATS, 20)
    assert fits.communicate(timeout=60)[0] == "full\n"
    assert group.oom_kills() == 0
    greedy = start(group, EATS, 200)
    assert greedy.communicate(timeout=60)[0] == ""
    assert greedy.returncode == -signal.SIGKILL
    assert group.oom_kills() >= 1
    assert 20 * MEGABYTE < counters(group).memory_peak_bytes <= 64 * MEGABYTE


def test_memory_without_a_limit_is_counted(make, start):
    group = make(Limits(), "memory")
    assert start(group, EATS, 200).communicate(timeout=60)[0] == "full\n"
    assert counters(group).memory_peak_bytes > 200 * MEGABYTE
    assert group.oom_kills() == 0


def test_pids(make, start):
    group = make(Limits(pids=8), "pids")
    modest = start(group, FORKS, 5)
    assert modest.stdout.readline() == "5\n"
    assert (counters(group).pids, counters(group).refused_forks) == (6, 0)
    end(group, modest)
    assert start(group, FORKS, 100).stdout.readline() == "7 then refused\n"
    assert counters(group).pids == 8
    assert len(group.pids()) == 8
    assert counters(group).refused_forks >= 1


def test_cpu(make, start):
    group = make(Limits(cpus=0.2), "cpu")
    used_s, took_s = map(float, start(group, SPINS).communicate(timeout=60)[0].split())
    assert used_s / took_s < 0.35
    # Not the noise of the machine has slowed it, but the limit.
    directory = group._by_use["cpu"]
    with open(f"{directory}/cpu.stat", encoding="ascii") as stream:
        assert dict(line.split() for line in stream)["nr_throttled"] != "0"
    counted_s = counters(group).cpu_s
    assert counted_s is None or 0.5 * used_s < counted_s < 2 * used_s + 0.5


def test_limits_are_changed_and_taken_away(make, start):
    for limit, said in ((4, "3 then refused\n"), (6, "5 then refused\n"), (None, "10\n")):
        group = make(Limits(pids=limit), "pids", name="same")
        forks = start(group, FORKS, 10)
        assert forks.stdout.readline() == said
        end(group, forks)
    for size in (80, 40, 120, None):
        group = make(Limits(memory_bytes=size and size * MEGABYTE), "memory", name="same")
    assert start(group, EATS, 150).communicate(timeout=60)[0] == "full\n"


def test_limit_that_the_kernel_refuses_is_unmet(need, token):
    places = need("pids")
    made = make_group(places, token, Limits(pids=1 << 40))
    assert "Invalid argument" in made.unmet["pids"]
    sweep(places, token, lambda _: False)


# Frozen and killed


FREEZERS = [
    pytest.param({"only": ("unified",)}, ("unified",), id="v2"),
    pytest.param({"only": ("freezer",), "v1_only": True}, ("freezer",), id="v1"),
]
KILLERS = [
    *FREEZERS,
    pytest.param({"only": ("pids",)}, ("pids",), id="signals"),
]


@pytest.mark.parametrize(("how", "uses"), FREEZERS)
def test_frozen_processes_stand_still_until_thawed(make, start, tmp_path, wait_for, how, uses):
    group = make(Limits(), *uses, **how)
    counter = tmp_path / "counter"
    counter.touch()
    start(group, COUNTS, counter)
    wait_for(lambda: counter.read_bytes() > b"%020d" % 5, what="the counter")
    assert group.freeze()
    frozen = counter.read_bytes()
    time.sleep(0.3)
    assert counter.read_bytes() == frozen
    assert group.thaw()
    wait_for(lambda: counter.read_bytes() > frozen, what="the counter after the thaw")


def test_without_a_freezer_it_says_so(make, start):
    group = make(Limits(), "pids", only=("pids",))
    start(group, COUNTS, "/dev/null")
    assert group.freeze() is False
    assert group.thaw() is False


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("how", "uses"), KILLERS)
def test_daemons_are_killed(make, start, wait_for, how, uses, frozen):
    group = make(Limits(), *uses, **how)
    start(group, DAEMONS)
    wait_for(lambda: len({os.getsid(pid) for pid in group.pids()}) == 7, what="the daemons")
    pids = group.pids()
    assert len(pids) == 7
    assert not any(is_gone(pid) for pid in pids)
    if frozen and uses != ("pids",):
        assert group.freeze()
    assert group.kill()
    assert group.pids() == []
    assert poll(lambda: all(is_gone(pid) for pid in pids))
    # A killed group can be used again, and is not frozen.
    assert start(group, EATS, 1).communicate(timeout=30)[0] == "full\n"


@pytest.mark.parametrize(("how", "uses"), FREEZERS)
def test_who_forks_away_all_the_time_is_killed(make, start, wait_for, how, uses):
    group = make(Limits(), *uses, **how)
    for _ in range(3):
        start(group, HOPS).wait(30)
    seen = {*group.pids()}
    wait_for(lambda: len(seen.union(group.pids())) > len(seen), what="a hop")
    assert group.kill()
    assert group.pids() == []


def test_version_2_kills_at_once(make, start, wait_for, monkeypatch):
    group = make(Limits(), "unified", only=("unified",))
    start(group, DAEMONS)
    wait_for(lambda: len(group.pids()) == 7, what="the daemons")
    with monkeypatch.context() as patch:
        patch.setattr(Group, "_signal", lambda *_: None)
        assert group.kill(timeout_s=5)


def test_who_got_only_half_way_in_is_killed(make, start):
    """As when `enter` failed at a later directory."""
    group = make(Limits(), "unified", "pids", only=("unified", "pids"))
    half = Group({"pids": group._by_use["pids"]})
    process = start(half, COUNTS, "/dev/null")
    assert group.pids() == [process.pid]
    assert group.kill()
    assert process.wait(30) == -signal.SIGKILL


def test_removal_tells_who_is_left(make, start):
    group = make(Limits(), "pids")
    process = start(group, COUNTS, "/dev/null")
    assert group.remove(timeout_s=0.1) == [process.pid]
    assert process.poll() is None
    assert group.kill()
    assert group.remove() == []
    assert group.remove() == []
    assert not any(os.path.exists(directory) for directory in group._directories)


def test_subgroups_are_ended_and_removed_too(make, start):
    group = make(Limits(), "pids", only=("pids",))
    inner = os.path.join(group._by_use["pids"], "inner")
    os.mkdir(inner)
    process = start(Group({"pids": inner}), COUNTS, "/dev/null")
    assert group.pids() == [process.pid]
    assert group.kill()
    assert group.remove() == []
    assert process.wait(30) == -signal.SIGKILL


# Sweeping


def test_sweep_ends_what_is_dead_and_spares_what_lives(need, token, start):
    places = need("pids")
    names = [f"{token}-dead", f"{token}-alive", f"other-{token}"]
    groups = {name: Group(make_group(places, name, Limits()).directories) for name in names}
    running = {name: start(group, COUNTS, "/dev/null") for name, group in groups.items()}
    swept = sweep(places, f"{token}-", lambda name: name.endswith("-alive"))
    assert swept == ([f"{token}-dead"], {})
    assert running[names[0]].wait(30) == -signal.SIGKILL
    assert running[names[1]].poll() is None
    assert running[names[2]].poll() is None
    assert groups[names[1]].pids() == [running[names[1]].pid]
    for prefix in (token, f"other-{token}"):
        assert sweep(places, prefix, lambda _: False).stuck == {}
    assert running[names[2]].wait(30) == -signal.SIGKILL


def test_sweep_takes_what_a_killed_probe_left_and_no_other(need, token):
    places = need("pids")
    parent = places.parents["pids"]
    process = subprocess.Popen(["true"])
    process.wait()
    with contextlib.suppress(FileExistsError):
        os.mkdir(parent)
    dead, living = f"probe-{process.pid}-ab", f"probe-{os.getpid()}-ab"
    for name in (dead, living):
        os.mkdir(os.path.join(parent, name))
    assert dead in sweep(places, token, lambda _: False).removed
    assert not os.path.exists(os.path.join(parent, dead))
    os.rmdir(os.path.join(parent, living))
    sweep(places, token, lambda _: False)


def test_groups_are_made_while_others_remove_the_parent(need, token):
    places = need("pids")
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIFETIME_S)
        with contextlib.suppress(BaseException):
            while True:
                sweep(places, f"{token}-never", lambda _: False)
        os._exit(0)
    try:
        for _ in range(300):
            made = make_group(places, token, Limits(pids=5))
            assert made.unmet == {}
            assert Group(made.directories).remove() == []
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        sweep(places, token, lambda _: False)


# Who may make groups


def test_probe_leaves_nothing(token):
    assert find_cgroup_parents().parents or os.geteuid() != 0
    assert ours(token) == []


def test_ordinary_user_gets_nothing_and_a_reason():
    if os.geteuid() != 0:
        absent("needs root, to be a user without a session")

    def look():
        found = find_cgroup_parents()
        assert found.parents == {}
        for use in ("unified", *V1_USES):
            assert "denied" in found.missing[use] or "mounted" in found.missing[use]
        made = make_group(found, "a-b", Limits(1 << 30, 1.0, 10))
        assert (made.directories, sorted(made.unmet)) == ({}, ["cpus", "memory", "pids"])

    as_user(65_534, look)


def handed_over(directory: str, uid: int) -> None:
    os.mkdir(directory)
    os.chown(directory, uid, uid)
    for name in ("cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control"):
        with contextlib.suppress(FileNotFoundError):
            os.chown(os.path.join(directory, name), uid, uid)


def fork_in(group: Group, most: int) -> tuple[int, str]:
    """A child in the group that forks until refused; no program, which a user could not read."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIFETIME_S)
        try:
            group.enter()
            for born in range(most):
                if os.fork() == 0:
                    signal.alarm(LIFETIME_S)
                    signal.pause()
                os.write(writer, b"%d " % (born + 1))
        except OSError as error:
            os.write(writer, str(error.strerror).encode())
        finally:
            os.write(writer, b"\n")
            signal.pause()
    os.close(writer)
    with os.fdopen(reader) as stream:
        return pid, stream.readline().strip()


def live_as(uid: int, inside: Group, life: Callable[[], None]) -> None:
    """`life` of a user whose processes are in that group, as after a login."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            inside.enter()
            as_user(uid, life)
            code = 0
        except BaseException:  # noqa: BLE001 - told by the exit code and on stderr
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("is_inside", [True, False])
def test_delegated_part_of_version_1(v1_mounts, token, is_inside):
    """Either the user's processes are in it already, or it is there in the user's name."""
    uid = 2_000_000 + os.getpid()
    name = f"of-{token}" if is_inside else f"{token}-{uid}"
    given = {use: os.path.join(mount, name) for use, mount in v1_mounts.items()}
    expected = {use: f"{path}/{token}" if is_inside else path for use, path in given.items()}
    for directory in set(given.values()):
        handed_over(directory, uid)

    def life():
        found = find_cgroup_parents()
        assert found.parents == expected
        assert "denied" in found.missing["unified"]
        made = make_group(found, f"{token}-0", Limits(64 * MEGABYTE, 1.0, 4))
        assert made.unmet == {}
        group = Group(made.directories)
        pid, said = fork_in(group, 20)
        assert said == "1 2 3 Resource temporarily unavailable"
        assert counters(group).refused_forks >= 1
        assert len(group.pids()) == 4
        assert counters(group).memory_bytes > 0
        assert group.freeze()
        assert sweep(found, token, lambda _: False) == ([f"{token}-0"], {})
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL

    try:
        live_as(uid, Group(given if is_inside else {}), life)
    finally:
        assert Group(given).remove() == []


def test_delegated_part_of_version_2_without_controllers(need, token):
    if os.geteuid() != 0:
        absent("needs root, to hand a part of a hierarchy to somebody else")
    uid = 2_000_000 + os.getpid()
    given = os.path.join(os.path.dirname(need("unified").parents["unified"]), f"of-{token}")
    handed_over(given, uid)

    def life():
        found = find_cgroup_parents()
        assert found.parents["unified"] == f"{given}/{token}"
        group = Group(make_group(found, f"{token}-0", Limits()).directories)
        pid, said = fork_in(group, 2)
        assert said == "1 2"
        assert len(group.pids()) == 3
        assert group.freeze()
        assert sweep(found, token, lambda _: False) == ([f"{token}-0"], {})
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL

    try:
        live_as(uid, Group({"unified": given}), life)
    finally:
        assert Group({"unified": given}).remove() == []


def test_entering_is_refused_without_rights(make):
    if os.geteuid() != 0:
        absent("needs root, to have something to refuse")
    group = make(Limits(), "pids")

    def enter():
        with pytest.raises(PermissionError):
            group.enter()

    as_user(65_534, enter)


def test_number_of_processes_in_a_user_namespace():
    """Where there is no controller: counted by the kernel for the namespace alone."""
    if os.geteuid() != 0:
        absent("needs root, to become a user that runs nothing else")
    if reason := kernel.can_unshare(kernel.CLONE_NEWUSER):
        absent(f"needs user namespaces: {reason}")

    def fork_on():
        kernel.unshare(kernel.CLONE_NEWUSER)
        for kind, value in rlimits(Limits(pids=5), memory_is_held=True, in_user_namespace=True):
            resource.setrlimit(kind, (value, value))
        pid, said = fork_in(Group({}), 20)
        born, _, reason = said.partition(" Resource")
        assert reason == " temporarily unavailable"
        assert 2 <= len(born.split()) <= 4
        for process in process_tree.processes_under(pid):
            os.kill(process.pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)

    as_user(2_000_000 + os.getpid(), fork_on)


def test_places_are_distinguished_by_trying(need, monkeypatch):
    """Control: a directory that takes the limit but not the child is no place."""
    parent = need("pids").parents["pids"]
    monkeypatch.setattr(Group, "enter", lambda _: os.open("/nowhere", os.O_WRONLY))
    found = cgroups.try_directory(os.path.dirname(parent), ("pids",))
    assert found.works == frozenset()
    assert "/nowhere" in found.reasons["pids"]
