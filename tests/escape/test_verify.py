"""`atoll verify` itself: what it says, that it claims nothing untried, that it leaves no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from atoll.engine.state.session import STEPS
from atoll.engine.verify import attack, inside
from atoll.engine.verify.wall_test import Wall, WallTest
from atoll.testing.remains import checkout_digest, differences, portrait, timeless

# What still gets through; `test_walls.py` says what has to be built.
FEWEST = {"none": 50, "worktree": 50, "clone": 45}


@pytest.fixture
def traces(wait_for):
    """Sees that nothing stays of what was planted."""

    def planted():
        places = (Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm"))
        found = {str(path) for place in places for path in place.glob("atoll-verify-*")}
        found |= set(Path("/proc/sysvipc/shm").read_text().splitlines()[1:])
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    text = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                found |= {f"process {entry.name}"} if b"atoll-verify-" in text else set()
        keys = Path("/proc/keys")
        if keys.exists():
            found |= {line for line in keys.read_text().splitlines() if "atoll-verify-" in line}
        return found

    before = planted()
    yield
    wait_for(lambda: not planted() - before, what="the end of what was planted")


def painted(capsule):
    """By an interpreter that can be seen inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", "/usr/bin/python3")
        return timeless(portrait(capsule))


def test_a_walled_capsule(tmp_path, monkeypatch, project, repo, atoll, git, traces):
    # A home without toolchains: all that is in it is compared.
    monkeypatch.setenv("HOME", str(tmp_path / "owner"))
    capsule = project.new("x")
    capsule.run(["sh", "-c", "echo work > work.txt; echo mine > ~/mine; echo t > /tmp/t"])
    before, refs = painted(capsule), git("for-each-ref", cwd=repo)
    digest, listed = checkout_digest(repo), capsule.runs()
    done = atoll("verify", "x", "--json", cwd=repo, check=False)
    answer = json.loads(done.stdout)
    assert (answer["version"], answer["kind"]) == (1, "verification")
    told = answer["data"]
    through = {a["id"] for a in told["attempts"] if a["verdict"] == "gave way"}
    assert through == set()
    assert done.returncode == (1 if through else 0)
    assert told["held"] is not bool(through)
    assert (told["capsule"], told["level"]) == ("x", "sandbox")
    assert [c.name for c in project.capsules()] == ["x"]
    assert capsule.runs() == listed
    assert len(os.listdir(f"{capsule.record.directory}/runs")) == len(listed)
    assert differences(before, painted(capsule)) == []
    assert git("for-each-ref", cwd=repo) == refs
    assert checkout_digest(repo) == digest


def test_the_table(project, capsule, repo, atoll, traces):
    done = atoll("verify", "x", "--all", cwd=repo, check=False)
    lines = done.stdout.splitlines()
    assert lines[0].split("  ")[0] == "WALL"
    assert [line.split("  ")[0] for line in lines[1:9]] == [wall.name for wall in attack.WALLS]
    count = sum(len(wall.attempts) for wall in attack.WALLS)
    assert len([line for line in lines[10:] if line]) == count
    assert "attempts on `x` (level `sandbox`)" in done.stderr


@pytest.mark.parametrize("level", ["none", "worktree", "clone"])
def test_other_levels_are_reported_correctly(project, repo, atoll, git, traces, level):
    project.new("y", level=level)
    before, refs = checkout_digest(repo), git("for-each-ref", cwd=repo)
    done = atoll("verify", "y", "--json", cwd=repo, check=False)
    assert done.returncode == 1, done.stderr
    attempts = json.loads(done.stdout)["data"]["attempts"]
    through = {a["id"] for a in attempts if a["verdict"] == "gave way"}
    assert len(through) >= FEWEST[level]
    assert {"F01", "N03", "P01", "P01b"} <= through
    # In a view without root the kernel refuses this, which no level promises.
    assert "S01c" in through or (level == "clone" and os.geteuid() != 0)
    assert checkout_digest(repo) == before
    assert git("for-each-ref", cwd=repo) == refs
    assert git("status", "--porcelain", cwd=repo) == ""


@pytest.mark.parametrize("after_s", [0.7, 1.6])
def test_an_interrupt_leaves_nothing(project, capsule, repo, traces, wait_for, after_s):
    words = [sys.executable, "-m", "atoll", "verify", "x"]
    child = subprocess.Popen(words, cwd=repo, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with child:
        try:
            child.wait(after_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert child.returncode in {0, 1, 130}
    wait_for(lambda: [c.name for c in project.capsules()] == ["x"], what="one capsule")
    assert capsule.runs() == []
    assert not capsule.work().any


@pytest.mark.parametrize("step", STEPS["run"])
def test_an_interrupt_while_a_run_starts_leaves_nothing(project, capsule, traces, step):
    def interrupt(reached, subject):
        if reached == f"run.{step}" and subject.startswith("x"):
            raise KeyboardInterrupt

    project.session.listen = interrupt
    with pytest.raises(KeyboardInterrupt):
        attack.verify(project, capsule, on_progress=lambda _: None)
    assert project.session.store.runs() == []
    assert [one.name for one in project.capsules()] == ["x"]


def test_what_a_killed_one_leaves_goes_with_the_next(
    project, capsule, repo, atoll, wait_for, tmp_path
):
    capsule.run(["true"])
    words = [sys.executable, "-m", "atoll", "verify", "x"]
    # Its canaries are then nobody's: they go with the test.
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, cwd=repo, env=env, stdout=quiet, stderr=quiet) as child:
        wait_for(lambda: len(capsule.runs()) > 2, timeout_s=60, what="the second attack")
        child.kill()
    # One that was killed before it spoke to its run is waited for.
    wait_for(lambda: not capsule.living(), timeout_s=60, what="the end of what it ran")
    assert len(capsule.runs()) > 2
    atoll("verify", "x", cwd=repo)
    assert [run.argv for run in capsule.runs()] == [("true",)]
    for other in project.capsules():
        other.remove(force=True)


def make(code):
    """One attempt by the real program, as a plain process."""
    wall = Wall("any", (WallTest("X01", "any", code), WallTest("X02", "next", "gave_way('next')")))
    words = [sys.executable, "-I", "-S", "-c", inside.LOADER]

    def run(task):
        done = subprocess.run(words, input=task, capture_output=True, check=False, timeout=60)
        return done.stdout, done.stderr.decode()

    first, second = attack.attack(wall, {"digests": []}, run)
    assert (second.verdict, second.detail) == ("gave way", "next")
    return first.verdict, first.detail


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("pass", ("gave way", "")),
        ("os.open('/no/such/file', 0)", ("held", "ENOENT")),
        ("with preparing():\n    os.open('/no/such/file', 0)", "not tried"),
        ("os._exit(0)", "not tried"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "not tried"),
        ("raise SystemExit", "not tried"),
        ("no_such_name", "not tried"),
        ("this is no Python", "not tried"),
        ("print('noise on the way')", ("gave way", "")),
        ("held('because')", ("held", "because")),
    ],
)
def test_verdicts(code, verdict):
    found = make(code)
    assert found == verdict if isinstance(verdict, tuple) else found[0] == verdict


@pytest.mark.parametrize("said", [b"", b"no JSON\n", b"[]\n", b"{}\n", b'{"X01": ["fine", ""]}'])
def test_a_run_that_does_not_answer_claims_nothing(said):
    wall = Wall("any", (WallTest("X01", "any", ""),))
    (found,) = attack.attack(wall, {}, lambda _: (said, "there is no python3 inside"))
    assert found.verdict == "not tried"
    assert found.detail


def test_a_capsule_without_python(project, capsule, repo, atoll, monkeypatch, traces):
    monkeypatch.setattr(attack, "_PYTHONS", ("no-such-python", "/no/such/python"))
    report = attack.verify(project, capsule, on_progress=lambda _: None)
    assert {finding.verdict for finding in report.findings} == {"not tried"}
    assert {finding.detail for finding in report.findings} == {"there is no python3 inside"}


def test_it_does_not_lie_when_what_is_inside_does(project, capsule, traces):
    """Whoever owns the capsule's files cannot change the program that attacks: it comes by stdin,
    to an interpreter that is not theirs and looks at none of their settings."""
    script = (
        "mkdir -p ~/.local/lib/python3.11/site-packages; "
        "echo 'raise SystemExit' | tee usercustomize.py sitecustomize.py json.py socket.py"
        " > ~/.local/lib/python3.11/site-packages/usercustomize.py; "
        "printf '#!/bin/sh\\necho {}\\n' > python3; chmod +x python3"
    )
    capsule.run(["sh", "-c", script])
    report = attack.verify(project, capsule, on_progress=lambda _: None)
    assert report.breaches == []
    assert os.environ.get("VERIFY_CANARY_TOKEN") is None
