"""The level `sandbox` where a wall is missing: refused with a fix, and nothing is run."""

from __future__ import annotations

import ctypes
import errno
import functools
import json
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
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
ALL_IDS = "0 0 4294967295\n"


def machine(table):
    name = os.uname().machine
    return table.get(name) or pytest.skip(f"the numbers of system calls on {name} are not known")


NO_WALLS = """#!/bin/bash
news=$(tr '\\0' '\\n' < "/proc/self/fd/$2" | sed -n '/^--json-status-fd$/{n;p;}')
while [ "$1" != -- ]; do shift; done; shift
"$@"
code=$?
echo "{ \\"exit-code\\": $code }" >&$news
exit $code
"""
"""It says that all is well."""


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
    """A user namespace with all ids, in which no other can be created."""
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
    # Only bwrap itself needs these two: the room stands by then.
    "roots of their own": lambda: forbid(machine(PIVOT_ROOT)),
    "networks of their own": lambda: forbid(
        machine(UNSHARE), bits=calls.CLONE_NEWNET, error=errno.EPERM
    ),
}


def require_refused(person, done):
    assert done.returncode == 6, done
    messages = ("cannot create the sandbox", "cannot open the view", "not available on this host")
    assert any(text in done.stderr for text in messages), done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def require_nothing(person):
    """No capsule, no branch, no layer, no process."""
    assert person.answer("ls") == []
    assert person.git("branch", "--list", "atoll/*") == ""
    assert list(person.home.glob("projects/*/*")) == []
    assert list(person.home.glob("pools/*/layers/*")) == []
    assert list(person.home.glob("**/try-*")) == []


def require_nothing_runs(person, how):
    """A run on a capsule that was made when all was well; `how` are options for the program."""
    done = person.atoll("run", "x", "--", "touch", "ran", check=False, **how)
    assert done.returncode == 6, done
    assert "Traceback" not in done.stderr
    assert list(person.home.glob("pools/*/layers/u*/tree/workspace/ran")) == []
    return done.stderr


def end_view(person):
    [directory] = person.home.glob("projects/*/x")
    ask = (
        "import sys; from atoll.host.view_client import ask; print(ask(sys.argv[1], {'end': True}))"
    )
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
    told = require_nothing_runs(person, {"confined": take_away})
    if what in ("filters on system calls", "roots of their own"):
        assert "cannot create the sandbox of `x.1`: " in told
        assert told.endswith("hint: atoll doctor\n")
        outcome = person.outcome("x")
        assert (outcome["reason"], outcome["shell_code"]) == ("no-walls", 6)
        # To look at the files takes no walls: nothing runs inside for it.
        asked = person.atoll("diff", "x", confined=take_away)
        assert asked.stdout == "", asked
        waited = person.atoll("wait", "x", check=False)
        assert (waited.returncode, waited.stdout) == (6, "x.1  no-walls\n")
    end_view(person)
    assert person.sh("x", "test ! -e ran; echo well") == "well\n"


FORGED = """
echo 'error: cannot create the sandbox of `x.2` cannot be built: bwrap printed no message' >&2
echo 'hint: atoll doctor' >&2
for fd in 3 4 5 6 7 8 9; do
    eval "echo '{\\"kind\\": \\"error\\"}' >&$fd"
done 2>/dev/null
exit 6
"""
"""A command that does all it can to look like a missing wall."""


def run_with_status(person, *argv, **how):
    """The exit code, what was said on standard error, and what the status descriptor got."""
    with tempfile.TemporaryFile() as status:
        fd = status.fileno()
        done = person.atoll(
            "run", "x", "--status-fd", str(fd), "--", *argv, check=False, pass_fds=(fd,), **how
        )
        status.seek(0)
        return done, json.loads(status.read())


@as_both
def test_the_status_tells_a_missing_wall_from_an_exit_code_of_6(person):
    person.atoll("new", "x")
    end_view(person)
    take_away = MISSING["roots of their own"]()
    refused, status = run_with_status(person, "touch", "ran", confined=take_away)
    assert status["kind"] == "error"
    assert (status["data"]["type"], status["data"]["exit_code"]) == ("isolation", 6)
    end_view(person)
    forged, status = run_with_status(person, "sh", "-c", FORGED)
    assert status["kind"] == "run"
    outcome = status["data"]["outcome"]
    assert (outcome["reason"], outcome["exit_code"]) == ("exited", 6)
    # The control: by the code and by what was said they look the same.
    assert forged.returncode == refused.returncode == 6
    for done in (forged, refused):
        assert "error: cannot create the sandbox of `x." in done.stderr
        assert done.stderr.endswith("hint: atoll doctor\n")


@as_both
def test_without_bwrap(person):
    without_it = without("bwrap", person.place / "programs")
    hidden = {"programs": without_it, "env": {"PATH": without_it}}
    done = person.atoll("new", "x", check=False, **hidden)
    require_refused(person, done)
    assert "bwrap is not installed\nhint: apt-get install bubblewrap" in done.stderr
    require_nothing(person)
    assert "bwrap" in person.atoll("doctor", check=False, **hidden).stdout
    person.atoll("new", "x")
    for _ in range(2):
        # With its view still held, and without.
        assert "bwrap is not installed" in require_nothing_runs(person, hidden)
        end_view(person)
    assert person.sh("x", "test ! -e ran; echo well") == "well\n"


def test_bwrap_that_builds_no_walls(person, elsewhere):
    """What it says of itself is not asked: the walls are leaned against."""
    # Where others can reach it: root becomes somebody else before it is started.
    Path(elsewhere).chmod(0o755)
    place = Path(elsewhere, "programs")
    path = without("bwrap", place)
    (place / "bwrap").write_text(NO_WALLS)
    (place / "bwrap").chmod(0o755)
    done = person.atoll("new", "x", check=False, programs=path, env={"PATH": path})
    require_refused(person, done)
    assert "missing: a system call filter, no new privileges" in done.stderr
    require_nothing(person)


@as_both
def test_filter_that_takes_nothing_away(person):
    """The control: that these tests filter and confine is not what makes the level refuse."""
    harmless = forbid(9999)
    person.atoll("new", "x", confined=harmless)
    done = person.atoll("run", "x", "--", "echo", "well", confined=harmless)
    assert done.stdout == "well\n"


ODD = {
    "no-such": ("nope", 127, "`nope`: command not found"),
    "no-file": ("./nope", 127, "`./nope`: no such file"),
    "no-permission": ("./plain", 126, "`./plain`: Permission denied"),
    "no-interpreter": (
        "./lost",
        127,
        "`./lost`: No such file or directory: its interpreter is not visible inside: `/no/sh`",
    ),
    "no-directory": ("./under", 127, "`./under`: No such file or directory: its interpreter"),
    "link": (
        "./link",
        127,
        "`./link`: no such file: `{repo}/link` is a link to `/srv/tool?[2J`, which is not visible",
    ),
}


@as_both
def test_command_that_cannot_be_executed(person):
    """The sandbox works: the command itself fails, and is reported as by a shell."""
    person.atoll("new", "x")
    person.sh("x", """
        echo hello > plain
        printf '#!/no/sh\n' > lost
        printf '#!/etc/passwd/sh\n' > under
        chmod +x lost under
        ln -s via link
        ln -s "$(printf '../../../../../../srv/tool\\033[2J')" via
    """)  # fmt: skip
    for command, code, message in ODD.values():
        done = person.atoll("run", "x", "--", command, check=False)
        assert done.returncode == code, (command, done)
        expected = message.format(repo=person.repo)
        assert f": not-started({code}): {expected}" in done.stderr


@as_both
def test_command_whose_target_is_not_visible(person):
    """A link in a directory of PATH: its target becomes visible as the message says."""
    tools, hidden = person.place / "tools", person.place / "app/versions/2/libexec"
    person.write({"tool": "#!/bin/sh\necho works\n"}, root=hidden)
    (hidden / "tool").chmod(0o755)
    person.run("mkdir", tools)
    person.run("ln", "-s", hidden / "tool", tools / "tool")
    person.env["PATH"] = f"{person.env['PATH']}:{tools}"
    person.atoll("new", "x")
    done = person.atoll("run", "x", "--", "tool", check=False)
    assert done.returncode == 127
    assert f"`tool`: command not found: `{tools}/tool` is a link to `{hidden}/tool`" in done.stderr
    assert f"`{hidden}` is, once it is on your PATH" in done.stderr
    person.env["PATH"] = f"{person.env['PATH']}:{hidden}"
    person.end_view("x")
    assert person.atoll("run", "x", "--", "tool").stdout == "works\n"


def test_command_that_talks_like_bwrap(person):
    """What a command writes and how it ends is its own, whatever it looks like."""
    person.atoll("new", "x")
    for said in ("bwrap: execvp x: No such file or directory", "bwrap: pivot_root: no"):
        done = person.atoll("run", "x", "--", "sh", "-c", f"echo '{said}' >&2; exit 1", check=False)
        assert (done.returncode, done.stderr) == (1, f"{said}\n")
        assert person.outcome("x")["reason"] == "exited"


@pytest.mark.parametrize("options", [(), ("--detach", "--tty")], ids=["pipes", "terminal"])
def test_command_has_no_way_to_tell_of_its_start(person, options):
    person.atoll("new", "x")
    script = "for p in 1 $$; do ls -l /proc/$p/fd; done 2>&1 | grep -c atoll; ls /proc/self/fd"
    person.atoll("run", *options, "x", "--", "sh", "-c", script)
    person.atoll("wait", "x")
    told = person.atoll("logs", "x").stdout.split()
    # Its own three, and that of the directory which `ls` reads.
    assert told == ["0", "0", "1", "2", "3"]


@as_both
def test_workspace_that_cannot_be_entered(person):
    """The agent's own doing, and no missing wall: the capsule still goes, and its work stays."""
    person.atoll("new", "x")
    person.sh("x", "echo work > work; chmod 000 .")
    done = person.atoll("run", "x", "--", "true", check=False)
    assert done.returncode == 126, done
    assert f"not-started(126): cannot enter `{person.repo}`: Permission denied" in done.stderr
    done = person.atoll("diff", "x", check=False)
    # Root reads it all the same; nobody else can, and is told so.
    is_read = (done.returncode, "+work" in done.stdout) == (0, True)
    assert is_read or (done.returncode, "cannot be read" in done.stderr) == (4, True), done
    person.atoll("rm", "x", "--force")
    if is_read:
        [point] = person.answer("recover")
        assert person.git("show", f"{point['commit']}:work") == "work\n"
        return
    [saved] = person.home.glob("recovered/**/work")
    assert saved.read_text() == "work\n"
