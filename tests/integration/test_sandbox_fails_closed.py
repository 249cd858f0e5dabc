"""The level `sandbox` where a wall is missing: refused with the cure, and nothing is run."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import struct
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from atoll.keeper import calls
from persons import as_both

PRCTL = {"x86_64": 157, "aarch64": 167}
UNSHARE = {"x86_64": 272, "aarch64": 97}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
ALL_IDS = "0 0 4294967295\n"


def machine(table):
    name = os.uname().machine
    return table.get(name) or pytest.skip(f"the numbers of system calls on {name} are not known")


NO_WALLS = """#!/bin/sh
while [ "$1" != -- ]; do shift; done; shift
cd "$(mktemp -d)"; exec "$@"
"""


# Ways to take something away from a process and all that come after it.


def forbid(number, *, bits=0, value=None, error=errno.ENOSYS):
    """A system call fails as where there is none; only with these bits, or this value, at first."""
    refused = struct.pack("HBBI", RETURN, 0, 0, ERRNO | error)
    fine = struct.pack("HBBI", RETURN, 0, 0, ALLOW)
    rules = [struct.pack("HBBI", LOAD, 0, 0, 0)]
    if value is None and not bits:
        rules += [struct.pack("HBBI", EQUAL, 0, 1, number), refused, fine]
    else:
        rules += [
            struct.pack("HBBI", EQUAL, 0, 3, number),
            struct.pack("HBBI", LOAD, 0, 0, 16),
            struct.pack("HBBI", ANY_BIT if bits else EQUAL, 0, 1, bits or value),
            refused,
            fine,
        ]
    program = ctypes.create_string_buffer(b"".join(rules))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(program))
    )

    def apply():
        libc = ctypes.CDLL(None, use_errno=True)
        words = [ctypes.c_ulong(word) for word in (1, 0, 0, 0)]
        assert libc.prctl(PR_SET_NO_NEW_PRIVS, *words) == 0
        filtered = (ctypes.c_ulong(2), ctypes.byref(header), *words[1:3])
        assert libc.prctl(PR_SET_SECCOMP, *filtered) == 0
        assert program

    return apply


@functools.cache
def barren_namespace():
    """A user namespace with all ids, in which nobody can make another."""
    reader, writer = os.pipe()
    go_read, go_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            calls.unshare(calls.CLONE_NEWUSER)
            os.write(writer, b".")
            os.read(go_read, 1)
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
            os.write(writer, b".")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 1) == b"."
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(ALL_IDS)
        os.write(go_write, b".")
        os.close(writer)
        assert os.read(reader, 1) == b"."
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(go_read)
        os.close(go_write)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def no_user_namespaces():
    if os.geteuid() != 0:
        pytest.skip("only root can make a namespace with all ids")
    namespace = barren_namespace()
    return lambda: calls.enter_namespace(namespace)


def without(tool, place):
    """A PATH with every program of this machine but one."""
    place.mkdir()
    place.chmod(0o755)
    for directory in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for path in Path(directory).glob("*"):
            if path.name != tool and not (place / path.name).is_symlink():
                (place / path.name).symlink_to(path)
    return str(place)


MISSING = {
    "user namespaces": no_user_namespaces,
    "mounts that can be changed": lambda: forbid(442),
    "mounts that can be copied": lambda: forbid(428),
    "filters on system calls": lambda: forbid(
        machine(PRCTL), value=PR_SET_SECCOMP, error=errno.EINVAL
    ),
    "networks of their own": lambda: forbid(
        machine(UNSHARE), bits=calls.CLONE_NEWNET, error=errno.EPERM
    ),
}


def require_refused(person, done):
    assert done.returncode == 6, done
    assert "cannot be built" in done.stderr, done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def require_nothing(person):
    """No capsule, no branch, no layer, no process."""
    assert person.answer("ls") == []
    assert person.git("branch", "--list", "atoll/*") == ""
    assert list(person.home.glob("projects/*/*")) == []
    assert list(person.home.glob("pools/*/layers/*")) == []
    assert list(person.home.glob("**/try-*")) == []


def require_nothing_runs(person, how, code=6):
    """A run on a capsule that was made when all was well; `how` are options for the program."""
    done = person.atoll("run", "x", "--", "touch", "ran", check=False, **how)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert list(person.home.glob("pools/*/layers/u*/tree/workspace/ran")) == []
    return done.stderr


def end_view(person):
    [directory] = person.home.glob("projects/*/x")
    ask = "import sys; from atoll.host import views; print(views.ask(sys.argv[1], {'end': True}))"
    person.run(sys.executable, "-c", ask, directory)


@pytest.fixture
def elsewhere():
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as place:
        yield place


@pytest.mark.parametrize("what", MISSING)
@as_both
def test_without(person, what):
    take_away = MISSING[what]()
    done = person.atoll("new", "x", check=False, confined=take_away)
    require_refused(person, done)
    if what == "user namespaces":
        assert "hint: sysctl -w user.max_user_namespaces=15000" in done.stderr
    require_nothing(person)
    # A lower level is there for whoever names it; without namespaces that is a worktree.
    person.atoll("new", "low", "--level", "worktree", confined=take_away)
    person.atoll("rm", "low")
    # What was missing is not held against the machine once it is there, nor the other way round.
    person.atoll("new", "x")
    end_view(person)
    # Only bwrap itself knows of filters, and what it says is the run's own end.
    code = 1 if what.startswith("filters") else 6
    require_nothing_runs(person, {"confined": take_away}, code=code)
    end_view(person)
    assert person.sh("x", "test ! -e ran; echo well") == "well\n"


@as_both
def test_without_bwrap(person):
    hidden = {"PATH": without("bwrap", person.place / "programs")}
    done = person.atoll("new", "x", check=False, env=hidden)
    require_refused(person, done)
    assert "bwrap is not installed\nhint: apt-get install bubblewrap" in done.stderr
    require_nothing(person)
    assert "bwrap" in person.atoll("doctor", check=False, env=hidden).stdout
    person.atoll("new", "x")
    for _ in range(2):
        # With its view still held, and without.
        assert "bwrap is not installed" in require_nothing_runs(person, {"env": hidden})
        end_view(person)
    assert person.sh("x", "test ! -e ran; echo well") == "well\n"


def test_bwrap_that_builds_no_walls(person, elsewhere):
    """What it says of itself is not asked: the walls are leaned against."""
    # Where others can reach it: root becomes somebody else before it is started.
    Path(elsewhere).chmod(0o755)
    place = Path(elsewhere, "programs")
    path = without("bwrap", place)
    (place / "bwrap").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\nexec "$@"\n'
    )
    (place / "bwrap").chmod(0o755)
    done = person.atoll("new", "x", check=False, env={"PATH": path})
    require_refused(person, done)
    assert "missing: a filter on system calls, no new privileges" in done.stderr
    require_nothing(person)


@as_both
def test_filter_that_takes_nothing_away(person):
    """The control: that these tests filter and confine is not what makes the level refuse."""
    harmless = forbid(9999)
    person.atoll("new", "x", confined=harmless)
    done = person.atoll("run", "x", "--", "echo", "well", confined=harmless)
    assert done.stdout == "well\n"
