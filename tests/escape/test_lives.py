"""Nothing of a sandboxed run outlives it, its keeper or its view, and it has no privileges."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.engine.enclosure import views
from atoll.engine.run import runs
from atoll.engine.run.runs import RunSpec
from atoll.host import view_client as holders
from atoll.model.state import Reason
from atoll.testing.remains import find_remains, keepers_of, views_of
from present import present

DAEMON = """
import os, signal, sys, time
for number in range(1, signal.NSIG):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.chdir("/")
            for fd in range(3): os.close(fd)
            time.sleep(1000)
        os._exit(0)
open("started", "w").close()
time.sleep(float(sys.argv[2]))
"""
PYTHON = "/usr/bin/python3"


@pytest.fixture
def marked():
    """`marked(name)`: processes of the machine that have the name on their command line."""

    def find(name):
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if name.encode() in words:
                    found.append(int(entry.name))
        return found

    return find


def holder_of(capsule):
    reply, _ = present(holders.ask(capsule.record.directory, {"ping": True}))
    pid = reply["pid"]
    assert isinstance(pid, int)
    return pid


def start_daemons(capsule, name, wait_for, marked, *, linger_s=1000.0):
    argv = (PYTHON, "-c", DAEMON, name, str(linger_s))
    run = capsule.start(runs.RunSpec(argv=argv, background=True))
    wait_for(lambda: len(marked(name)) >= 20, what="the daemons")
    return run


def test_daemons_end_with_the_run_that_is_stopped(capsule, wait_for, marked):
    """P29."""
    name = f"daemons-{os.getpid()}"
    run = start_daemons(capsule, name, wait_for, marked)
    began = time.monotonic()
    capsule.stop(run, grace_s=0)
    wait_for(lambda: not marked(name), timeout_s=5, what="the end of the daemons")
    assert time.monotonic() - began < 5


def test_daemons_end_with_a_run_that_ends(capsule, wait_for, marked):
    """P29."""
    name = f"daemons-{os.getpid()}"
    start_daemons(capsule, name, wait_for, marked, linger_s=0.5)
    wait_for(lambda: not marked(name), timeout_s=5, what="the end of the daemons")


@pytest.mark.parametrize("victim", ["minder", "holder", "bwrap"])
def test_a_killed_keeper_takes_all_with_it(project, capsule, repo, wait_for, marked, git, victim):
    """P30."""
    name = f"orphans-{os.getpid()}"
    run = start_daemons(capsule, name, wait_for, marked)
    holder = holder_of(capsule)
    if victim == "holder":
        pid = holder
    elif victim == "minder":
        pid = present(present(runs._status(run)).keeper)[0]
    else:
        pid = min(p for p in marked("bwrap") + marked("/usr/bin/bwrap") if is_below(p, holder))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not marked(name), timeout_s=5, what="the end of all")
    capsule.wait(run, timeout_s=10)
    assert capsule.run(["true"]).exit_code == 0
    views.end_view(project.session, capsule.record)
    wait_for(lambda: not views_of(project.session.home), what="the end of all views")
    capsule.remove(force=True)


def is_below(pid, ancestor):
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == ancestor:
            return True
    return False


def sleeping(pids):
    found = []
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/status").read_text()
            if "bwrap" not in text and "State:\tS" in text:
                found.append(pid)
    return found


def test_to_the_kernel_it_is_nobody(capsule, wait_for, marked):
    """P08: never uid 0, no capability, no privilege to gain, for root and for ordinary users."""
    name = f"nobody-{os.getpid()}"
    run = start_daemons(capsule, name, wait_for, marked)
    try:
        # Those that sleep, not those that have started them and are on their way out.
        wait_for(lambda: len(sleeping(marked(name))) > 20, what="all daemons asleep")
        for pid in sleeping(marked(name)):
            text = Path(f"/proc/{pid}/status").read_text()
            facts = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
            uids = {int(uid) for uid in (facts["Uid"] + "\t" + facts["Gid"]).split()}
            assert 0 not in uids
            assert len(uids) == 1
            assert facts["Groups"].strip() in {"", "65534", "65534 65534"} or os.geteuid()
            assert {facts[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {
                "0" * 16
            }
            assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
            for space in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
                ours, theirs = (os.stat(f"/proc/{p}/ns/{space}").st_ino for p in ("self", pid))
                assert ours != theirs, space
    finally:
        capsule.stop(run, grace_s=0)


def test_runs_of_a_capsule_do_not_see_each_other(capsule, wait_for, marked):
    name = f"sibling-{os.getpid()}"
    run = start_daemons(capsule, name, wait_for, marked)
    try:
        said = capsule.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
        assert name.encode() not in said
        assert b"/proc/" in said
    finally:
        capsule.stop(run, grace_s=0)


def counts():
    """What a leak would add to: namespaces of ours, mounts, open descriptors, control groups."""
    listed = subprocess.run(
        ["lsns", "--noheadings", "--output", "NS"], capture_output=True, text=True, check=True
    )
    return {
        "namespaces": len(listed.stdout.split()),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


@pytest.mark.soak
def test_many_rounds_leave_nothing(project, repo, git, wait_for):
    """F10, R21: a hundred starts, ten of which are killed; views built anew among them."""
    capsule = project.new("x")
    capsule.run(["true"])
    session = project.session
    views.end_view(session, capsule.record)
    before, tree = counts()["mounts"], sorted(os.listdir(repo))
    descriptors = counts()["descriptors"]
    for number in range(100):
        if number % 10 == 9:
            run = capsule.start(runs.RunSpec(argv=("sleep", "1000"), background=True))
            os.kill(holder_of(capsule), 9)
            capsule.wait(run, timeout_s=10)
        elif number % 10 == 4:
            assert capsule.run(["true"]).exit_code == 0
            views.end_view(session, capsule.record)
        else:
            assert capsule.run(["true"]).exit_code == 0
    views.end_view(session, capsule.record)
    assert counts()["mounts"] == before
    assert counts()["descriptors"] <= descriptors + 1
    wait_for(lambda: not views_of(session.home), what="the end of all views")
    assert sorted(os.listdir(repo)) == tree
    assert git("status", "--porcelain", "--ignored", cwd=repo) == ""
    # Their records go with the capsule, as for every level.
    capsule.remove(force=True)
    session.forkserver.close()
    wait_for(lambda: not keepers_of(session.home), timeout_s=90, what="the end of all keepers")
    assert find_remains(session.home, repo, refs=["refs/heads/main"]) == []


def test_a_run_that_is_stopped_while_its_walls_are_built_is_asked_first(capsule):
    """Not killed after the time that it has to react: at first there is no process to signal."""
    for _ in range(5):
        run = capsule.start(RunSpec(argv=("sleep", "1000"), background=True))
        capsule.stop()
        outcome = capsule.require_run(run.number).outcome
        assert (outcome.reason, outcome.exit_code) == (Reason.STOPPED, 128 + signal.SIGTERM)
