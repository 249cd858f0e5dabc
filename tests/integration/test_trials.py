"""`try` keeps what is good and rolls back the rest; `bisect` finds where a check began to fail."""

from __future__ import annotations

import json
import signal

import pytest

from atoll.engine.check.bisection import Tried
from atoll.model.errors import SpecError, StateError
from atoll.testing.faults import processes_of

FILE = """\
[checks.sum]
run = "test $(cat a.txt) = good"
[checks.other]
run = "true"
"""


@pytest.fixture
def checked_repo(make_repo, atoll, monkeypatch):
    """A repository with two checks and a capsule `x` at level `sandbox`."""
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    repo = make_repo({"a.txt": "good\n"})
    (repo / "atoll.toml").write_text(FILE)
    atoll("trust", cwd=repo)
    atoll("new", "x", cwd=repo)
    return repo


def test_a_try_is_kept_or_rolled_back(checked_repo, atoll, git):
    def tried(*words, code):
        done = atoll("try", "x", *words, cwd=checked_repo, check=False)
        assert done.returncode == code, done.stderr
        return done

    def content():
        return atoll("run", "x", "--", "cat", "a.txt", cwd=checked_repo).stdout

    # Uncommitted changes count, and so do new files.
    commit = "echo worse > a.txt; git commit -qam worse; echo bad > a.txt; echo new > new.txt"
    done = tried("--", "sh", "-c", commit, code=1)
    assert "rolled `x` back to snapshot 1: sum failed, other passed (tree " in done.stderr
    assert "atoll rollback x 2 returns to the attempt" in done.stderr
    assert content() == "good\n"
    assert git("branch", "--list", "atoll/x", cwd=checked_repo) == ""
    done = tried("--check", "other", "--", "sh", "-c", commit, code=0)
    assert "kept: other passed" in done.stderr
    assert content() == "bad\n"
    log = git("log", "-1", "--format=%s", "atoll/x", cwd=checked_repo)
    assert log == "worse\n"
    # The command failed: nothing is checked, and nothing of it stays.
    done = tried("--json", "--", "sh", "-c", "echo good > a.txt; sleep 1000 & exit 9", code=1)
    shown = json.loads(done.stdout)["data"]
    assert (shown["kept"], shown["checks"], shown["run"]["outcome"]["exit_code"]) == (
        False,
        None,
        9,
    )
    assert content() == "bad\n"
    atoll("rollback", "x", str(shown["attempt"]["number"]), cwd=checked_repo)
    assert content() == "good\n"
    tried("--check", "none", "--", "true", code=2)
    (checked_repo / "atoll.toml").unlink()
    assert "its exit code alone decides" in tried("--", "true", code=0).stderr


@pytest.mark.parametrize("phase", ["command", "check"])
def test_an_interrupted_try_is_rolled_back(
    phase, checked_repo, atoll, start_cli, wait_for, atoll_home
):
    (checked_repo / "atoll.toml").write_text("[checks.slow]\nrun = 'sleep 1000'\n")
    atoll("trust", cwd=checked_repo)
    command = "echo bad > a.txt; " + ("sleep 1000" if phase == "command" else "true")
    cli = start_cli("try", "x", "--", "sh", "-c", command, cwd=checked_repo)
    place = "x" if phase == "command" else "check-*"
    running = f"projects/*/{place}/runs/*/status.json"
    wait_for(lambda: list(atoll_home.glob(running)), timeout_s=30, what="the run")
    if phase == "command":
        wait_for(lambda: processes_of(atoll_home), timeout_s=30, what="the command")
    cli.send_signal(signal.SIGINT)
    assert cli.wait(timeout=60) in (1, 130)
    shown = json.loads(atoll("snapshots", "x", "--json", cwd=checked_repo).stdout)["data"]
    assert len(shown) == 2
    assert "before rollback" in shown[1]["message"]
    assert atoll("run", "x", "--", "cat", "a.txt", cwd=checked_repo).stdout == "good\n"
    atoll("rm", "x", "--force", cwd=checked_repo)
    wait_for(lambda: not processes_of(atoll_home), timeout_s=20, what="the end of all processes")


def test_a_bisection_finds_the_run(project, repo):
    (repo / "atoll.toml").write_text(FILE)
    project.trust()
    x = project.new("x")

    def step(text, name=""):
        x.run(["sh", "-c", text])
        return x.snapshot(name)

    step("echo good > a.txt; touch around", "one")
    left = step("echo bad > a.txt", "two")
    x.rollback(x.require_snapshot("1"))
    good = step("echo 1 > other.txt", "four")
    last = step("echo 2 > other.txt")
    bad = step("echo bad > a.txt", "six")
    step("echo 2 > other.txt")
    x.run(["sh", "-c", "echo 3 > other.txt"])
    with pytest.raises(SpecError, match="several checks"):
        x.bisect()
    seen: list[Tried] = []
    report = x.bisect("sum", jobs=2, on_tried=seen.append)
    found = (report.good.number, report.bad.number)
    assert (report.state, found) == ("found", (last.number, bad.number))
    assert report.points == 6
    assert {one.point.snapshot.number for one in seen}.isdisjoint({left.number, 3})
    [run] = report.runs
    assert run.argv[-1] == "echo bad > a.txt"
    bounded = x.bisect("sum", good=str(good.number), bad=str(bad.number))
    assert (bounded.good.number, bounded.bad.number) == found
    with pytest.raises(StateError, match="left it behind"):
        x.bisect("sum", good=str(left.number))
    with pytest.raises(SpecError, match="older"):
        x.bisect("sum", good=str(bad.number), bad=str(good.number))
    assert x.bisect("sum", good=str(bad.number)).state == "always-bad"
    assert x.bisect("sum", bad=str(good.number)).state == "never-bad"
    names = {one.name for one in project.session.store.capsules()}
    assert names == {"x"}
    assert project.session.store.check_results(project.record.id, "") == []


def test_a_bisection_skips_what_is_undecidable(project, repo):
    check = "test ! -e flood || yes; test ! -e bad"
    (repo / "atoll.toml").write_text(f"[checks.sum]\nrun = '{check}'\n")
    project.trust()
    x = project.new("x", limits=("output=1M",))
    first = x.snapshot("first")
    x.run(["touch", "flood"])
    between = x.snapshot("it cannot be run here")
    x.run(["sh", "-c", "rm flood; touch bad"])
    last = x.snapshot("last")
    report = x.bisect()
    assert (report.good.number, report.bad.number) == (first.number, last.number)
    assert [one.number for one in report.between] == [between.number]
    assert [run.number for run in report.runs] == [1, 2]
    [skipped] = [one for one in report.tried if one.verdict == "undecidable"]
    assert "limit `output`" in skipped.message
    assert x.bisect(bad=str(between.number)).state == "undecidable"
