"""Checks in fresh capsules: the exact tree, once, whatever the commands do."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import time
from typing import TYPE_CHECKING

import pytest

import atoll
from atoll.engine.capsules import RunSpec
from atoll.engine.check import logs
from atoll.engine.check.checks import Checker, CheckStopped, CheckTarget, select_checks
from atoll.engine.check.targets import target_of
from atoll.engine.state.leases import isolation_plan
from atoll.model.check import CheckSource, CheckSpec, CheckStatus, Figure
from atoll.model.errors import PrerequisiteError, SpecError, StateError
from atoll.testing.faults import processes_of

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.engine.projects import Project
    from atoll.model.check import CheckResult

REPORT = '<testsuite><testcase name="one"/><testcase name="two"><skipped/></testcase></testsuite>'
LAUGHS = (
    '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    '<testsuite><testcase name="&b;"/></testsuite>'
)


def target(git, repo: Path, ref: str = "HEAD", **fields: str) -> CheckTarget:
    commit, tree = git("rev-parse", ref, f"{ref}^{{tree}}", cwd=repo).split()
    return CheckTarget(commit, tree, commit, **fields)


def checked(project: Project, where: CheckTarget, *specs: CheckSpec) -> dict[str, CheckResult]:
    results = Checker(project.session, project.record).check(where, specs)
    assert [one.name for one in results] == [spec.name for spec in specs]
    assert_nothing_left(project)
    return {one.name: one for one in results}


def assert_nothing_left(project: Project) -> None:
    """Of temporary capsules."""
    session = project.session
    assert not [one for one in session.store.capsules() if one.temporary]
    assert not [path for path in session.home.glob("projects/*/*") if "check-" in path.name]
    assert not [path for path in (session.home / "locks").iterdir() if "check-" in path.name]
    branches = project.root / ".git/refs/heads/atoll"
    assert not [path for path in branches.glob("*") if "check-" in path.name]


def test_the_exact_tree_is_checked_and_only_once(project: Project, repo, git, atoll) -> None:
    (repo / "atoll.toml").write_text(
        '[checks.clean]\nrun = "test ! -e around && test -z \\"$(git status --porcelain)\\" && '
        "grep -c word app.py | sed 's/^/words /'\"\nfigures = true\n"
        "[checks.served]\nrun = 'true'\nneeds = ['db']\n"
        "[services.db]\ncommand = 'true'\n"
    )
    x = project.new("x")
    x.run(
        [
            "sh",
            "-c",
            "echo '# word' >> app.py; git commit -qam one; echo '# word' >> app.py; touch around",
        ]
    )
    with pytest.raises(StateError, match=r"not approved.*\n.*clean: test"):
        x.check()
    project.trust()
    with pytest.raises(PrerequisiteError, match="services db"):
        x.check()
    with pytest.raises(SpecError) as caught:
        x.check(["cleen"])
    assert caught.value.hint == "did you mean `clean`?"
    steps = []
    report = x.check(["clean"], on_progress=lambda step: steps.append(step.phase))
    [first] = report.results
    assert steps == ["queued", "running", "ended"]
    assert report.has_uncommitted
    assert report.passed
    assert first.figures == (Figure("words", 1.0),)
    assert first.tree == git("rev-parse", "atoll/x^{tree}", cwd=repo).strip()
    assert stat.S_IMODE(os.stat(first.log).st_mode) == 0o600
    [known] = x.check(["clean"]).results
    assert known.is_known
    assert known.id == first.id
    [again] = x.check(["clean"], again=True).results
    assert not again.is_known
    assert again.id > first.id
    # The same tree at another commit.
    x.run(["git", "commit", "-q", "--amend", "-m", "two"])
    assert x.check(["clean"]).results[0].is_known
    here = x.check(["clean"], here=True)
    assert (here.tree, here.passed, here.results[0].id) == ("", False, 0)
    assert project.session.store.check_results(project.record.id, first.tree)[-1].id == again.id
    assert_nothing_left(project)
    done = atoll("check", "x", "clean", "--junit", repo.parent / "r.xml", "--json", cwd=repo,
                 env={**os.environ, "ATOLL_LEVEL": "sandbox"})  # fmt: skip
    [shown] = json.loads(done.stdout)["data"]["checks"]
    assert (shown["known"], shown["tree"], shown["figures"][0]["value"]) == (True, first.tree, 1.0)
    assert first.tree in (repo.parent / "r.xml").read_text()
    # Logs that no result names are removed, but not at once.
    stray = repo.parent / "atoll-home/checks" / project.record.id / "00000000000001-00000000.log"
    stray.write_bytes(b"")
    os.utime(stray, (0, 0))
    assert logs.sweep(project.session, dry_run=False) == [str(stray)]


def test_whatever_a_check_does_is_a_result(project: Project, repo, git, tmp_path, wait_for) -> None:
    outside = tmp_path / "outside.xml"
    outside.write_text(REPORT)
    (repo / "old.xml").write_text(REPORT)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "reports", cwd=repo)
    found = checked(
        project,
        target(git, repo),
        CheckSpec("hang", "trap '' TERM INT HUP; while :; do sleep 1; done", timeout_s=2.0),
        CheckSpec("left", "setsid sleep 1000 & (sleep 1000 &) ; exit 0"),
        CheckSpec("flood", "head -c 30000000 /dev/urandom; echo; echo 'end 1'", has_figures=True),
        CheckSpec("killed", "kill -9 $$"),
        CheckSpec("lost", "rm -rf .git * ; exit 3"),
        CheckSpec("absent", "no-such-program"),
        CheckSpec("junit", f"printf '%s' '{REPORT}' > out.xml", junit="out.xml"),
        CheckSpec("laughs", f"printf '%s' '{LAUGHS}' > out.xml", junit="out.xml"),
        CheckSpec("link", f"ln -s {outside} out.xml", junit="out.xml"),
        CheckSpec("sparse", "truncate -s 1G out.xml", junit="out.xml"),
        CheckSpec("fifo", "mkfifo out.xml", junit="out.xml"),
        CheckSpec("stale", "true", junit="old.xml"),
        CheckSpec("missing", "exit 1", junit="out.xml"),
    )
    statuses = {name: str(one.status) for name, one in found.items()}
    assert statuses == {
        "hang": "timeout", "left": "passed", "flood": "passed", "killed": "failed",
        "lost": "failed", "absent": "failed", "junit": "passed", "laughs": "passed",
        "link": "passed", "sparse": "passed", "fifo": "passed", "stale": "passed",
        "missing": "failed",
    }  # fmt: skip
    assert Figure("end", 1.0) in found["flood"].figures
    assert len(found["flood"].output) <= 6000
    assert os.stat(found["flood"].log).st_size < 5 << 20
    assert found["junit"].tests is not None
    assert (found["junit"].tests.names, found["junit"].tests.skipped) == (("one",), 1)
    for name in ("laughs", "link", "sparse", "fifo", "stale", "missing"):
        assert found[name].tests is None
        assert "no test counts" in found[name].message, name
    # Those of the views end in the background.
    home = project.session.home
    wait_for(lambda: not processes_of(home), timeout_s=20, what="the end of all processes")


def test_flaky_checks_and_errors(project: Project, repo, git) -> None:
    (repo / "atoll.toml").write_text('[capsule]\nlimits = { output = "1M" }\n')
    project.trust()
    where = target(git, repo)
    # The only thing that two fresh capsules can tell apart is the time.
    flaky = CheckSpec("flaky", "test $(($(date +%s%N) / 400000000 % 2)) = 0", retries=10)
    statuses = set()
    for _ in range(12):
        [one] = Checker(project.session, project.record).check(where, [flaky], again=True)
        statuses.add(one.status)
        assert (one.status is CheckStatus.FLAKY) == (one.attempts > 1)
        if CheckStatus.FLAKY in statuses:
            break
    assert CheckStatus.FLAKY in statuses
    assert "passed after" in one.message
    flood = CheckSpec("flood", "yes")
    assert checked(project, where, flood)["flood"].status is CheckStatus.ERROR
    again = checked(project, where, flood)["flood"]
    assert not again.is_known
    assert "limit `output`" in again.message


def test_the_set_up_runs_once_and_one_that_fails_is_an_error(project: Project, repo, git) -> None:
    (repo / ".gitignore").write_text("stamp\n")
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "ignore", cwd=repo)
    text = '[capsule]\nsetup = ["cat /proc/sys/kernel/random/uuid > stamp"]\n'
    (repo / "atoll.toml").write_text(text)
    project.trust()
    where = target(git, repo)
    specs = [CheckSpec(name, f"cat stamp; echo {name} >> stamp") for name in "abc"]
    found = checked(project, where, *specs)
    stamps = {one.output.split()[0] for one in found.values()}
    assert len(stamps) == 1
    assert all(one.passed for one in found.values())
    assert all(len(one.output.split()) == 1 for one in found.values())
    (repo / "atoll.toml").write_text(text.replace("cat /proc", "echo not today; false; cat /proc"))
    git("commit", "-q", "--allow-empty", "-m", "same tree", cwd=repo)
    (repo / "app.py").write_text("other\n")
    git("commit", "-qam", "other", cwd=repo)
    (repo / "atoll.toml").write_text('[capsule]\nsetup = ["echo not today; exit 7"]\n')
    project.trust()
    failed = checked(project, target(git, repo), *specs)
    assert {one.status for one in failed.values()} == {CheckStatus.ERROR}
    assert "exit code 7" in failed["a"].message
    assert "not today" in failed["a"].output


def test_two_commands_do_not_check_the_same_tree_twice(project: Project, repo, git) -> None:
    where = target(git, repo)
    spec = CheckSpec("slow", "sleep 1; cat /proc/sys/kernel/random/uuid")
    found: list[CheckResult] = []
    other = atoll.open_project(repo)

    def check(one: Project) -> None:
        found.extend(Checker(one.session, one.record).check(where, [spec]))

    threads = [threading.Thread(target=check, args=(one,)) for one in (project, other, project)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.output for one in found}) == 1
    assert sorted(one.is_known for one in found) == [False, True, True]
    other.session.store.close()
    # One that is stopped has no result.
    checker = Checker(project.session, project.record, on_progress=lambda _, step: (
        checker.stop() if step.phase == "running" else None))  # fmt: skip
    with pytest.raises(CheckStopped):
        checker.check(where, [CheckSpec("endless", "sleep 1000")])
    assert_nothing_left(project)


def test_a_check_has_no_wider_network_than_what_it_checks(project: Project, repo, git) -> None:
    made = []

    def note(step: str, subject: str) -> None:
        if step == "new.ready" and subject.startswith("check-"):
            record = project.session.store.find_capsule(project.record.id, subject)
            assert record is not None
            made.append((record.level, isolation_plan(project.session, record).network))

    project.session.listen = note
    x = project.new("x", network="none")
    y = project.new("y")
    for capsule in (x, y):
        capsule.run(["sh", "-c", f"echo {capsule.name} > f; git add f; git commit -qm f"])
    checker = Checker(project.session, project.record)
    spec = CheckSpec("any", "true")
    for capsule in (x, y):
        checker.check(target_of(project.session, capsule.record), [spec])
    y.start(RunSpec(argv=("true",), network="none", background=True))
    checker.check(target_of(project.session, y.record), [spec], again=True)
    assert made == [("sandbox", "none"), ("sandbox", "allow"), ("sandbox", "none")]


def test_checks_are_detected_at_any_level(atoll, make_repo, git) -> None:
    repo = make_repo({"Makefile": 'test:\n\ttest "$$(cat a)" = 1\n', "a": "1\n"})
    for level in ("none", "worktree"):
        atoll("new", level, "--level", level, cwd=repo)
        done = atoll("check", level, cwd=repo)
        assert "detected" in done.stderr
        assert "test   passed" in done.stdout
    (repo / "a").write_text("2\n")
    done = atoll("check", "none", "--again", cwd=repo)
    assert "uncommitted changes" in done.stderr
    assert atoll("check", "none", "--here", cwd=repo, check=False).returncode == 1
    done = atoll("try", "worktree", "--", "true", cwd=repo, check=False)
    assert done.returncode == 4
    assert "has no snapshots" in done.stderr
    assert git("branch", "--list", "atoll/check*", cwd=repo) == ""
    assert "check-" not in git("worktree", "list", cwd=repo)
    report = repo.parent / "report.xml"
    for path, message in (("", "names no file"), (str(repo), "names no file"), ("/no/x", "`/no`")):
        # Said before anything runs.
        done = atoll("check", "worktree", "--again", "--junit", path, cwd=repo, check=False)
        assert (done.returncode, "running" in done.stderr) == (2, False)
        assert message in done.stderr
    atoll("check", "worktree", "--junit", str(report), cwd=repo)
    assert 'name="test"' in report.read_text()
    bare = make_repo({"a": "1\n"}, name="bare")
    atoll("new", "x", cwd=bare)
    done = atoll("check", "x", cwd=bare, check=False)
    assert done.returncode == 4
    assert "declares no checks" in done.stderr


def test_detected_check_whose_program_is_missing(atoll, make_repo) -> None:
    repo = make_repo({"Makefile": "test:\n\ttrue\n"})
    atoll("new", "x", cwd=repo)
    hint = "hint: atoll init writes them to atoll.toml"
    assert hint not in atoll("check", "x", cwd=repo).stderr
    # Without a `.venv` there is no `.venv/bin/pytest`.
    files = {"pyproject.toml": "[project]\nname = 'x'\n[tool.pytest.ini_options]\naddopts = ''\n"}
    repo = make_repo(files, name="no-venv")
    atoll("new", "x", cwd=repo)
    done = atoll("check", "x", cwd=repo, check=False)
    assert done.returncode == 1
    assert hint in done.stderr


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGINT] * 2, [signal.SIGKILL]])
def test_nothing_is_left_of_an_interrupted_check(
    numbers, repo, atoll, start_cli, wait_for, atoll_home, monkeypatch
) -> None:
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    (repo / "atoll.toml").write_text(
        "".join(
            f"[checks.{name}]\nrun = \"trap '' TERM INT HUP; sleep 1000; echo {name}\"\n"
            for name in ("a", "b")
        )
    )
    atoll("trust", cwd=repo)
    atoll("new", "x", cwd=repo)
    cli = start_cli("check", "x", "--jobs", "2", cwd=repo)
    wait_for(
        lambda: len(list(atoll_home.glob("projects/*/check-*/runs/*/status.json"))) == 2,
        timeout_s=30,
        what="both checks",
    )
    for number in numbers:
        cli.send_signal(number)
        time.sleep(0.1)
    assert cli.wait(timeout=30) in (130, -signal.SIGINT, -signal.SIGKILL)
    shown = json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"]
    assert [one["name"] for one in shown] == ["x"]
    assert [path.name for path in atoll_home.glob("projects/*/*")] == ["x"]
    atoll("rm", "x", cwd=repo)
    wait_for(lambda: not processes_of(atoll_home), timeout_s=20, what="the end of all processes")
    atoll("gc", cwd=repo)
    assert not list((atoll_home / "locks").iterdir())


def test_select_checks_detects(project: Project, repo, git) -> None:
    (repo / "Makefile").write_text("test:\n\ttrue\n")
    git("add", "-A", cwd=repo)
    [found] = select_checks(project.session, project.record)
    assert (found.command, found.source) == ("make test", CheckSource.DETECTED)
