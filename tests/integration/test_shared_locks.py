"""Files that a capsule shares with others, or with its owner: locks there delay no process."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from persons import as_user

TRY = """
import errno, fcntl, os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
            print(path, "leased")
        except OSError as error:
            print(path, errno.errorcode[error.errno])
"""
SHARED = """
for objects in $(cut -d" " -f5 /proc/self/mountinfo | grep "/inside/objects$"); do
    find "$objects" -type f
done
"""


def test_a_lease_makes_others_wait(tmp_path):
    """The control: on a plain process of the file's owner."""
    path = tmp_path / "file"
    path.write_text("content")
    holder = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        pytest.skip(f"no leases on the filesystem of {tmp_path}: {error}")
    # Or this process would be told by SIGIO, which ends it.
    fcntl.fcntl(holder, fcntl.F_SETSIG, 23)
    try:
        with pytest.raises(BlockingIOError) as caught:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        assert caught.value.errno == errno.EWOULDBLOCK
    finally:
        os.close(holder)


@as_user
def test_a_capsule_takes_no_lease(person):
    """Neither on a toolchain of the owner's, nor on the history that its project's capsules share,
    nor on a file of its own that the host will read.
    """
    tool = person.place / "tools/bin/hello"
    person.write({"bin/hello": "#!/bin/sh\n"}, root=person.place / "tools")
    env = {"PATH": f"{tool.parent}:{person.env['PATH']}"}
    person.atoll("new", "x", env=env)
    shared = person.atoll("run", "x", "--", "sh", "-c", SHARED, env=env).stdout.split()
    assert shared
    tried = [str(tool), shared[0], "README.md"]
    done = person.atoll("run", "x", "--", "python3", "-c", TRY, *tried, env=env)
    assert done.stdout.splitlines() == [f"{path} EPERM" for path in tried for _ in range(2)]


@as_user
def test_the_locks_of_uv_do_not_exist_inside(person):
    share = person.place / "owner/.local/share/uv"
    for kind in ("tools", "python"):
        person.write({".lock": "", "one/bin/tool": "#!/bin/sh\n"}, root=share / kind)
    person.atoll("new", "x")
    for kind in ("tools", "python"):
        # As a control: what is installed there is seen.
        script = f"test -e {share}/{kind}/one/bin/tool && test ! -e {share}/{kind}/.lock"
        assert person.sh("x", script) == ""
