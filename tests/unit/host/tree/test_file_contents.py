from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.host.tree import file_contents
from atoll.host.tree.file_contents import Mover, digest, digest_entries
from atoll.host.tree.thread_pool import progress_of, run_parallel
from atoll.model.errors import StateError
from present import present

PIECE = 2**17


def b2sum(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def ignore(_):
    pass


def digest_of(path):
    with open(path, "rb") as stream:
        return digest(stream.fileno(), ignore)


def move(mover, source, target, tick=ignore):
    with open(source, "rb") as before, open(target, "w+b") as after:
        return mover.move(before.fileno(), after.fileno(), tick, origin="the file").status


def can_reflink(place):
    (place / "one").write_bytes(b"x" * 4096)
    with open(place / "one", "rb") as one, open(place / "two", "wb") as two:
        try:
            fcntl.ioctl(two.fileno(), 0x40049409, one.fileno())
        except OSError:
            return False
    return True


# Moving


def test_cheapest_way_is_taken(tmp_path):
    mover = Mover()
    data = os.urandom(2 * PIECE)
    (tmp_path / "source").write_bytes(data)
    status = move(mover, tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == data
    assert status.st_size == len(data)
    assert mover.method == ("reflink" if can_reflink(tmp_path) else "copy_file_range")


WAYS = ["_clone", "_copy_ranges", "_read_and_write"]
METHODS = ["reflink", "copy_file_range", "read-write"]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "code", [errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ENOSYS]
)
def test_next_way_where_one_is_refused(tmp_path, monkeypatch, number, code):
    tried = []

    def refuse(source, target, status, tick):
        tried.append(code)
        # Half of it is there already: the next way has to begin anew.
        os.pwrite(target, b"?" * 3 * PIECE, 0)
        raise OSError(code, "refused")

    for way in WAYS[: number + 1]:
        monkeypatch.setattr(file_contents, way, refuse)
    mover = Mover()
    data = os.urandom(2 * PIECE)
    (tmp_path / "source").write_bytes(data)
    for _ in range(3):
        move(mover, tmp_path / "source", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data
    assert mover.method == METHODS[number + 1]
    assert len(tried) == number + 1, "asked once, not for every file"


@pytest.mark.parametrize("size", [1, 4096, PIECE - 1])
def test_small_file_without_reflinks_is_read_once(tmp_path, monkeypatch, size):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "refused")

    monkeypatch.setattr(file_contents, "_clone", refuse)
    mover = Mover()
    # The first one shows that there are no reflinks.
    (tmp_path / "first").write_bytes(b"first")
    move(mover, tmp_path / "first", tmp_path / "copy")
    data = os.urandom(size)
    (tmp_path / "source").write_bytes(data)
    monkeypatch.setattr(file_contents, "digest", refuse)
    with open(tmp_path / "source", "rb") as source, open(tmp_path / "target", "w+b") as target:
        moved = mover.move(
            source.fileno(), target.fileno(), ignore, origin="the file", wants_digest=True
        )
    assert (tmp_path / "target").read_bytes() == data
    assert moved.digest == b2sum(data)


def test_way_that_has_worked_stays(tmp_path, monkeypatch):
    refused = []
    real = file_contents._copy_ranges

    def odd(source, target, status, tick):
        if status.st_size == 3:
            refused.append(1)
            raise OSError(errno.EINVAL, "refused")
        real(source, target, status, tick)

    monkeypatch.setattr(file_contents, "_clone", odd)
    mover = Mover()
    for name, data in (("a", b"1234"), ("b", b"123"), ("c", b"12345"), ("d", b"123")):
        (tmp_path / name).write_bytes(data)
        move(mover, tmp_path / name, tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data
    assert len(refused) == 2


def test_other_errors_are_no_reason_to_try_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(file_contents, "_clone", full)
    (tmp_path / "source").write_bytes(b"x")
    with pytest.raises(OSError, match="full"):
        move(Mover(), tmp_path / "source", tmp_path / "target")


@pytest.mark.parametrize("without", [0, 1, 2])
def test_terabyte_of_holes_is_copied_at_once(tmp_path, monkeypatch, without):
    def refuse(*_):
        raise OSError(errno.EXDEV, "refused")

    for way in WAYS[:without]:
        monkeypatch.setattr(file_contents, way, refuse)
    with open(tmp_path / "source", "wb") as stream:
        os.pwrite(stream.fileno(), b"a" * 4096, 1 << 39)
        stream.truncate(1 << 40)
    moved: list[int] = []
    move(Mover(), tmp_path / "source", tmp_path / "target", moved.append)
    status = os.stat(tmp_path / "target")
    assert status.st_size == 1 << 40
    assert status.st_blocks * 512 < 1 << 20
    with open(tmp_path / "target", "rb") as copied:
        assert os.pread(copied.fileno(), 4098, (1 << 39) - 1) == b"\0" + b"a" * 4096 + b"\0"
    assert digest_of(tmp_path / "source") == digest_of(tmp_path / "target")
    if without:
        assert sum(moved) < 1 << 20


PIECES = st.lists(st.tuples(st.integers(0, 700_000), st.binary(min_size=1, max_size=3)), max_size=6)


@settings(max_examples=60)
@given(pieces=PIECES, size=st.integers(0, 700_000), way=st.sampled_from(WAYS[1:]))
def test_holes_and_data_are_copied_and_hashed_alike(tmp_path_factory, pieces, size, way):
    place = tmp_path_factory.mktemp("holes")
    with open(place / "source", "wb") as stream:
        for position, data in pieces:
            os.pwrite(stream.fileno(), data, position)
        stream.truncate(size)
    data = (place / "source").read_bytes()
    (place / "plain").write_bytes(data)
    with open(place / "source", "rb") as source, open(place / "target", "wb") as target:
        status = os.fstat(source.fileno())
        getattr(file_contents, way)(source.fileno(), target.fileno(), status, ignore)
    assert (place / "target").read_bytes() == data
    names = ("source", "plain", "target")
    assert len({digest_of(place / name) for name in names}) == 1, "holes are zeros like others"


def test_file_that_changes_once_is_copied_again(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"old" * 1000)
    real = Mover._move_once
    states = [b"newer", b"newest, and longer"]

    def disturbed(self, *args):
        real(self, *args)
        if states:
            source.write_bytes(states.pop(0))

    monkeypatch.setattr(Mover, "_move_once", disturbed)
    status = move(Mover(), source, target)
    assert target.read_bytes() == b"newest, and longer"
    assert status.st_mtime_ns == source.stat().st_mtime_ns


def test_file_that_never_holds_still_is_refused(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.write_bytes(b"log\n")
    real = Mover._move_once
    attempts = []

    def disturbed(self, *args):
        real(self, *args)
        attempts.append(1)
        with open(source, "ab") as stream:
            stream.write(b"more\n")

    monkeypatch.setattr(Mover, "_move_once", disturbed)
    with pytest.raises(StateError, match="`the file`") as caught:
        move(Mover(), source, tmp_path / "target")
    assert "stop the process that writes" in present(caught.value.hint)
    assert len(attempts) == 4


# Hashing


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_digest_is_that_of_b2sum(tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert digest_of(tmp_path / "file") == b2sum(data)


def test_zeros_at_different_places_differ(tmp_path):
    one, zero = b"\1" * PIECE, b"\0" * PIECE
    contents_ = [
        one,
        zero,
        zero + one,
        one + zero,
        one + zero + one,
        zero + zero,
        zero + b"\0",
        b"",
    ]
    contents_ += [one + b"\0", zero + zero + one, zero + one + zero, one + one]
    found = set()
    for data in contents_:
        (tmp_path / "file").write_bytes(data)
        found.add(digest_of(tmp_path / "file"))
    assert len(found) == len(contents_)


def test_digests_of_entries(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").write_bytes(b"one")
    (tmp_path / "top").write_bytes(b"two")
    os.symlink("top", tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    os.symlink("d", tmp_path / "e")
    wanted = ["d/file", "top", "link", "fifo", "missing", "no/such", "e/file", "d"]
    assert digest_entries(tmp_path, wanted) == {"d/file": b2sum(b"one"), "top": b2sum(b"two")}


def test_digest_of_what_is_closed_names_it(ordinary_user, open_place):
    def check():
        (open_place / "closed").touch(mode=0)
        with pytest.raises(StateError, match=f"closed`.*{os.strerror(errno.EACCES)}"):
            digest_entries(open_place, ["closed"])

    ordinary_user(check)


# Threads


def test_crew_does_every_task_once():
    done = []

    def work(task, worker):
        done.append(task)
        worker.files += 1
        worker.tick(2)

    heard = []
    workers = run_parallel(range(1000), work, threads=4, progress=lambda *seen: heard.append(seen))
    assert sorted(done) == list(range(1000))
    assert progress_of(workers) == (1000, 2000)
    assert heard[-1] == (1000, 2000)


def test_failure_ends_the_others():
    before = threading.active_count()

    def work(task, worker):
        if task == 5:
            raise StateError("five")
        while task < 4:
            worker.tick(0)

    with pytest.raises(StateError, match="five"):
        run_parallel(range(6), work, threads=5)
    assert threading.active_count() == before


def test_interrupt_ends_all():
    before = threading.active_count()

    def work(task, worker):
        while True:
            worker.tick(1)

    def interrupt(files, size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parallel(range(3), work, threads=3, progress=interrupt)
    assert threading.active_count() == before
