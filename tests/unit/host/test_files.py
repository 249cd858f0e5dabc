from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from atoll.host import files
from atoll.host.files import read_regular, remove_tree, write_atomic, write_new
from atoll.host.locks import Lock, is_locked
from atoll.model.errors import PrerequisiteError, StateError
from present import present

DEEP = 3_000


@pytest.fixture
def home(tmp_path):
    place = tmp_path / "home"
    place.mkdir()
    return place


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_text("stays")
    return place


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


# Removal


def test_what_is_missing_is_fine(home):
    before = sorted(home.rglob("*"))
    remove_tree(home / "nothing", within=home)
    remove_tree(home / "no" / "such" / "parent", within=home)
    assert sorted(home.rglob("*")) == before


def test_tree_of_every_kind_of_file(home):
    tree = home / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").write_text("x")
    (tree / "a" / "b" / ".hidden").write_text("x")
    os.mkfifo(tree / "fifo")
    os.symlink("nowhere", tree / "dangling")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "s"))
    (tree / os.fsdecode(b"caf\xe9\n")).write_text("x")
    remove_tree(tree, within=home)
    assert list(home.iterdir()) == []


def test_single_file_and_link_are_removed_themselves(home, outside):
    (home / "file").write_text("x")
    os.symlink(outside, home / "link")
    remove_tree(home / "file", within=home)
    remove_tree(home / "link", within=home)
    assert list(home.iterdir()) == []
    assert (outside / "file").read_text() == "stays"


def test_links_inside_are_not_followed(home, outside):
    tree = home / "tree"
    (tree / "deep").mkdir(parents=True)
    os.symlink(outside, tree / "out")
    os.symlink(outside, tree / "deep" / "out")
    os.symlink(outside / "file", tree / "deep" / "file")
    remove_tree(tree, within=home)
    assert (outside / "file").read_text() == "stays"


@pytest.mark.parametrize(
    "path",
    [
        ".",
        "..",
        "../outside",
        "tree/../../outside",
        "tree/..",
        "tree/deep/../..",
        "out/file",
        "out/sub",
        "out/..",
        "",
    ],
)
def test_it_never_leaves_its_home(home, outside, path):
    (home / "tree" / "deep").mkdir(parents=True)
    (home / "tree" / "file").write_text("x")
    (outside / "sub").mkdir()
    os.symlink(outside, home / "out")
    with pytest.raises(StateError, match="not removed"):
        remove_tree(home / path, within=home)
    assert (outside / "file").read_text() == "stays"
    assert (outside / "sub").is_dir()
    assert (home / "tree" / "file").read_text() == "x"


def test_absolute_path_elsewhere_is_refused(home, outside):
    with pytest.raises(StateError, match="is not below"):
        remove_tree(outside / "file", within=home)
    assert (outside / "file").exists()


def test_home_whose_name_is_a_prefix_is_another(tmp_path, home):
    sibling = tmp_path / "home-2"
    (sibling / "x").mkdir(parents=True)
    with pytest.raises(StateError):
        remove_tree(sibling / "x", within=home)


def test_linked_parent_inside_the_home_is_fine(home):
    (home / "real" / "tree").mkdir(parents=True)
    os.symlink(home / "real", home / "alias")
    remove_tree(home / "alias" / "tree", within=home)
    assert not (home / "real" / "tree").exists()


def test_linked_home_is_its_target(tmp_path, home):
    (home / "tree").mkdir()
    os.symlink(home, tmp_path / "alias")
    remove_tree(home / "tree", within=tmp_path / "alias")
    assert not (home / "tree").exists()


def test_names_of_255_bytes(home):
    place = home / "tree"
    for letter in "abc":
        place /= letter * 255
    # Too long for one path, so it is made step by step.
    handle = os.open(home, os.O_RDONLY)
    for part in place.relative_to(home).parts:
        os.mkdir(part, dir_fd=handle)
        below = os.open(part, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(os.open("f" * 255, os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)
    remove_tree(home / "tree", within=home)
    assert list(home.iterdir()) == []


def test_names_that_the_lifting_would_use(home):
    tree = home / "tree"
    for number in range(1, 6):
        (tree / f".atoll-{number}" / "x" / "y").mkdir(parents=True)
    os.symlink("..", tree / ".atoll-6")
    remove_tree(tree, within=home)
    assert list(home.iterdir()) == []


def test_tree_that_is_deeper_than_any_path(home):
    handle = os.open(home, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("directory", dir_fd=handle)
        below = os.open("directory", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    remove_tree(home / "directory", within=home)
    assert list(home.iterdir()) == []


def test_no_descriptor_is_left_open(home, outside):
    before = open_descriptors()
    for _ in range(5):
        (home / "tree" / "a" / "b").mkdir(parents=True)
        remove_tree(home / "tree", within=home)
        with pytest.raises(StateError):
            remove_tree(outside, within=home)
    assert open_descriptors() == before


def make_forbidding_tree(home):
    tree = home / "tree"
    for name in ("closed", "closed/inner", "read-only", "search-only"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text("x")
    (tree / "closed" / "inner" / "file").chmod(0)
    (tree / "closed" / "inner").chmod(0)
    (tree / "closed").chmod(0)
    (tree / "read-only").chmod(0o500)
    (tree / "search-only").chmod(0o100)
    tree.chmod(0)


def test_directories_that_forbid_everything(ordinary_user, open_place):
    def act():
        home = open_place / "home"
        home.mkdir()
        make_forbidding_tree(home)
        remove_tree(home / "tree", within=home)
        assert os.listdir(home) == []

    ordinary_user(act)


def test_what_really_is_forbidden_is_an_error(ordinary_user, open_place):
    def act():
        tree = open_place / "home" / "tree"
        tree.mkdir(parents=True)
        (open_place / "home").chmod(0o500)
        with pytest.raises(PermissionError):
            remove_tree(tree, within=open_place / "home")
        (open_place / "home").chmod(0o700)

    ordinary_user(act)


MOUNTED = """
import os, subprocess, sys
from pathlib import Path
from atoll.host.files import remove_tree
from atoll.model.errors import StateError
home, how, where = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
tree = home / "tree"
point = home / where
point.mkdir(parents=True)
(home / "source").mkdir()
if how == "tmpfs":
    command = ["mount", "-t", "tmpfs", "none", point]
else:
    command = ["mount", "--bind", home / "source", point]
subprocess.run(command, check=True)
(point / "precious").write_text("stays")
try:
    remove_tree(tree, within=home)
except (StateError, OSError) as error:
    print(type(error).__name__, (point / "precious").exists())
else:
    print("removed")
"""


def in_own_mounts(*argv):
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    return subprocess.run(
        [*unshare, *argv], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("how", ["tmpfs", "bind"])
@pytest.mark.parametrize("where", ["tree", "tree/inner", "tree/a/b/in n\\er"])
def test_what_is_mounted_is_not_emptied(home, how, where, require_tool):
    require_tool("unshare")
    if in_own_mounts("true").returncode:
        pytest.skip("this kernel gives no mount namespace")
    result = in_own_mounts(sys.executable, "-c", MOUNTED, home, how, where)
    assert (result.stdout, result.stderr) == ("StateError True\n", "")


# Locks


def test_lock_is_exclusive(home):
    first, second = Lock(home / "lock"), Lock(home / "lock")
    assert not is_locked(home / "lock")
    assert first.acquire()
    assert is_locked(home / "lock")
    assert not second.acquire()
    first.release()
    assert not is_locked(home / "lock")
    assert second.acquire()
    second.release(remove=True)
    assert not (home / "lock").exists()


def test_release_can_be_repeated(home):
    lock = Lock(home / "lock")
    lock.release()
    assert lock.acquire()
    lock.release()
    lock.release(remove=True)
    assert not is_locked(home / "lock")
    assert Lock(home / "lock").acquire()


def test_context_releases_and_removes(home):
    with Lock(home / "lock") as lock:
        lock.acquire()
    assert lock.fd == -1
    assert not (home / "lock").exists()


def test_failed_acquire_leaks_nothing(home):
    with Lock(home / "lock") as holder:
        holder.acquire()
        before = open_descriptors()
        for _ in range(5):
            assert not Lock(home / "lock").acquire()
            assert is_locked(home / "lock")
        assert open_descriptors() == before


HOLD = """
import sys, time
from pathlib import Path
from atoll.host.locks import Lock
lock = Lock(Path(sys.argv[1]))
assert lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_lock_dies_with_its_holder(home):
    command = [sys.executable, "-c", HOLD, home / "lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert present(holder.stdout).readline() == "held\n"
        assert is_locked(home / "lock")
        assert not Lock(home / "lock").acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not is_locked(home / "lock")
    with Lock(home / "lock") as lock:
        assert lock.acquire()


def test_lock_lives_on_in_a_tool_that_was_handed_it(home):
    lock = Lock(home / "lock")
    lock.acquire()
    with subprocess.Popen(["sleep", "60"], pass_fds=(lock.fd,)) as tool:
        lock.release()
        assert is_locked(home / "lock")
        assert not Lock(home / "lock").acquire()
        tool.kill()
    assert not is_locked(home / "lock")


def test_lock_is_not_handed_on_by_accident(home):
    lock = Lock(home / "lock")
    lock.acquire()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as tool:
        lock.release()
        assert not is_locked(home / "lock")
        tool.kill()


def test_waiter_gets_a_lock_whose_file_was_removed_meanwhile(home, wait_for):
    holder, waiter = Lock(home / "lock"), Lock(home / "lock")
    holder.acquire()
    thread = threading.Thread(target=lambda: waiter.acquire(wait=True))
    thread.start()
    links = f"{home}/lock"
    wait_for(lambda: sum(link == links for link in descriptor_targets()) >= 2, what="the waiter")
    holder.release(remove=True)
    thread.join(timeout=10)
    assert waiter.fd >= 0
    # What it holds is the lock that everybody else will find.
    assert os.path.samestat(os.fstat(waiter.fd), (home / "lock").stat())
    assert not Lock(home / "lock").acquire()
    waiter.release(remove=True)


def descriptor_targets():
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(entry.readlink()))
        except OSError:
            continue
    return targets


def test_file_that_was_removed_by_hand(home):
    first = Lock(home / "lock")
    first.acquire()
    (home / "lock").unlink()
    second = Lock(home / "lock")
    assert second.acquire()
    # The first one must not take the second one's file away with its own.
    first.release(remove=True)
    assert is_locked(home / "lock")
    second.release(remove=True)


# Reading and writing


def test_atomic_write_makes_and_replaces(home):
    write_atomic(home / "file", b"one")
    assert stat.S_IMODE((home / "file").stat().st_mode) == 0o600
    write_atomic(home / "file", b"two", mode=0o644)
    assert (home / "file").read_bytes() == b"two"
    assert stat.S_IMODE((home / "file").stat().st_mode) == 0o644
    assert os.listdir(home) == ["file"]


def test_atomic_write_replaces_a_link_and_not_its_target(home, outside):
    os.symlink(outside / "file", home / "file")
    write_atomic(home / "file", b"new")
    assert (outside / "file").read_text() == "stays"
    assert not (home / "file").is_symlink()


def test_failed_atomic_write_leaves_nothing(home):
    (home / "directory" / "full").mkdir(parents=True)
    with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
        write_atomic(home / "directory", b"x")
    assert os.listdir(home) == ["directory"]


def test_readers_see_the_old_or_the_new(home):
    contents = [letter * 100_000 for letter in (b"a", b"b")]
    write_atomic(home / "file", contents[0])
    seen = set()
    done = threading.Event()

    def read():
        while not done.is_set():
            seen.add((home / "file").read_bytes())

    thread = threading.Thread(target=read)
    thread.start()
    for turn in range(30):
        write_atomic(home / "file", contents[turn % 2])
    done.set()
    thread.join()
    assert seen <= set(contents)


def test_new_file_never_overwrites(home, outside):
    write_new(home / "file", b"one")
    with pytest.raises(StateError):
        write_new(home / "file", b"two")
    assert (home / "file").read_bytes() == b"one"
    os.symlink(outside / "not-yet", home / "link")
    with pytest.raises(StateError):
        write_new(home / "link", b"two")
    assert not (outside / "not-yet").exists()


def test_regular_file_is_read_up_to_its_limit(home):
    (home / "file").write_bytes(b"12345")
    assert read_regular(home / "file", limit_bytes=5) == b"12345"
    assert read_regular(home / "nothing", limit_bytes=5) is None
    with pytest.raises(StateError, match="4 bytes"):
        read_regular(home / "file", limit_bytes=4)


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "link", "dangling", "device"])
def test_only_regular_files_are_read(home, outside, kind):
    path = home / "thing"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        os.symlink(outside / ("file" if kind == "link" else "nothing"), path)
    before = open_descriptors()
    with pytest.raises(StateError):
        read_regular(path, limit_bytes=100)
    assert open_descriptors() == before


def test_move_makes_the_parent(home):
    (home / "a").mkdir()
    (home / "a" / "file").write_text("x")
    files.move(home / "a", home / "deep" / "er" / "b")
    assert (home / "deep" / "er" / "b" / "file").read_text() == "x"


# Atoll's home


def test_home_is_made_private(tmp_path):
    old = os.umask(0)
    try:
        files.require_own_directory(tmp_path / "new" / "home")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new" / "home").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o720, 0o702, 0o1777])
def test_home_that_others_can_write_is_refused(home, mode):
    home.chmod(mode)
    with pytest.raises(PrerequisiteError) as caught:
        files.require_own_directory(home)
    assert caught.value.hint == f"chmod go-w '{home}'"


def test_home_that_is_a_file_is_refused(home):
    (home / "file").write_text("x")
    for path in (home / "file", home / "file" / "below"):
        with pytest.raises(PrerequisiteError, match=str(path)):
            files.require_own_directory(path)


def test_home_of_another_user_is_refused(ordinary_user, open_place):
    def act():
        with pytest.raises(PrerequisiteError, match="user id 0"):
            files.require_own_directory(Path("/"))

    ordinary_user(act)


def test_home_that_is_not_writable_is_refused(ordinary_user, open_place):
    def act():
        home = open_place / "home"
        home.mkdir(mode=0o500)
        with pytest.raises(PrerequisiteError, match="is not writable"):
            files.require_own_directory(home)
        with pytest.raises(PrerequisiteError, match="below"):
            files.require_own_directory(home / "below")

    ordinary_user(act)


def test_free_space_is_a_number(home):
    assert files.free_bytes(home) > 0
