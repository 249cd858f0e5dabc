"""Limits at level `sandbox`: each is enforced and named, and a run beyond its limits harms no
other.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from persons import as_both, require

MEGABYTE = 1 << 20
KILLED = 128 + signal.SIGKILL

EATS = "b = bytearray(b'x') * (512 << 20); print('eaten')"
EATS_TOGETHER = """
import os, time
for _ in range(12):
    if os.fork() == 0:
        b = bytearray(b'x') * (16 << 20)
        time.sleep(600)
time.sleep(600)
"""
FORKS = """
import os, time
count = 0
try:
    for count in range(200):
        if os.fork() == 0:
            time.sleep(600)
except OSError as error:
    print("refused after", count, error.strerror, flush=True)
    os._exit(3)
"""
FILLS = "i=0; while :; do i=$((i+1)); head -c 4M /dev/zero > fill-$i; done"


def make(person, name, **limits):
    person.atoll(
        "new",
        name,
        *[word for key, value in limits.items() for word in ("--limit", f"{key}={value}")],
    )


def ended_by(person, name, reason, *argv, code=KILLED):
    """Runs a command that must end for this reason; what it said."""
    done = person.atoll("run", name, "--", *argv, check=False)
    assert f"{name}.{len(person.answer('show', name)['runs'])}: {reason}" in done.stderr
    assert person.outcome(name)["reason"] == reason
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), done
    return done.stdout


# Each limit.


@as_both
def test_memory_of_one_process(person):
    require("python3")
    make(person, "x", memory="100m")
    done = person.atoll("run", "x", "--", "python3", "-c", EATS, check=False)
    assert "eaten" not in done.stdout
    if "MemoryError" not in done.stderr:
        assert (done.returncode, person.outcome("x")["reason"]) == (KILLED, "oom")
    assert person.sh("x", "echo alive") == "alive\n"


@pytest.mark.parametrize("person", ["user"], indirect=True)
def test_memory_of_many_processes(person):
    """Nobody makes groups for an ordinary user: what is used is looked at, and ended."""
    require("python3")
    make(person, "probe")
    person.sh("probe", "true")
    if person.groups():
        pytest.skip("this user can make groups")
    make(person, "x", memory="100m")
    ended_by(person, "x", "oom", "python3", "-c", EATS_TOGETHER)


@as_both
def test_pids(person):
    require("python3")
    make(person, "x", pids=40)
    done = person.atoll("run", "x", "--", "python3", "-c", FORKS, check=False)
    outcome = person.outcome("x")
    if outcome["reason"] != "pids":
        assert done.returncode == 3, done
        assert 10 < int(done.stdout.split()[2]) <= 40
    assert person.sh("x", "echo alive") == "alive\n"


@as_both
def test_output(person):
    make(person, "x", output="100k")
    said = ended_by(person, "x", "output", "yes")
    assert len(said) < 10 * MEGABYTE
    assert len(person.sh("x", "head -c 90000 /dev/zero")) == 90_000


@as_both
def test_idle(person):
    make(person, "x", idle="2s")
    ended_by(person, "x", "idle", "sh", "-c", "echo said; sleep 600", code=124)
    assert person.sh("x", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done").split()[-1] == "6"


def test_time(person):
    make(person, "x", time="1s")
    ended_by(person, "x", "timeout", "sh", "-c", "while :; do echo; sleep 0.1; done", code=124)
    assert person.atoll("run", "x", "--timeout", "60s", "--", "sleep", "1.5").returncode == 0


@as_both
def test_disk_and_tidying_up(person):
    make(person, "x", disk="40m")
    ended_by(person, "x", "disk", "sh", "-c", FILLS)
    # Too much is there already: whoever comes to tidy up is let, whoever fills on is not.
    assert person.sh("x", "sleep 1; rm -f fill-*; sleep 1; echo tidy") == "tidy\n"
    person.sh("x", "head -c 8M /dev/zero > fill; sleep 1; rm fill")


UNLINKED = """
import os, time
held = []
for number in range(12):
    held.append(os.open(f"{os.environ.get('PLACE', '.')}/u{number}", os.O_RDWR | os.O_CREAT))
    os.unlink(f"{os.environ.get('PLACE', '.')}/u{number}")
    os.posix_fallocate(held[-1], 0, 40 << 20)
print("held", flush=True)
time.sleep(600)
"""


@as_both
@pytest.mark.parametrize("place", [".", "/tmp"])
def test_disk_in_files_without_a_name(person, place):
    require("python3")
    make(person, "x", disk="50m")
    held = ("env", f"PLACE={place}", "python3", "-c", UNLINKED)
    ended_by(person, "x", "disk", *held)
    # Control: with room for them they are no reason to end.
    make(person, "y", disk="1g", idle="3s")
    assert "held" in ended_by(person, "y", "idle", *held, code=124)


MEMFDS = """
import os, time
held = [os.memfd_create("m") for _ in range(8)]
for handle in held:
    os.posix_fallocate(handle, 0, 20 << 20)
time.sleep(600)
"""


@as_both
def test_memory_in_files_without_a_name(person):
    """By the kernel where it counts for us, else by looking at what processes hold."""
    require("python3")
    make(person, "x", memory="100m")
    ended_by(person, "x", "oom", "python3", "-c", MEMFDS)
    # Control: with room for them they are no reason to end.
    make(person, "y", memory="400m", idle="3s")
    ended_by(person, "y", "idle", "python3", "-c", MEMFDS, code=124)


def test_disk_by_one_file(person):
    """The kernel may end it before anyone looks."""
    make(person, "x", disk="16m")
    fill = ("dd", "if=/dev/zero", "of=big", "bs=1M", "count=64")
    ended_by(person, "x", "disk", *fill, code=(128 + signal.SIGXFSZ, KILLED))


@as_both
def test_files(person):
    require("python3")
    make(person, "x", files=64)
    script = "import sys; held = [open('/dev/null') for _ in range(int(sys.argv[1]))]"
    assert person.atoll("run", "x", "--", "python3", "-c", script, "40").returncode == 0
    done = person.atoll("run", "x", "--", "python3", "-c", script, "70", check=False)
    assert done.returncode == 1
    assert "Too many open files" in done.stderr


def test_limits_in_the_project_file(person):
    person.write({"atoll.toml": '[capsule.limits]\noutput = "10k"\nfiles = 64\n'})
    make(person, "x", files=50)
    assert person.sh("x", "ulimit -n") == "50\n"
    ended_by(person, "x", "output", "yes")


# Those who break them, and their neighbours.

TREE = ":(){ :|:& };:"
BOMBS = {
    "fork": "while :; do sh -c 'sleep 600' & done",
    "memory": "python3 -c 'l = []\nwhile True: l.append(bytearray(b\"x\") * (8 << 20))'",
    "shared memory": "cat /dev/zero > /dev/shm/bomb; sleep 600",
    "run": "cat /dev/zero > /run/bomb; sleep 600",
    "disk": FILLS,
    "output": "exec yes",
}
LIMITS = {"memory": "300m", "pids": 100, "disk": "64m", "output": "20m", "idle": "20s"}


@as_both
def test_bombs_harm_no_other(person):
    require("python3")
    make(person, "bomber", **LIMITS)
    person.atoll("new", "other")
    for script in BOMBS.values():
        person.atoll("run", "-d", "bomber", "--", "bash", "-c", script)
    for number in range(3):
        said = person.sh("other", f"echo {number} > f; git add f; git commit -qm {number}; cat f")
        assert said == f"{number}\n"
    if person.who == "root":
        assert person.groups(), "a host on which no groups can be made"
    runs = {run["id"]: run for run in person.answer("show", "bomber")["runs"]}
    assert len(runs) == len(BOMBS)
    person.atoll("stop", "bomber", "--grace", "0")
    assert person.answer("ps", "bomber") == []
    assert person.sh("bomber", "rm -f fill-* /run/bomb; echo well") == "well\n"
    person.atoll("rm", "bomber", "other", "--force")
    person.atoll("gc")
    assert person.groups() == []


def test_fork_bomb_can_be_stopped_paused_and_removed(person):
    make(person, "x", pids=100)
    person.atoll("run", "-d", "x", "--", "bash", "-c", f"{TREE}; sleep 600")
    person.atoll("pause", "x", check=False)
    person.atoll("rm", "x", "--force")
    assert person.groups() == []


@as_both
def test_temporary_filesystems_are_small(person):
    make(person, "x")
    for place in ("/dev/shm", "/run"):
        full = f"df -k --output=size {place} | tail -1"
        assert int(person.sh("x", full)) <= 256 * 1024, place
        script = f"cat /dev/zero > {place}/bomb || true; echo; ls -s {place}"
        done = person.atoll("run", "x", "--", "sh", "-c", script, check=False)
        assert "No space left" in done.stderr or "ermission denied" in done.stderr, done
    # Shared memory is each run's own; nothing of it stays.
    assert person.sh("x", "ls /dev/shm; rm -f /run/bomb") == ""


GOES_ON = f"""
import os, sys
child = os.fork()
if child == 0:
    {EATS}
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(3 if code == -9 else 4)
"""


def test_command_that_goes_on_without_a_child(person):
    """It ends by itself, and the kernel's kill is reported."""
    require("python3")
    make(person, "x", memory="100m")
    done = person.atoll("run", "x", "--", "python3", "-c", GOES_ON, check=False)
    outcome = person.outcome("x")
    if outcome["reason"] == "oom":
        pytest.skip("here the kernel kills all of the capsule together")
    if done.returncode == 4:
        pytest.skip("no groups can be made here")
    told = "the capsule reached its memory limit meanwhile, and the kernel killed a process in it"
    assert (outcome["reason"], outcome["exit_code"], outcome["message"]) == ("exited", 3, told)
    assert f"x.1: {told}" in done.stderr
    # That was then: the next run is not told of it.
    person.sh("x", "true")
    assert person.outcome("x")["message"] is None


@as_both
def test_what_enforces_each_limit_is_reported(person):
    """By what was made for a capsule, and by what its processes find."""
    make(person, "x", memory="200m", cpus="1", pids="50", files="100")
    person.sh("x", "test $(ulimit -Hn) = 100")
    groups = person.groups()
    limits = person.answer("show", "x")["limits"]
    doctor = next(f for f in person.answer("doctor") if f["name"] == "limits")["detail"]
    _, *parts = re.split(r"(?:^|; )(enforced|watched|not enforced): ", doctor)
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    for name, file, otherwise in (
        ("memory_bytes", "memory.*", "watched"), ("cpus", "cpu.*", "not enforced"),
        ("pids", "pids.max", "watched"),
    ):  # fmt: skip
        is_limited = any(list(Path(group).glob(file)) for group in groups)
        wanted = "enforced" if is_limited else otherwise
        assert limits[name]["held"] == wanted
        assert name.removesuffix("_bytes") in told[wanted]
        assert f"{name.removesuffix('_bytes')} " in person.atoll("show", "x").stdout
        is_partial = (name, wanted) == ("memory_bytes", "watched")
        assert bool(limits[name]["uncounted"]) == is_partial
        for left in limits[name]["uncounted"]:
            assert left in told[wanted]
    if not groups:
        assert "cpus 1 (not enforced)" in person.atoll("show", "x").stdout


@as_both
def test_open_files_are_shown_as_they_are_in_force(person):
    """The default is more than many hosts permit."""

    def confine():
        resource.setrlimit(resource.RLIMIT_NOFILE, (3000, 3000))

    person.atoll("new", "x", confined=confine)
    done = person.atoll("run", "x", "--", "sh", "-c", "ulimit -Hn", confined=confine)
    # A quarter stays for those who start runs: `process_limits.files_limit`.
    assert done.stdout == "2250\n"
    # Asked by a process that could have more: what counts is who starts the runs.
    assert person.answer("show", "x")["limits"]["files"]["value"] == 2250
    assert "files 2250 (enforced)" in person.atoll("show", "x").stdout


@as_both
def test_project_file_raises_no_limit_by_itself(person):
    person.write({"atoll.toml": '[capsule.limits]\nmemory = "900T"\n'})
    done = person.atoll("new", "x", check=False)
    assert (done.returncode, "capsule.limits.memory = 900T" in done.stderr) == (4, True), done
    # Control: what the owner approved or typed holds, and the excess is reported.
    done = person.atoll("new", "y", "--limit", "memory=800T")
    assert "`memory=800T`" in done.stderr


# Groups of homes that are gone


def collect(person):
    """A sweep from another home of the same person."""
    person.atoll("gc", env={"ATOLL_HOME": str(person.place / "another-home")})


def test_groups_of_a_home_that_was_removed_by_hand_are_swept(person):
    person.atoll("new", "x")
    person.sh("x", "true")
    groups = person.groups()
    if not groups:
        pytest.skip("no groups can be made here")
    collect(person)
    assert person.groups() == groups, "of a home that is there"
    person.end_view("x")
    held, away = groups[0], person.place / "away"
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        Path(held, "cgroup.procs").write_text(str(sleeper.pid))
        person.home.rename(away)
        collect(person)
        # Whoever is in there is nobody's to end: nothing is known of them.
        assert person.groups() == [held]
        assert sleeper.poll() is None
        sleeper.kill()
    collect(person)
    assert person.groups() == []
    away.rename(person.home)
    assert person.sh("x", "echo back") == "back\n"


def test_groups_that_say_nothing_of_their_home_stay(person):
    person.atoll("new", "x")
    person.sh("x", "true")
    groups = person.groups()
    if not groups:
        pytest.skip("no groups can be made here")
    person.end_view("x")
    namespace = Path("/proc/self/ns/mnt").stat().st_ino
    elsewhere, relative = f"{namespace + 1} {person.home}", f"{namespace} home"
    away = person.place / "away"
    person.home.rename(away)
    for value in (elsewhere, relative, "", str(person.home), None):
        for group in groups:
            os.removexattr(group, "user.atoll.home")
            if value is not None:
                os.setxattr(group, "user.atoll.home", value.encode())
        collect(person)
        assert person.groups() == groups, value
        for group in groups:
            os.setxattr(group, "user.atoll.home", b"x")
    away.rename(person.home)
