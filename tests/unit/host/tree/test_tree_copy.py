from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import subprocess
import threading

import pytest

from atoll.host.files import remove_tree
from atoll.host.recovery.restored_files import save_changed_files
from atoll.host.tree import tree_copy
from atoll.host.tree.merged_tree import MergedTree
from atoll.host.tree.tree_copy import copy_tree
from atoll.model.errors import StateError
from children import NOBODY, exchanging, in_child


def attributes(place):
    return {
        name: os.getxattr(place, name, follow_symlinks=False)
        for name in os.listxattr(place, follow_symlinks=False)
    }


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
                    content = stream.read()
            linked = first.setdefault(status.st_ino, path) if status.st_nlink > 1 else path
            found[path] = (
                *(status.st_mode, status.st_uid, status.st_gid, status.st_rdev),
                status.st_mtime_ns if not stat.S_ISCHR(status.st_mode) else None,
                content,
                None if stat.S_ISDIR(status.st_mode) or stat.S_ISCHR(status.st_mode) else linked,
                attributes(place),
            )
    return found


def fill(root):
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_bytes(b"content")
    os.link(root / "a" / "file", root / "a" / "b" / "again")
    os.symlink("/etc/passwd", root / "a" / "link")
    os.mkfifo(root / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
    os.mknod(root / "gone", stat.S_IFCHR, os.makedev(0, 0))
    (root / os.fsdecode(b"caf\xe9\n")).write_text("x")
    os.setxattr(root / "a", "user.overlay.opaque", b"y")
    os.setxattr(root / "a" / "file", "user.note", b"blue\0")
    with open(root / "sparse", "wb") as stream:
        stream.truncate(1 << 30)
        stream.seek(1 << 29)
        stream.write(b"middle")
    (root / "a" / "b").chmod(0o2750)
    os.utime(root / "a", ns=(1, 2))
    return root


@pytest.fixture
def source(tmp_path):
    return fill(tmp_path / "source")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


def test_copy_keeps_everything(tmp_path, target):
    source = tmp_path / "source"
    fill(source)
    os.truncate(source / "sparse", 0)
    found = copy_tree(source, target)
    assert dump(target) == dump(source)
    assert found.entries == len(dump(source))
    assert (found.vanished, found.changed, found.left_out) == (0, 0, 0)
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(source.stat().st_mode)


def test_holes_stay_holes(source, target):
    copy_tree(source, target)
    status = (target / "sparse").stat()
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 < 1 << 24


def test_marks_and_owners_that_only_root_can_set(source, target):
    if os.geteuid() != 0:
        pytest.skip("needs root, to set trusted attributes")
    os.truncate(source / "sparse", 0)
    os.setxattr(source / "a", "trusted.overlay.redirect", b"/b")
    link = source / "a" / "link"
    os.setxattr(link, "trusted.overlay.origin", b"x", follow_symlinks=False)
    os.chown(source / "a" / "file", 1234, 2345)
    os.chown(source / "a" / "link", 1234, 2345, follow_symlinks=False)
    copy_tree(source, target)
    assert dump(target) == dump(source)


def test_no_file_keeps_set_id_bits_or_capabilities(source, target):
    file = source / "a" / "file"
    file.chmod(0o6755)
    if os.geteuid() == 0:
        can = struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0)
        os.setxattr(file, "security.capability", can)
    assert file.stat().st_mode & 0o6000 == 0o6000
    copy_tree(source, target)
    assert stat.S_IMODE((target / "a" / "file").stat().st_mode) == 0o755
    assert attributes(target / "a" / "file") == {"user.note": b"blue\0"}


def test_copy_as_files_belongs_to_who_made_it(source, target):
    os.truncate(source / "sparse", 0)
    (source / "a" / "file").chmod(0o4000 if os.geteuid() == 0 else 0o4400)
    (source / "a" / "b").chmod(0o2500)
    if os.geteuid() == 0:
        os.mknod(source / "device", stat.S_IFBLK | 0o666, os.makedev(240, 0))
        os.chown(source / "a" / "file", 1234, 2345)
    found = copy_tree(source, target, as_files=True)
    assert found.left_out == (3 if os.geteuid() == 0 else 2)
    modes = {path: entry for path, entry in dump(target).items() if path != "sparse"}
    assert sorted(modes) == ["a", "a/b", "a/b/again", "a/file", "a/link", "caf\udce9\n"]
    assert stat.S_IMODE(modes["a/file"][0]) == 0o600
    assert stat.S_IMODE(modes["a/b"][0]) == 0o700
    assert {entry[1] for entry in modes.values()} == {os.geteuid()}
    assert modes["a"][-1] == {}
    assert modes["a/file"][-1] == {"user.note": b"blue\0"}


def test_deep_trees_are_copied(tmp_path):
    depth, name = 30, "d" * 200
    root = tmp_path / "source"
    root.mkdir()
    handle = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    with os.fdopen(os.open("end", os.O_WRONLY | os.O_CREAT, dir_fd=handle), "wb") as stream:
        stream.write(b"x")
    os.close(handle)
    try:
        found = copy_tree(root, tmp_path / "target")
        assert (found.entries, found.left_out) == (depth + 1, 0)
    finally:
        for name in ("source", "target"):
            remove_tree(tmp_path / name, within=tmp_path)


def test_what_modes_close_is_copied_for_an_ordinary_user(open_place):
    def check():
        source = fill(open_place / "source")
        os.truncate(source / "sparse", 0)
        (source / "a" / "b").chmod(0o2000)
        (source / "closed").mkdir()
        (source / "closed" / "file").write_text("x")
        (source / "closed" / "file").chmod(0)
        (source / "closed").chmod(0)
        # The control: this process cannot.
        with pytest.raises(PermissionError):
            tree_copy.copy_readable(source, open_place / "control", as_files=False)
        for as_files in (False, True):
            target = open_place / f"target-{as_files}"
            found = copy_tree(source, target, as_files=as_files)
            assert found.vanished == 0
            if as_files:
                assert (target / "closed" / "file").read_text() == "x"
                assert stat.S_IMODE((target / "a" / "b").stat().st_mode) == 0o700
                continue
            assert stat.S_IMODE((target / "closed").stat().st_mode) == 0
            (target / "closed").chmod(0o700)
            assert stat.S_IMODE((target / "closed" / "file").stat().st_mode) == 0
            assert (target / "a" / "b").stat().st_uid == os.geteuid()
        (source / "closed").chmod(0o700)
        for place in (source, target, open_place / "target-False", open_place / "control"):
            (place / "a" / "b").chmod(0o700)

    in_child(check, user=NOBODY, interpreter=True)


# While it is being written


def held(root):
    """The contents of all files in a tree."""
    return {entry[5] for entry in dump(root).values() if stat.S_ISREG(entry[0])}


def test_exchanged_directories_lead_nowhere(tmp_path):
    """F1: a directory is exchanged with a link while it is copied; `cp -a` is the control."""
    outside = tmp_path / "outside"
    outside.mkdir()
    source = tmp_path / "source"
    (source / "p").mkdir(parents=True)
    for number in range(20):
        (source / "p" / f"b{number}").write_bytes(b"mine")
        (outside / f"b{number}").write_bytes(b"secret")
    os.symlink(outside, source / "q")
    seen: set[bytes] = set()
    control: set[bytes] = set()
    vanished = 0
    with exchanging(source / "p", source / "q"):
        while b"secret" not in control or not vanished or not seen:
            shutil.rmtree(tmp_path / "target", ignore_errors=True)
            found = copy_tree(source, tmp_path / "target")
            vanished += found.vanished
            seen |= held(tmp_path / "target")
            shutil.rmtree(tmp_path / "control", ignore_errors=True)
            subprocess.run(
                ["cp", "-a", f"{source}/.", tmp_path / "control"],
                check=False, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            control |= held(tmp_path / "control")
    assert seen == {b"mine"}


def test_what_is_written_meanwhile_is_reported(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    stop = threading.Event()

    def write():
        with open(source / "busy", "wb", buffering=0) as stream:
            while not stop.is_set():
                stream.write(b"x" * 4096)
                if stream.tell() > 1 << 20:
                    stream.seek(0)
                    stream.truncate()

    def come_and_go():
        while not stop.is_set():
            (source / "here").mkdir()
            (source / "here" / "file").touch()
            shutil.rmtree(source / "here")

    threads = [threading.Thread(target=work) for work in (write, come_and_go)]
    for thread in threads:
        thread.start()
    try:
        changed = vanished = 0
        while not (changed and vanished):
            found = copy_tree(source, tmp_path / "target")
            changed += found.changed
            vanished += found.vanished
            assert bool(found.differences) == bool(found.changed or found.vanished)
            shutil.rmtree(tmp_path / "target")
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# What a capsule changed


@pytest.fixture
def layers(tmp_path):
    base, upper = tmp_path / "base", tmp_path / "upper"
    (base / "w" / "old").mkdir(parents=True)
    (base / "w" / "old" / "file").write_text("base")
    (base / "w" / "gone").write_text("base")
    (upper / "w" / "new").mkdir(parents=True)
    os.setxattr(upper / "w" / "new", "user.overlay.redirect", b"old")
    for name in ("old", "gone"):
        os.mknod(upper / "w" / name, stat.S_IFCHR, os.makedev(0, 0))
    (upper / "w" / "tool").write_text("mine")
    (upper / "w" / "tool").chmod(0o6755)
    os.symlink("/etc/passwd", upper / "w" / "link")
    os.mkfifo(upper / "w" / "fifo")
    return [base, upper]


def test_changes_are_set_aside_as_files(layers, target):
    save_changed_files(layers, own=1, namespace="user", target=target)
    found = dump(target / "changes")
    assert sorted(found) == ["w", "w/link", "w/new", "w/new/file", "w/tool"]
    assert (target / "changes/w/new/file").read_text() == "base"
    assert (target / "changes/w/tool").read_text() == "mine"
    assert stat.S_IMODE(found["w/tool"][0]) == 0o755
    assert os.readlink(target / "changes/w/link") == "/etc/passwd"
    assert (target / "removed.txt").read_text() == '"w/gone"\n"w/old"\n'


def test_layers_that_cannot_be_merged_are_set_aside_one_by_one(layers, target):
    os.setxattr(layers[1] / "w" / "new", "user.overlay.novel", b"y")
    with MergedTree(layers, own=1, namespace="user", at="") as tree, pytest.raises(StateError):
        tree.changes()
    save_changed_files(layers, own=1, namespace="user", target=target)
    assert sorted(dump(target)) == [
        "layers", "layers/0", "layers/0/w", "layers/0/w/link", "layers/0/w/new", "layers/0/w/tool",
    ]  # fmt: skip
    assert stat.S_IMODE((target / "layers/0/w/tool").stat().st_mode) == 0o755


def test_closed_changes_are_set_aside_for_an_ordinary_user(open_place):
    def check():
        base, upper = open_place / "base", open_place / "upper"
        base.mkdir()
        (upper / "d").mkdir(parents=True)
        (upper / "d" / "file").write_text("mine")
        (upper / "d" / "file").chmod(0)
        (upper / "d").chmod(0)
        save_changed_files([base, upper], own=1, namespace="user", target=open_place / "aside")
        assert (open_place / "aside/changes/d/file").read_text() == "mine"
        (upper / "d").chmod(0o700)

    in_child(check, user=NOBODY, interpreter=True)
