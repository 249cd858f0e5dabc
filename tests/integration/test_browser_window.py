"""The owner's window of a capsule: a profile of its own on the host, carried through time.

With the real Chromium on a display of the test's own, and with a program in its place that writes
down how it was started.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import webapp
from atoll.keeper import process_tree
from atoll.testing.faults import KILLED
from persons import require

FAKE = """#!/bin/sh
# A browser that keeps one number in its profile, and stays open until it is told to end.
for word; do case $word in --user-data-dir=*) profile=${word#*=} ;; esac; done
printf '%s\\n' "$@" > "$profile/words"
visits=$(($(head -n 1 "$profile/visits" 2>/dev/null || echo 0) + 1))
echo "$visits" > "$profile/visits"
mkdir -p "$profile/Default/Cache" && echo cached > "$profile/Default/Cache/entry"
ln -sfn host-1 "$profile/SingletonLock"
exec 9>"$profile/open"
flock -n 9 || exit 0
trap 'echo closed >> "$profile/visits"; exit 0' TERM
while :; do sleep 0.05 9>&-; done
"""

DYING = """
import sys
from atoll.testing.faults import run_and_kill
run_and_kill(sys.argv[1], sys.argv[2:])
"""


@pytest.fixture
def person(person, tmp_path):
    """With a virtual display, and a fake browser."""
    person.env |= {"ATOLL_DAEMON": "off", "DISPLAY": ":none", "ATOLL_LEVEL": "clone"}
    program = person.place / "chromium-fake"
    program.write_text(FAKE)
    program.chmod(0o755)
    person.env["ATOLL_BROWSER"] = str(program)
    return person


as_user = pytest.mark.parametrize("person", ["user"], indirect=True)


def status(person, name="one"):
    return person.answer("browser", "status", name)


def profile(person, name="one"):
    return Path(status(person, name)["profile"])


def visits(person, name="one"):
    return (profile(person, name) / "visits").read_text().split()


def end(person, name="one"):
    """As an owner does who closes the window."""
    pid = status(person, name)["window"]["pid"]
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while not is_over(pid):
        assert time.monotonic() < deadline, f"{pid} does not end"
        time.sleep(0.02)


def is_over(pid):
    """Whether a process has ended; its parent may be slow to notice."""
    process = process_tree.find_process(pid)
    return process is None or process.is_dead


# How it is started.


@as_user
def test_window_has_a_profile_that_no_process_inside_can_write(person):
    person.atoll("new", "one", "--level", "sandbox")
    # Without the daemon nothing of it has a name on the host.
    done = person.atoll("open", "one", check=False)
    assert done.returncode == 4, done.stderr
    assert "hint: unset ATOLL_DAEMON" in done.stderr
    person.atoll("new", "two")
    person.atoll("open", "two")
    place = profile(person, "two")
    assert place.is_relative_to(person.home / "projects")
    assert place.stat().st_mode & 0o777 == 0o700
    person.sh("one", f"! test -e {place.parent}")
    end(person, "two")


@as_user
def test_window_is_started_with_the_capsules_own_profile(person):
    person.atoll("new", "one")
    told = person.answer("open", "one")
    assert told["url"] == f"http://localhost:{person.answer('show', 'one')['ports']['web']}/"
    words = (profile(person) / "words").read_text().split()
    assert words[-1] == told["url"]
    assert f"--user-data-dir={profile(person)}" in words
    assert {"--no-first-run", "--no-default-browser-check", "--disable-sync"} <= set(words)
    assert not any("no-sandbox" in word or "remote-debugging" in word for word in words)
    assert status(person)["window"]["pid"] == told["pid"]
    second = person.answer("open", "one", "4000")
    assert second["pid"] == told["pid"]
    assert (profile(person) / "words").read_text().split()[-1] == "http://localhost:4000/"
    end(person)
    assert status(person)["window"] is None


@as_user
def test_address_can_be_had_without_a_window(person):
    person.atoll("new", "one")
    assert person.atoll("open", "one", "web", "--print").stdout.startswith("http://localhost:")
    assert status(person) == {"window": None, "profile": None, "inside": None, "endpoint": None}


@as_user
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"DISPLAY": ""}, "there is no display"),
        ({"ATOLL_BROWSER": "/nonexistent/browser"}, "is not a program"),
    ],
)
def test_what_is_missing_is_reported_with_a_hint(person, env, said):
    person.atoll("new", "one")
    done = person.atoll("open", "one", check=False, env=env)
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert "DISPLAY" not in said or "--headless" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is root")
def test_root_gets_the_headless_hint(person):
    person.atoll("new", "one")
    done = person.atoll("open", "one", check=False)
    assert done.returncode == 3, done.stderr
    assert "as root" in done.stderr
    assert "hint: atoll open one --headless" in done.stderr


@as_user
def test_browser_that_fails_is_an_error(person):
    person.atoll("new", "one")
    done = person.atoll("open", "one", check=False, env={"ATOLL_BROWSER": "/usr/bin/false"})
    assert done.returncode == 5, done.stderr
    assert "`/usr/bin/false` ended at once with exit code 1" in done.stderr


@as_user
def test_program_of_the_project_is_not_started_on_the_host(person):
    planted = {"bin/chromium": "#!/bin/sh\ntouch $HOME/planted\n"}
    person.write(planted)
    (person.repo / "bin/chromium").chmod(0o755)
    person.commit("planted")
    person.atoll("new", "one")
    for env in (
        {"ATOLL_BROWSER": "", "PATH": f"{person.repo}/bin:{person.env['PATH']}", "DISPLAY": ""},
        {"ATOLL_BROWSER": f"{person.repo}/bin/chromium"},
    ):
        person.atoll("open", "one", check=False, env=env)
    assert not (person.place / "owner/planted").exists()


@as_user
def test_profile_of_another_browser_is_not_opened(person):
    person.atoll("new", "one")
    person.atoll("open", "one")
    end(person)
    other = person.place / "firefox-fake"
    other.write_text(FAKE)
    other.chmod(0o755)
    done = person.atoll("open", "one", check=False, env={"ATOLL_BROWSER": str(other)})
    assert done.returncode == 4, done.stderr
    assert "hint: ATOLL_BROWSER=chromium, or: atoll browser reset one" in done.stderr


# Time.


@as_user
def test_profile_is_carried_by_snapshot_rollback_and_fork(person):
    person.atoll("new", "one")
    person.atoll("snapshot", "one", "-m", "nothing yet")
    person.atoll("open", "one")
    told = person.atoll("snapshot", "one", "-m", "one visit").stderr
    assert "the window of `one` is open" in told
    assert status(person)["window"] is not None
    person.atoll("open", "one")
    assert visits(person) == ["2"]
    person.atoll("fork", "one", "then", "--at", "2")
    person.atoll("fork", "one", "now")
    assert (visits(person, "then"), visits(person, "now")) == (["1"], ["2"])
    assert not (profile(person, "now") / "SingletonLock").is_symlink()
    assert not (profile(person, "now") / "Default/Cache").exists()
    before = profile(person)
    pid = status(person)["window"]["pid"]
    back = person.answer("rollback", "one", "2")
    # What it wrote until its end belongs to how it was.
    assert status(person)["window"] is None
    assert is_over(pid)
    assert visits(person) == ["1"]
    assert before.joinpath("visits").read_text().split() == ["2", "closed"]
    person.atoll("rollback", "one", str(back["before"]["number"]))
    assert visits(person) == ["2", "closed"]
    person.atoll("rollback", "one", "1")
    assert status(person)["profile"] is None
    assert (visits(person, "then"), visits(person, "now")) == (["1"], ["2"])


@as_user
def test_profile_that_has_not_changed_is_not_copied_again(person):
    person.atoll("new", "one")
    person.atoll("open", "one")
    end(person)
    for _ in range(3):
        person.atoll("snapshot", "one")
    live = profile(person)
    assert len([path for path in live.parent.iterdir() if path.is_dir()]) == 2
    (live / "visits").write_text("9\n")
    person.atoll("snapshot", "one")
    assert len([path for path in live.parent.iterdir() if path.is_dir()]) == 3


@as_user
def test_reset_forgets_what_is_there_and_keeps_what_snapshots_hold(person):
    person.atoll("new", "one")
    person.atoll("open", "one")
    person.atoll("snapshot", "one")
    pid = status(person)["window"]["pid"]
    person.atoll("browser", "reset", "one")
    assert is_over(pid)
    assert status(person)["profile"] is None
    person.atoll("rollback", "one", "1")
    assert visits(person) == ["1"]


@as_user
def test_removal_ends_the_window_and_leaves_nothing(person):
    person.atoll("new", "one")
    person.atoll("open", "one")
    pid, place = status(person)["window"]["pid"], profile(person)
    person.atoll("rm", "one")
    assert is_over(pid)
    assert not place.exists()


@as_user
def test_foreign_process_with_the_windows_number_is_left_alone(person):
    person.atoll("new", "one")
    person.atoll("open", "one")
    end(person)
    note = profile(person).parent / "window.json"
    ready = person.preparation(person.repo)
    with subprocess.Popen(["sleep", "60"], preexec_fn=ready) as other:  # noqa: PLW1509 - no threads
        note.write_text(json.dumps({"pid": other.pid, "start": 1, "program": "chromium"}))
        assert status(person)["window"] is None
        person.atoll("browser", "reset", "one")
        assert other.poll() is None
        other.kill()


@as_user
@pytest.mark.parametrize("step", ["rollback.sealed", "rollback.prepared", "rollback.recorded"])
def test_rollback_that_is_killed_leaves_one_profile_or_the_other(person, step):
    person.atoll("new", "one")
    person.atoll("open", "one")
    end(person)
    person.atoll("snapshot", "one")
    person.atoll("open", "one")
    end(person)
    assert visits(person)[0] == "2"
    done = person.run(sys.executable, "-c", DYING, step, "rollback", "one", check=False)
    assert done.returncode == KILLED, done.stderr
    now = visits(person)[0]
    assert now == ("1" if step == "rollback.recorded" else "2")
    person.atoll("rollback", "one", "1")
    assert visits(person)[0] == "1"
    # The live one, that of the point, and those of how it was before each rollback.
    kept = [path for path in profile(person).parent.iterdir() if path.is_dir()]
    assert len(kept) == (4 if step == "rollback.recorded" else 3)


# The real one.


@pytest.fixture
def display():
    """A display that only this test sees."""
    program = require("Xvfb")
    reader, writer = os.pipe()
    words = [program, "-displayfd", str(writer), "-nolisten", "tcp", "-ac"]
    with subprocess.Popen(
        words, pass_fds=(writer,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        os.close(writer)
        with open(reader, "rb") as told:
            number = told.readline().decode().strip()
        assert number, "Xvfb does not start"
        yield f":{number}"
        server.terminate()


def serve(person):
    """The application, on its leased port of the host; returns the number of its run."""
    words = ("run", "-d", "one", "--", "sh", "-c", "exec python3 app.py $PORT")
    number = person.atoll(*words).stdout.strip().rpartition(".")[2]
    port = person.answer("show", "one")["ports"]["web"]
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the application does not listen"
            time.sleep(0.05)
        else:
            return number


def heard(person, run):
    """Who visited, by their cookies."""
    lines = person.atoll("logs", "one", run).stdout.splitlines()
    return [line.removeprefix("visit ") for line in lines if line.startswith("visit ")]


@pytest.mark.slow
@as_user
def test_chromium_remembers_in_the_capsules_profile(person, display, wait_for):
    person.env |= {"DISPLAY": display, "ATOLL_BROWSER": require("chromium")}
    page = "<script>fetch('/login?' + document.title, {method: 'POST'})</script>"
    app = webapp.SERVER.replace("<title>app</title>", f"<title>apple</title>{page}")
    person.write({"app.py": app})
    person.commit("app")
    person.atoll("new", "one")
    run = serve(person)
    person.atoll("open", "one")
    wait_for(lambda: heard(person, run) == ["nobody"], timeout_s=60)
    pid = status(person)["window"]["pid"]
    person.atoll("open", "one")
    wait_for(lambda: heard(person, run) == ["nobody", "login=apple"], timeout_s=60)
    assert status(person)["window"]["pid"] == pid
    person.atoll("stop", "one")
    person.atoll("snapshot", "one")
    # Chromium writes cookies down every half minute. Going back ends the window.
    wait_for(lambda: b"login" in (profile(person) / "Default/Cookies").read_bytes(), timeout_s=60)
    before = person.answer("rollback", "one")["before"]["number"]
    assert status(person)["window"] is None
    person.atoll("rollback", "one", str(before))
    run = serve(person)
    person.atoll("open", "one")
    wait_for(lambda: heard(person, run), timeout_s=60)
    assert heard(person, run) == ["login=apple"]
    end(person)
