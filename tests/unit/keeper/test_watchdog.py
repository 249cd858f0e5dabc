from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

import pytest

from atoll.keeper import descriptors, process_tree
from atoll.keeper.descriptors import DescriptorCount
from atoll.keeper.disk_budget import DiskBudget, _Walk, find_free
from atoll.keeper.rlimits import files_limit, rlimits
from atoll.keeper.watchdog import (
    Watchdog,
    _end_of_rest,
    _resident_bytes,
)
from atoll.model.enclosure import Limits
from present import present

MEGABYTE = 1 << 20
HOLDS = "import sys; print('ready', flush=True); sys.stdin.read()"
PRIVATE = f"b = bytearray(b'x') * {60 * MEGABYTE}; {HOLDS}"
SHARED = f"""
import mmap, os
m = mmap.mmap(-1, {60 * MEGABYTE})
m.write(b'x' * {60 * MEGABYTE})
pids = []
for _ in range(3):
    reader, writer = os.pipe()
    pids.append(os.fork())
    if not pids[-1]:
        sum(m[i] for i in range(0, len(m), 4096))
        os.write(writer, b'x')
        import signal
        signal.alarm(60)
        signal.pause()
    os.read(reader, 1)
print(*pids, flush=True)
import sys
sys.stdin.read()
for pid in pids:
    os.kill(pid, 9)
"""
THREADS = f"""
import threading
for _ in range(9):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
{HOLDS}
"""


@pytest.fixture
def start():
    """`start(code)`: a process that has said its first line, and that line; ended at the end."""
    started = []

    def begin(code):
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process.pid, present(process.stdout).readline().split()

    yield begin
    for process in started:
        process.communicate(timeout=30)


# Processes


def test_memory_of_all_together(start):
    pids = [start(PRIVATE)[0] for _ in range(2)]
    assert Watchdog(Limits(memory_bytes=90 * MEGABYTE)).check(pids[:1]) is None
    assert Watchdog(Limits(memory_bytes=90 * MEGABYTE)).check(pids) == "memory"
    watch = Watchdog(Limits(memory_bytes=300 * MEGABYTE))
    assert watch.check(pids) is None
    assert 120 * MEGABYTE < watch.memory_bytes < 300 * MEGABYTE


def test_shared_memory_counts_once(start):
    pid, children = start(SHARED)
    pids = [pid, *map(int, children)]
    watch = Watchdog(Limits(memory_bytes=150 * MEGABYTE))
    assert watch.check(pids) is None
    assert 60 * MEGABYTE < watch.memory_bytes < 150 * MEGABYTE
    assert Watchdog(Limits(memory_bytes=60 * MEGABYTE)).check(pids) == "memory"


def test_dear_look_is_not_repeated_at_once(start):
    pid, children = start(SHARED)
    pids = [pid, *map(int, children)]
    watch = Watchdog(Limits(memory_bytes=150 * MEGABYTE))
    watch.check(pids)
    shared_out = watch.memory_bytes
    watch.check(pids)
    assert watch.memory_bytes > 200 * MEGABYTE > shared_out


def test_verdict_stays_as_long_as_it_is_true(start):
    pids = [start(PRIVATE)[0]]
    watch = Watchdog(Limits(memory_bytes=30 * MEGABYTE))
    assert [watch.check(pids) for _ in range(3)] == ["memory"] * 3


def test_processes_of_others_count_as_they_are_resident(start, ordinary_user):
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    pid, _ = start(PRIVATE)

    def check():
        with pytest.raises(PermissionError), open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            stream.read()
        assert Watchdog(Limits(memory_bytes=30 * MEGABYTE)).check([pid]) == "memory"
        assert Watchdog(Limits(memory_bytes=200 * MEGABYTE)).check([pid]) is None

    ordinary_user(check)


def test_threads_count_as_the_kernel_counts_them(start):
    pid, _ = start(THREADS)
    watch = Watchdog(Limits(pids=10))
    assert watch.check([pid]) is None
    assert watch.tasks == 10
    assert watch.check([pid, os.getpid()]) == "pids"
    assert Watchdog(Limits(pids=9)).check([pid]) == "pids"


def test_processes_that_are_gone(start):
    process = subprocess.Popen(["true"])
    process.wait()
    assert Watchdog(Limits(pids=1, memory_bytes=1)).check([process.pid]) is None


def test_no_limit_no_verdict():
    assert Watchdog(Limits()).check([os.getpid()]) is None


# Disk


def fill(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size)


def verdict(budget, now=1.0):
    """Looks until the walk is over."""
    while (found := budget.check(now)) is None and budget._walk is not None:
        pass
    return found


def test_budget_is_of_what_is_there(tmp_path):
    fill(tmp_path / "a" / "b", 3 * MEGABYTE)
    assert verdict(DiskBudget(str(tmp_path), 2 * MEGABYTE)) == "disk"
    budget = DiskBudget(str(tmp_path), 4 * MEGABYTE)
    assert verdict(budget) is None
    assert 3 * MEGABYTE <= budget.used_bytes < 4 * MEGABYTE


def test_growth_is_noticed_through_the_filesystem(tmp_path):
    budget = DiskBudget(str(tmp_path), 10 * MEGABYTE)
    assert verdict(budget) is None
    fill(tmp_path / "big", 200 * MEGABYTE)
    assert verdict(budget) == "disk"
    assert verdict(budget) == "disk"
    (tmp_path / "big").unlink()
    assert verdict(budget, now=100.0) is None


def test_walked_only_when_it_may_matter_or_after_a_while(tmp_path):
    budget = DiskBudget(str(tmp_path), 1 << 60)
    assert verdict(budget, now=1.0) is None
    before = budget.used_bytes
    fill(tmp_path / "a", MEGABYTE)
    assert verdict(budget, now=30.0) is None
    assert budget.used_bytes == before
    assert verdict(budget, now=62.0) is None
    assert budget.used_bytes >= before + MEGABYTE


def test_links_count_once_and_holes_and_targets_not_at_all(tmp_path):
    upper, outside = tmp_path / "upper", tmp_path / "outside"
    fill(upper / "a", MEGABYTE)
    os.link(upper / "a", upper / "b")
    fill(outside / "c", 5 * MEGABYTE)
    (upper / "link").symlink_to(outside)
    with (upper / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    budget = DiskBudget(str(upper), 2 * MEGABYTE)
    assert verdict(budget) is None
    assert budget.used_bytes >= MEGABYTE


def test_too_many_entries(tmp_path):
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert verdict(DiskBudget(str(tmp_path), None, limit_entries=49)) == "inodes"
    assert verdict(DiskBudget(str(tmp_path), None, limit_entries=50)) is None


def test_walk_is_done_in_parts(tmp_path):
    for number in range(50):
        fill(tmp_path / str(number % 5) / str(number), 4096)
    budget = DiskBudget(str(tmp_path), 30 * 4096, slice_entries=10)
    checks = 1
    while (found := budget.check(1.0)) is None:
        checks += 1
        assert checks < 20
    assert found == "disk"
    assert checks >= 3


def test_depth_is_no_hiding_place(tmp_path):
    here = os.open(tmp_path, os.O_RDONLY)
    handles = [here]
    for _ in range(40):
        os.mkdir("d" * 250, dir_fd=handles[-1])
        handles.append(os.open("d" * 250, os.O_RDONLY, dir_fd=handles[-1]))
    deep = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handles[-1])
    os.posix_fallocate(deep, 0, 5 * MEGABYTE)
    os.close(deep)
    try:
        assert verdict(DiskBudget(str(tmp_path), 4 * MEGABYTE)) == "disk"
        assert verdict(DiskBudget(str(tmp_path), None, limit_entries=41)) is None
    finally:
        os.unlink("file", dir_fd=handles[-1])
        while len(handles) > 1:
            os.close(handles.pop())
            os.rmdir("d" * 250, dir_fd=handles[-1])
        os.close(here)


def test_depth_that_makes_each_step_dear_has_an_end(tmp_path):
    deep, wide = tmp_path.joinpath("deep", *"d" * 100), tmp_path / "wide"
    deep.mkdir(parents=True)
    for number in range(100):
        (wide / str(number)).mkdir(parents=True)
    for place, expected in ((wide, None), (tmp_path / "deep", "inodes")):
        assert verdict(DiskBudget(str(place), None, limit_entries=110)) == expected


def test_directory_that_became_a_link_is_not_entered(tmp_path):
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "was-a-directory").symlink_to("/")
    walk = _Walk(str(tmp_path / "upper"))
    assert walk._open(["was-a-directory"]) is None
    assert not walk.is_blind
    walk.close()


def test_closed_directory_is_no_hiding_place(open_place, ordinary_user):
    def try_it():
        budget = DiskBudget(str(open_place), 10 * MEGABYTE)
        assert verdict(budget) is None
        fill(open_place / "closed" / "big", 200 * MEGABYTE)
        (open_place / "closed").chmod(0)
        try:
            assert verdict(budget) == "disk"
        finally:
            (open_place / "closed").chmod(0o700)
        (open_place / "closed" / "big").unlink()

    ordinary_user(try_it)


def test_no_descriptor_stays_open(tmp_path):
    fill(tmp_path / "a" / "b", 4096)
    before = os.listdir("/proc/self/fd")
    for limit in (1, MEGABYTE):
        verdict(DiskBudget(str(tmp_path), limit))
    assert os.listdir("/proc/self/fd") == before


def test_missing_directory_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError):
        DiskBudget(str(tmp_path / "gone"), MEGABYTE).check(1.0)


def test_free_bytes(tmp_path):
    before = find_free(str(tmp_path)).size_bytes
    assert before > 0
    fill(tmp_path / "a", 200 * MEGABYTE)
    assert find_free(str(tmp_path)).size_bytes < before


# Limits of each process


def as_dict(limits, **where):
    return dict(rlimits(limits, **{"memory_is_held": True, "in_user_namespace": False, **where}))


def test_always_no_core_and_an_end_of_open_files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = as_dict(Limits())
    assert found.pop(resource.RLIMIT_CORE) == 1
    assert 16 <= found.pop(resource.RLIMIT_NOFILE) <= hard
    assert found == {}
    assert as_dict(Limits(files=32))[resource.RLIMIT_NOFILE] == 32


def test_each_limit_only_where_it_means_what_it_says():
    limits = Limits(memory_bytes=1 << 30, pids=100, disk_bytes=1 << 20, cpus=1.5)
    assert as_dict(limits)[resource.RLIMIT_FSIZE] == 1 << 20
    assert not {resource.RLIMIT_DATA, resource.RLIMIT_NPROC} & as_dict(limits).keys()
    assert as_dict(limits, memory_is_held=False)[resource.RLIMIT_DATA] == 1 << 30
    assert as_dict(limits, in_user_namespace=True)[resource.RLIMIT_NPROC] == 100


def test_hard_limits_are_never_raised():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert as_dict(Limits(files=hard + 1))[resource.RLIMIT_NOFILE] < hard


@pytest.mark.parametrize(
    ("wanted", "hard", "given"),
    [(100, 1024, 100), (1024, 1024, 768), (65_536, 20_000, 18_976), (65_536, 1 << 20, 65_536)],
)
def test_capsule_has_fewer_descriptors_than_those_who_start_it(wanted, hard, given):
    assert files_limit(wanted, hard) == given
    assert files_limit(wanted, resource.RLIM_INFINITY) == wanted


@pytest.mark.parametrize(
    ("limits", "code", "error"),
    [
        (
            Limits(disk_bytes=4096),
            "import pathlib; pathlib.Path('f').write_bytes(b'x' * 5000)",
            "File too large",
        ),
        (
            Limits(memory_bytes=200 * MEGABYTE),
            f"bytearray(b'x') * {300 * MEGABYTE}",
            "MemoryError",
        ),
        (
            Limits(files=32),
            "held = [open('/dev/null') for _ in range(40)]",
            "Too many open files",
        ),
    ],
)
def test_kernel_holds_them(tmp_path, limits, code, error):
    def limit():
        for kind, value in rlimits(limits, memory_is_held=False, in_user_namespace=False):
            resource.setrlimit(kind, (value, value))

    def said(preexec):
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=tmp_path,
            preexec_fn=preexec,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stderr

    assert said(None) == ""
    assert error in said(limit)


# What has no name


UNLINKED = """
import os, sys
directory, size, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
path = os.path.join(directory, "gone")
handle = os.open(path, os.O_RDWR | os.O_CREAT)
os.posix_fallocate(handle, 0, size)
os.unlink(path)
if how == "mapped":
    import mmap
    held = mmap.mmap(handle, size)
    os.close(handle)
"""
MEMFD = f"""
import os
handle = os.memfd_create("m")
os.posix_fallocate(handle, 0, {60 * MEGABYTE})
{HOLDS}
"""


@pytest.fixture
def start_unlinked(tmp_path):
    started = []

    def begin(how):
        process = subprocess.Popen(
            [sys.executable, "-c", UNLINKED + HOLDS, str(tmp_path), str(20 * MEGABYTE), how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert present(process.stdout).readline() == "ready\n"
        return process.pid

    yield begin
    for process in started:
        process.communicate(timeout=30)


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_files_without_a_name_count(tmp_path, start_unlinked, how):
    pid = start_unlinked(how)
    budget = DiskBudget(str(tmp_path), 10 * MEGABYTE)
    while (found := budget.check(1.0, [pid])) is None and budget._walk is not None:
        pass
    assert found == "disk"
    # Control: no walk finds it.
    assert verdict(DiskBudget(str(tmp_path), 10 * MEGABYTE)) is None
    roomy = DiskBudget(str(tmp_path), 30 * MEGABYTE)
    while roomy.check(1.0, [pid, pid]) is None and roomy._walk is not None:
        pass
    assert 20 * MEGABYTE <= roomy.used_bytes < 30 * MEGABYTE


def test_files_in_memory_are_no_disk(tmp_path, start):
    pid, _ = start(MEMFD)
    census = DescriptorCount()
    census.take([pid])
    assert census.disk_bytes < MEGABYTE
    assert 60 * MEGABYTE <= census.memory_bytes < 61 * MEGABYTE


def test_memory_that_no_process_maps_counts(start):
    pid, _ = start(MEMFD)
    assert Watchdog(Limits(memory_bytes=50 * MEGABYTE)).check([pid]) == "memory"
    assert Watchdog(Limits(memory_bytes=200 * MEGABYTE)).check([pid]) is None
    # Control: it is not resident in any process.
    assert _resident_bytes(pid) < 40 * MEGABYTE


def test_more_than_can_be_counted_is_over_every_limit(start, monkeypatch):
    pid, _ = start(PRIVATE)
    monkeypatch.setattr(descriptors, "_LIMIT_ENTRIES", 3)
    assert Watchdog(Limits(memory_bytes=1 << 40)).check([pid]) == "memory"
    monkeypatch.undo()
    assert Watchdog(Limits(memory_bytes=1 << 40)).check([pid]) is None


IN_FLIGHT = f"""
import array, os, socket
near, far = socket.socketpair()
handle = os.open(os.devnull, os.O_RDONLY)
for _ in range(10):
    near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle]))])
{HOLDS}
"""


def test_descriptors_in_flight_are_limited(start, monkeypatch):
    """Nobody can see what was sent and not received: files could be hidden there."""
    pid, _ = start(IN_FLIGHT)
    for limit, is_exceeded in ((9, True), (10, False)):
        monkeypatch.setattr(descriptors, "_LIMIT_IN_FLIGHT", limit)
        census = DescriptorCount()
        census.take([pid])
        assert census.is_exceeded == is_exceeded


# The first thread ends by the system call, without the library; the other one goes on.
HEADLESS = f"""
import ctypes, os, platform, sys, threading
os.set_inheritable(1, False)
numbers = {{"x86_64": 60, "aarch64": 93}}
exit_number = numbers[platform.machine()]
handle = os.memfd_create("m")
os.posix_fallocate(handle, 0, {60 * MEGABYTE})
def go_on():
    data = b"x" * {60 * MEGABYTE}
    while "Z" not in open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/stat").read():
        pass
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall(exit_number, 0)
"""


def test_process_whose_first_thread_has_ended_is_no_hiding_place(start):
    pid, _ = start(HEADLESS)
    # The control: of the process itself nothing is to be seen.
    assert _resident_bytes(pid) == 0
    assert present(process_tree.find_process(pid)).is_dead
    watch = Watchdog(Limits(memory_bytes=200 * MEGABYTE))
    assert watch.check([pid]) is None
    assert watch.memory_bytes > 120 * MEGABYTE
    census = DescriptorCount()
    census.take([pid])
    assert 60 * MEGABYTE <= census.memory_bytes < 61 * MEGABYTE
    assert pid in process_tree.descendants(os.getpid())


EPOLLS = f"""
import os, select
watched = [os.eventfd(0) for _ in range(50)]
epolls = [select.epoll() for _ in range(10)]
for epoll in epolls:
    for fd in watched:
        epoll.register(fd)
{HOLDS}
"""


def test_what_is_watched_by_epoll_is_limited(start, monkeypatch):
    """The kernel counts it per user: once it is used up, no other process can wait for anything."""
    pid, _ = start(EPOLLS)
    for limit, is_exceeded in ((499, True), (1_000, False)):
        monkeypatch.setattr(descriptors, "_LIMIT_WATCHES", limit)
        census = DescriptorCount()
        census.take([pid])
        assert census.is_exceeded == is_exceeded


def test_dear_look_is_repeated_soon_however_dear_it_was():
    assert _end_of_rest(time.monotonic() - 1000) < time.monotonic() + 3


def test_other_filesystems_at_the_place_of_a_tmpfs_do_not_count():
    """While a sandbox is built, its paths may lead to the host's disk for a moment."""
    device = os.stat("/dev/shm").st_dev
    found = descriptors._tmpfs_mounts("/proc/self")
    assert "/dev/shm" in found[device]
    assert descriptors._used_bytes("/proc/self/root", ["/proc"], device) == 0
    with open("/dev/shm/atoll-test", "wb") as file:
        try:
            file.write(bytes(1 << 20))
            file.flush()
            places = ["/nowhere", "/proc", *found[device]]
            assert descriptors._used_bytes("/proc/self/root", places, device) >= 1 << 20
        finally:
            os.unlink(file.name)
