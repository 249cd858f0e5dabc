"""Room on filesystems, and the reserve."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from atoll.host import disk_space
from atoll.model.errors import DriverError, StateError


def test_a_shortage_is_known_by_its_cause():
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert disk_space.is_shortage(OSError(number, os.strerror(number)))
        translated = StateError("cannot be copied")
        translated.__cause__ = OSError(number, os.strerror(number))
        assert disk_space.is_shortage(translated)
    assert disk_space.is_shortage(DriverError("git: fatal: write error: No space left on device"))
    assert not disk_space.is_shortage(OSError(errno.EACCES, "no"))


def test_a_file_name_does_not_make_a_shortage_by_code():
    named = OSError(errno.EACCES, "Permission denied", "no space left")
    assert disk_space.is_shortage(named)
    assert not disk_space.has_shortage_code(named)
    translated = StateError("cannot be copied")
    translated.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert disk_space.has_shortage_code(translated)


def test_the_reserve_gives_what_a_change_needs(tmp_path):
    reserve = disk_space.Reserve(tmp_path)
    reserve.ensure()
    assert not reserve.release(everything=True, needed_bytes=1)
    assert reserve.release(everything=False, needed_bytes=1 << 62)
    left = {path.name.partition("-")[0] for path in (tmp_path / "reserve").iterdir()}
    assert left == {"second"}
    assert reserve.release(everything=True, needed_bytes=1 << 62)
    assert list((tmp_path / "reserve").iterdir()) == []


def test_a_filesystem_with_room_has_no_shortage(tmp_path):
    assert disk_space.find_shortage(tmp_path / "not" / "there") is None


def test_a_mount_point_holds_the_path(tmp_path):
    mount = disk_space.mount_point(tmp_path / "not" / "there")
    assert os.path.ismount(mount)
    assert mount.stat().st_dev == tmp_path.stat().st_dev
    assert disk_space.mount_point(Path("/proc/self/status")) == Path("/proc")


def test_the_reserve_is_made_once_and_kept_while_there_is_room(tmp_path):
    reserve = disk_space.Reserve(tmp_path)
    reserve.ensure()
    made = {path.name: path.stat().st_ino for path in (tmp_path / "reserve").iterdir()}
    assert len(made) == 2 * disk_space.Reserve.INODES
    blocks = sum(path.stat().st_blocks * 512 for path in (tmp_path / "reserve").iterdir())
    assert blocks >= 2 * disk_space.Reserve.SIZE_BYTES
    reserve.ensure()
    assert not reserve.release(everything=True)
    assert {p.name: p.stat().st_ino for p in (tmp_path / "reserve").iterdir()} == made


def test_a_home_without_a_reserve_has_none_to_release(tmp_path):
    assert not disk_space.Reserve(tmp_path / "missing").release(everything=True)
