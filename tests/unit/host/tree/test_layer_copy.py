from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from atoll.host.tree import file_contents, layer_copy
from atoll.host.tree.layer_copy import copy_changes, copy_entries
from atoll.host.tree.manifests import Difference, difference, scan
from atoll.model.errors import StateError
from present import present

ODD = os.fsdecode(b"caf\xe9\n")
EARLY_NS = 1_000_000_000_123_456_789


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def attributes(path):
    if os.path.islink(path):
        return {}
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if name[:5] == "user."}


def dump(root):
    """Everything that a copy has to keep."""
    found: dict[str, object] = {}
    first: dict[int, str] = {}
    for directory, directories, files in os.walk(root):
        for name in (*directories, *files):
            place = os.path.join(directory, name)
            path = os.path.relpath(place, root)
            status = os.lstat(place)
            content = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(place)
            elif stat.S_ISREG(status.st_mode):
                with open(place, "rb") as stream:
                    content = hashlib.blake2b(stream.read(), digest_size=16).hexdigest()
            linked = first.setdefault(status.st_ino, path) if status.st_nlink > 1 else path
            found[path] = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_mtime_ns,
                content,
                None if stat.S_ISDIR(status.st_mode) else linked,
                attributes(place),
            )
    return found


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "source"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(os.urandom(70_000))
    (root / "a" / "b" / "tool").write_text("#!/bin/sh\n")
    (root / "a" / "b" / "tool").chmod(0o755)
    (root / "a" / "empty").mkdir()
    (root / "a" / "nothing").touch()
    (root / ODD).write_text("x")
    os.symlink("../nowhere", root / "a" / "link")
    os.symlink("/etc/passwd", root / "absolute")
    for directory, _, files in os.walk(root, topdown=False):
        for name in files:
            place = os.path.join(directory, name)
            os.utime(place, ns=(EARLY_NS, EARLY_NS + len(name)), follow_symlinks=False)
        os.utime(directory, ns=(EARLY_NS, EARLY_NS))
    return root


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


def copy(source, target, **options):
    return copy_entries(source, target, scan(source).entries, **options)


# What a copy keeps


def test_copy_is_the_same(source, target):
    report = copy(source, target)
    assert dump(target) == dump(source)
    assert report.manifest == scan(source).entries
    assert report.vanished == []
    assert set(report.digests) == {"a/b/file", "a/b/tool", "a/nothing", ODD}
    data = (source / "a" / "b" / "file").read_bytes()
    assert report.digests["a/b/file"] == hashlib.blake2b(data, digest_size=16).hexdigest()
    assert report.digests == file_contents.digest_entries(target, report.manifest)
    assert difference(report.manifest, scan(target).entries) == Difference([], [])


def test_digests_can_be_left_for_later(source, target):
    assert copy(source, target, digests=False).digests == {}


@pytest.mark.parametrize("threads", [1, 4])
def test_any_number_of_threads(source, target, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(threads))
    for number in range(300):
        (source / "a" / f"{number:04}").write_bytes(b"x" * number)
    copy(source, target)
    assert dump(target) == dump(source)


def test_target_is_like_the_source_itself(source, target):
    source.chmod(0o751)
    copy(source, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o751
    assert target.stat().st_mtime_ns == source.stat().st_mtime_ns


def test_target_may_be_an_empty_directory_and_nothing_else(source, target):
    target.mkdir()
    copy(source, target)
    with pytest.raises(StateError, match="exists already"):
        copy(source, target)
    assert dump(target) == dump(source)


def test_only_what_is_named(source, target):
    copy_entries(source, target, scan(source, below=["a/b"]).entries)
    assert sorted(dump(target)) == ["a", "a/b", "a/b/file", "a/b/tool"]


def test_modes(source, target):
    for number, mode in enumerate((0o4755, 0o2755, 0o1777, 0o000, 0o500, 0o6777)):
        (source / f"file-{number}").touch()
        (source / f"file-{number}").chmod(mode if os.geteuid() == 0 else mode | 0o400)
        (source / f"directory-{number}").mkdir()
        (source / f"directory-{number}" / "inside").touch()
        (source / f"directory-{number}").chmod(mode if os.geteuid() == 0 else mode | 0o700)
    copy(source, target)
    # The control: the bits are there, and a directory keeps its own.
    assert (source / "file-5").stat().st_mode & 0o6000
    assert (target / "directory-5").stat().st_mode & 0o2000
    for number in range(6):
        path = source / f"file-{number}"
        path.chmod(path.stat().st_mode & 0o1777)
    assert dump(target) == dump(source)


def test_file_capabilities_are_not_copied(source, target):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file capabilities")
    tool = source / "a" / "b" / "tool"
    os.setxattr(tool, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0))
    assert os.listxattr(tool) == ["security.capability"]
    copy(source, target)
    assert os.listxattr(target / "a" / "b" / "tool") == []


def test_read_only_directories_of_an_ordinary_user(ordinary_user, open_place):
    def check():
        source, target = open_place / "source", open_place / "target"
        (source / "read-only" / "below").mkdir(parents=True)
        (source / "read-only" / "below" / "file").write_text("x")
        (source / "read-only" / "below").chmod(0o500)
        (source / "read-only").chmod(0o500)
        copy(source, target)
        assert dump(target) == dump(source)
        for place in (source, target):
            for path in ("read-only", "read-only/below"):
                (place / path).chmod(0o700)

    ordinary_user(check)


def test_set_id_falls(ordinary_user, open_place):
    if os.geteuid() != 0:
        pytest.skip("needs root, to have files of two users")
    source = open_place / "source"
    source.mkdir()
    (source / "tool").touch()
    (source / "tool").chmod(0o6755)

    def check():
        copy(source, open_place / "target")
        assert stat.S_IMODE((open_place / "target" / "tool").stat().st_mode) == 0o755

    ordinary_user(check)


def test_owners_are_kept_by_root(source, target):
    if os.geteuid() != 0:
        pytest.skip("needs root, to have files of two users")
    os.chown(source / "a" / "b" / "tool", 1234, 2345)
    os.chown(source / "a" / "link", 1234, 2345, follow_symlinks=False)
    os.chown(source / "a" / "empty", 1234, 2345)
    copy(source, target)
    assert dump(target) == dump(source)


def test_attributes_of_users_but_not_of_overlays(source, target):
    for path in ("a/b/file", "a/b", "a/empty"):
        os.setxattr(source / path, "user.colour", b"blue\0")
        os.setxattr(source / path, "user.overlay.opaque", b"y")
    (source / "a" / "b" / "file").chmod(0o400)
    copy(source, target)
    for path in ("a/b/file", "a/b", "a/empty"):
        assert attributes(target / path) == {"user.colour": b"blue\0"}


def test_hard_links_among_the_entries(source, target, tmp_path):
    os.link(source / "a" / "b" / "file", source / "a" / "again")
    os.link(source / "a" / "b" / "file", source / "third")
    # Its other name is not copied.
    os.link(source / "a" / "b" / "tool", tmp_path / "outside")
    report = copy(source, target)
    assert dump(target)["a/again"][5] == dump(target)["third"][5]
    assert (target / "third").stat().st_nlink == 3
    assert (target / "a" / "b" / "tool").stat().st_nlink == 1
    assert report.digests["third"] == report.digests["a/b/file"]
    assert difference(scan(source).entries, scan(target).entries) == Difference([], [])
    (target / "third").write_text("changed")
    assert (source / "third").read_bytes() != b"changed"


def test_hard_link_that_was_replaced_is_no_link_any_more(source, target):
    os.link(source / "a" / "b" / "file", source / "a" / "again")
    os.link(source / "a" / "b" / "file", source / "third")
    entries = scan(source).entries
    (source / "third").unlink()
    (source / "third").write_text("its own")
    copy_entries(source, target, entries)
    assert (target / "third").read_text() == "its own"
    assert (target / "a" / "again").stat().st_nlink == 2


def test_first_of_the_hard_links_may_vanish(source, target):
    names = ["a/b/file", "a/again", "third"]
    os.link(source / names[0], source / names[1])
    os.link(source / names[0], source / names[2])
    entries = scan(source).entries
    first = next(path for path in entries if path in names)
    data = (source / first).read_bytes()
    (source / first).unlink()
    report = copy_entries(source, target, entries)
    assert report.vanished == [first]
    left = [target / name for name in names if name != first]
    assert [place.read_bytes() for place in left] == [data, data]
    assert left[0].stat().st_ino == left[1].stat().st_ino


def test_terabyte_of_holes(source, target):
    with open(source / "huge", "wb") as stream:
        os.pwrite(stream.fileno(), b"a" * 4096, 1 << 39)
        stream.truncate(1 << 40)
    began = time.monotonic()
    report = copy(source, target)
    assert time.monotonic() - began < 5
    assert (target / "huge").stat().st_size == 1 << 40
    assert (target / "huge").stat().st_blocks < 100
    assert report.digests["huge"] == file_contents.digest_entries(source, ["huge"])["huge"]


# What moves under its hands


def test_what_vanished_is_reported_and_left_out(source, target):
    entries = scan(source).entries
    (source / "a" / "b" / "file").unlink()
    (source / "absolute").unlink()
    (source / "a" / "empty").rmdir()
    report = copy_entries(source, target, entries)
    assert report.vanished == ["a/b/file", "a/empty", "absolute"]
    assert dump(target) == dump(source)
    assert set(report.manifest) == set(dump(source))


def test_whole_directories_vanish(source, target):
    entries = scan(source).entries
    os.rename(source / "a", source / "other")
    report = copy_entries(source, target, entries)
    assert set(report.manifest) == {ODD, "absolute"}
    assert set(dump(target)) == {ODD, "absolute"}
    assert "a/b" in report.vanished


def test_what_became_something_else_counts_as_vanished(source, target, tmp_path):
    entries = scan(source).entries
    file, tool, link, empty = (
        source / "a" / path for path in ("b/file", "b/tool", "link", "empty")
    )
    file.unlink()
    os.symlink("/etc/passwd", file)
    tool.unlink()
    os.mkfifo(tool)
    link.unlink()
    link.write_text("a file now")
    empty.rmdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(empty))
    report = copy_entries(source, target, entries)
    assert report.vanished == ["a/b/file", "a/b/tool", "a/empty", "a/link"]
    assert set(dump(target)) == {"a", "a/b", "a/nothing", ODD, "absolute"}


def test_link_in_the_place_of_a_directory_leads_nowhere(source, target, tmp_path):
    entries = scan(source).entries
    os.rename(source / "a", tmp_path / "real")
    outside = tmp_path / "outside" / "b"
    outside.mkdir(parents=True)
    (outside / "file").write_text("secret")
    os.symlink(tmp_path / "outside", source / "a")
    report = copy_entries(source, target, entries)
    assert "a/b/file" in report.vanished
    assert not (target / "a").exists()


def test_newer_content_has_its_newer_stamp(source, target):
    entries = scan(source).entries
    (source / "a" / "b" / "file").write_text("newer")
    (source / "a" / "b" / "file").chmod(0o600)
    report = copy_entries(source, target, entries)
    assert (target / "a" / "b" / "file").read_text() == "newer"
    assert report.manifest == scan(source).entries
    assert dump(target) == dump(source)


def test_closed_file_is_named(ordinary_user, open_place):
    def check():
        source = open_place / "source"
        source.mkdir()
        (source / "closed").touch(mode=0)
        with pytest.raises(StateError, match="closed`") as caught:
            copy(source, open_place / "target")
        assert "project.never" in present(caught.value.hint)

    ordinary_user(check)


def run_mounted(script, program, *places):
    """Runs a program beside filesystems that `script` mounts on `$1`, `$2`, … for it alone."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a filesystem")
    command = f'{script}; exec "$0" -c "$PROGRAM" "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", command, sys.executable, *places],
        env={**os.environ, "PROGRAM": textwrap.dedent(program)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_full_disk(source, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    program = """
        import pathlib, sys
        from atoll.host.tree import layer_copy, manifests
        from atoll.model.errors import PrerequisiteError
        small, source = map(pathlib.Path, sys.argv[1:])
        try:
            layer_copy.copy_entries(source, small / "target", manifests.scan(source).entries)
        except PrerequisiteError as error:
            print(error.message, error.hint, sep="\\n")
    """
    said = run_mounted('mount -t tmpfs -o size=32k none "$1"', program, small, source)
    assert said == f"no space left on `{small}/target`\ndf -h {small}\n"


def test_one_number_on_two_filesystems_is_no_hard_link(source, target):
    places = [source / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    program = """
        import os, pathlib, sys
        from atoll.host.tree import layer_copy, manifests
        *places, source, target = map(pathlib.Path, sys.argv[1:])
        for place in places:
            (place / "file").write_text(place.name)
            os.link(place / "file", place / "again")
        entries = manifests.scan(source).entries
        assert entries["one/file"].inode == entries["two/file"].inode
        layer_copy.copy_entries(source, target, entries)
    """
    script = 'mount -t tmpfs none "$1"; mount -t tmpfs none "$2"'
    run_mounted(script, program, *places, source, target)
    for place in places:
        copies = [target / place.name / name for name in ("file", "again")]
        assert [copy.read_text() for copy in copies] == [place.name] * 2
        assert copies[0].stat().st_nlink == 2


def test_other_failures_name_the_file(source, target, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_contents, "_clone", broken)
    with pytest.raises(StateError, match=os.strerror(errno.EIO)):
        copy(source, target)


def test_missing_source_and_missing_parent(source, target, tmp_path):
    with pytest.raises(StateError, match="cannot be read"):
        copy_entries(tmp_path / "none", target, {})
    with pytest.raises(StateError, match=os.strerror(errno.ENOENT)):
        copy(source, tmp_path / "no" / "parent")


# Progress and interruption


def test_progress_is_reported_in_the_callers_thread(source, target):
    with open(source / "large", "wb") as stream:
        stream.write(os.urandom(1 << 20) * 32)
    heard = []
    report = copy(
        source, target, progress=lambda *seen: heard.append((threading.get_ident(), *seen))
    )
    assert {ident for ident, *_ in heard} == {threading.get_ident()}
    files = [stamp for stamp in report.manifest.values() if not stamp.is_directory]
    size = sum(stamp.size for stamp in files if stamp.is_file)
    assert heard[-1][1:] == (len(files), size)
    assert heard == sorted(heard)


def test_interrupt_stops_the_workers(source, target):
    for number in range(4):
        with open(source / f"large-{number}", "wb") as stream:
            stream.write(os.urandom(1 << 20) * 50)
    before = threading.active_count(), open_descriptors()
    interrupted: list[float] = []

    def interrupt(files, size):
        if not interrupted:
            interrupted.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            copy(source, target, progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert time.monotonic() - interrupted[0] < 5
    assert (threading.active_count(), open_descriptors()) == before


def test_failure_leaves_no_descriptor(source, target, monkeypatch):
    before = open_descriptors()
    copy(source, target)
    monkeypatch.setattr(layer_copy, "settle", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        copy(source, target.with_name("second"))
    assert open_descriptors() == before


# Deltas


def whiteouts(root):
    found = []
    for directory, _, files in os.walk(root):
        for name in files:
            status = os.lstat(os.path.join(directory, name))
            if stat.S_ISCHR(status.st_mode):
                assert status.st_rdev == 0
                found.append(os.path.relpath(os.path.join(directory, name), root))
    return sorted(found)


def test_delta_holds_only_what_changed(source, target):
    (source / "a" / "b").chmod(0o750)
    old = scan(source).entries
    (source / "a" / "b" / "tool").write_text("changed")
    (source / "a" / "nothing").unlink()
    (source / "a" / "empty").rmdir()
    (source / "new").mkdir()
    (source / "new" / "file").touch()
    new = scan(source).entries
    report = copy_changes(source, target, difference(old, new), new)
    assert whiteouts(target) == ["a/empty", "a/nothing"]
    expected = {"a", "a/b", "a/b/tool", "new", "new/file"}
    assert set(report.manifest) == expected
    assert {path: dump(target)[path] for path in expected} == {
        path: dump(source)[path] for path in expected
    }
    assert set(dump(target)) == expected | {"a/empty", "a/nothing"}


def test_delta_by_an_ordinary_user(ordinary_user, open_place):
    def check():
        source, target = open_place / "source", open_place / "target"
        source.mkdir()
        (source / "gone").touch()
        old = scan(source).entries
        (source / "gone").unlink()
        copy_changes(source, target, difference(old, {}), {})
        assert whiteouts(target) == ["gone"]

    ordinary_user(check)


def test_directory_that_became_a_file_and_the_reverse(source, target):
    old = scan(source).entries
    for path in ("b/file", "b/tool"):
        (source / "a" / path).unlink()
    (source / "a" / "b").rmdir()
    (source / "a" / "b").write_text("a file now")
    (source / ODD).unlink()
    (source / ODD).mkdir()
    (source / ODD / "inside").touch()
    new = scan(source).entries
    copy_changes(source, target, difference(old, new), new)
    assert whiteouts(target) == []
    assert set(dump(target)) == {"a", "a/b", ODD, f"{ODD}/inside"}


def test_removals_below_what_is_gone_are_one(source, target):
    new = scan(source, below=[ODD]).entries
    removed = ["a/b/file", "a/b/tool", f"{ODD}/x", "gone"]
    copy_changes(source, target, Difference([], removed), new)
    assert whiteouts(target) == ["a", "gone"]


def test_nothing_to_do(source, target):
    new = scan(source).entries
    report = copy_changes(source, target, difference(new, new), new)
    assert report.manifest == {}
    assert report.method == "read-write"
    assert list(target.iterdir()) == []
