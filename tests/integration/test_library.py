"""The library as others use it: `import atoll`, nothing below."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import pytest

import atoll
from atoll.engine.capsule import removal

SNIPPET = """
import sys
import atoll

with atoll.open_project(".").new("x", level="worktree") as c:
    result = c.run([sys.executable, "-c", "print('1 passed')"])
    print(result.exit_code, result.stdout.decode(), end="")
"""
LARGE_BYTES = 20 << 20


@pytest.fixture
def project(repo, atoll_home):
    opened = atoll.open_project(repo)
    yield opened
    for capsule in opened.capsules():
        capsule.stop(grace_s=0)
        capsule.remove(force=True)
    opened.session.store.close()


def names(project):
    return [capsule.name for capsule in project.capsules()]


def test_snippet_of_the_documentation(repo, atoll_home, git):
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET],
        cwd=repo,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0 1 passed\n", "")
    assert git("branch", "--list", "atoll/*", cwd=repo) == ""
    assert git("status", "--porcelain", cwd=repo) == ""


def test_face_is_what_it_says():
    assert len(atoll.__all__) == len(set(atoll.__all__))
    scope: dict[str, object] = {}
    exec("from atoll import *", scope)
    assert set(atoll.__all__) <= scope.keys()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", atoll.__version__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = atoll.nothing


def test_importing_costs_nothing():
    program = "import sys, atoll; print(*(n for n in sys.modules if n.startswith('atoll')))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert set(done.stdout.split()) == {"atoll", "atoll.version"}


def test_result_of_a_run(project):
    with project.new("x") as capsule:
        result = capsule.run(["sh", "-c", "printf out; printf err >&2; exit 3"])
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out", b"err")
        assert result.outcome.reason == "exited"
        assert not result.outcome.good
        assert result.run.label == "x.1"
        assert result.run.outcome == result.outcome
        assert capsule.run(["true"]).outcome.good


def test_words_reach_the_command_as_they_are(project):
    odd = ["", " ", "a b", "'\"", "$HOME", "*", "é\n", os.fsdecode(b"\xff"), "-x", "--", ";"]
    program = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    with project.new("x") as capsule:
        result = capsule.run([sys.executable, "-c", program, *odd])
    assert result.stdout == b"\0".join(map(os.fsencode, odd))


def test_command_runs_in_the_workspace_with_a_scrubbed_environment(project, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "canary")
    with project.new("x") as capsule:
        said = capsule.run(["sh", "-c", "pwd; env"]).stdout.decode()
        assert said.splitlines()[0] == str(capsule.path)
        assert "canary" not in said
        assert "ATOLL_CAPSULE=x\n" in said
        assert f"PORT={capsule.ports['web']}\n" in said
        assert f"HOME={project.session.home}/" in said


def test_command_that_cannot_start_is_a_result(project):
    with project.new("x") as capsule:
        missing = capsule.run(["no-such-command"])
        assert (missing.exit_code, missing.outcome.reason) == (127, "not-started")
        assert capsule.run(["/etc"]).exit_code == 126


def test_signal_is_a_result(project):
    with project.new("x") as capsule:
        result = capsule.run(["sh", "-c", "kill -SEGV $$"])
    assert (result.exit_code, result.outcome.signal) == (139, 11)


def test_input_is_empty_or_what_was_given(project):
    with project.new("x") as capsule:
        assert capsule.run(["cat"]).stdout == b""
        assert capsule.run(["cat"], stdin=b"\0\xff\n").stdout == b"\0\xff\n"
        assert capsule.run(["true"], stdin=b"x" * (1 << 20)).exit_code == 0


def test_much_in_and_much_out_at_once(project):
    block = os.urandom(1 << 20)
    data = block * (LARGE_BYTES // len(block))
    with project.new("x") as capsule:
        result = capsule.run(["cat"], stdin=data, timeout_s=120)
    assert result.exit_code == 0
    assert result.stdout == data


def test_output_before_any_input_is_read(project):
    """A command that writes much first would block forever if the caller only wrote to it."""
    size = 4 << 20
    program = (
        "import sys; "
        f"sys.stdout.buffer.write(b'o' * {size}); sys.stdout.flush(); "
        f"sys.stderr.buffer.write(b'e' * {size}); sys.stderr.flush(); "
        "sys.stdout.write(str(len(sys.stdin.buffer.read())))"
    )
    with project.new("x") as capsule:
        result = capsule.run([sys.executable, "-c", program], stdin=b"i" * size, timeout_s=120)
    assert result.exit_code == 0
    assert result.stdout == b"o" * size + str(size).encode()
    assert result.stderr == b"e" * size


def test_time_limit_ends_everything(project, processes_with):
    with project.new("x") as capsule:
        started = time.monotonic()
        result = capsule.run(["sh", "-c", "echo early; sleep 300 & sleep 300"], timeout_s=0.5)
        assert time.monotonic() - started < 30
        assert (result.exit_code, result.outcome.reason) == (124, "timeout")
        assert result.stdout == b"early\n"
        assert processes_with(f"ATOLL_RUN={result.run.token}") == []


def test_leaving_removes_a_capsule_without_work(project, git):
    with project.new("x") as capsule:
        place = capsule.path
        assert (place / "app.py").exists()
    assert names(project) == []
    assert not place.exists()
    assert git("branch", "--list", "atoll/*", cwd=project.root) == ""
    assert "/x" not in git("worktree", "list", cwd=project.root)


@pytest.mark.parametrize("kind", ["untracked", "changed", "committed"])
def test_leaving_keeps_a_capsule_with_work(project, kind):
    with project.new("x") as capsule:
        script = {
            "untracked": "echo new > new.txt",
            "changed": "echo more >> app.py",
            "committed": "echo new > new.txt; git add -A; git commit -qm work",
        }[kind]
        assert capsule.run(["sh", "-c", script]).exit_code == 0
    assert names(project) == ["x"]
    work = project.capsule("x").work()
    assert work.any
    assert bool(work.commits) == (kind == "committed")
    with pytest.raises(atoll.StateError, match="exists nowhere else"):
        capsule.remove()
    point = capsule.remove(force=True)
    assert point.capsule == "x"
    assert project.recovery_points() == [point]
    restored = project.recover(point, "y")
    project.drop(point)
    assert project.recovery_points() == []
    assert restored.work() == work


def test_leaving_ends_what_still_runs(project, processes_with, wait_for):
    stubborn = "trap '' TERM; (setsid sleep 300 &) ; sleep 300"
    with project.new("x") as capsule:
        run = capsule.start(atoll.RunSpec(argv=("sh", "-c", stubborn), background=True))
        marker = f"ATOLL_RUN={run.token}"
        wait_for(lambda: len(processes_with(marker)) >= 3, what="the tree")
        (capsule.path / "new.txt").write_text("work")
    assert processes_with(marker) == []
    (ended,) = project.capsule("x").runs()
    assert ended.outcome.reason == "stopped"


def test_leaving_by_an_exception_does_the_same(project):
    class MishapError(Exception):
        pass

    with pytest.raises(MishapError), project.new("x"):
        raise MishapError
    assert names(project) == []


def test_level_none_leaves_the_checkout(project):
    with project.new("x", level="none") as capsule:
        assert capsule.path == project.root
        (capsule.path / "new.txt").write_text("the owner's")
        assert capsule.run(["cat", "new.txt"]).stdout == b"the owner's"
    assert names(project) == []
    assert (project.root / "new.txt").read_text() == "the owner's"


def test_two_capsules_on_threads(project, tmp_path):
    """Each waits for the other's sign: one after the other would never end."""
    results = {}
    meet = 'touch "$1"; for i in $(seq 600); do [ -e "$2" ] && exit 0; sleep 0.05; done; exit 1'

    def work(mine, other):
        with project.new(mine) as capsule:
            signs = [str(tmp_path / mine), str(tmp_path / other)]
            results[mine] = capsule.run(["sh", "-c", meet, "sh", *signs]).exit_code

    threads = [
        threading.Thread(target=work, args=pair) for pair in (("one", "two"), ("two", "one"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"one": 0, "two": 0}
    assert names(project) == []


def test_several_runs_of_one_capsule_on_threads(project):
    with project.new("x") as capsule:
        results = []

        def work(number):
            results.append((number, capsule.run(["echo", str(number)]).stdout))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [(n, f"{n}\n".encode()) for n in range(4)]
        assert sorted(run.number for run in capsule.runs()) == [1, 2, 3, 4]


def test_steps_can_be_listened_to(repo, atoll_home):
    heard = []
    project = atoll.open_project(repo, listen=lambda step, subject: heard.append((step, subject)))
    with project.new("x"):
        pass
    project.session.store.close()
    assert heard[0] == ("new.planned", "x")
    assert ("new.ready", "x") in heard
    assert heard[-1] == ("rm.forgotten", "x")


def test_home_of_choice(repo, atoll_home, tmp_path):
    project = atoll.open_project(repo, home=tmp_path / "another")
    with project.new("x") as capsule:
        assert capsule.path.is_relative_to(tmp_path / "another")
    project.session.store.close()
    assert not atoll_home.exists()


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda project: project.new("A B"), atoll.SpecError),
        (lambda project: project.new("y", level="sandbx"), atoll.SpecError),
        (lambda project: project.new("y", level="vm"), atoll.IsolationError),
        (lambda project: project.new("y", network="none"), atoll.IsolationError),
        (lambda project: project.new("y", limits=("time",)), atoll.SpecError),
        (lambda project: project.new("y", base="nothing"), atoll.StateError),
        (lambda project: project.new("taken"), atoll.StateError),
        (lambda project: project.capsule("nothing"), atoll.StateError),
        (lambda project: project.capsule("taken").require_run(7), atoll.StateError),
        (lambda project: project.require_point("nothing"), atoll.StateError),
        (lambda _: atoll.open_project("/"), atoll.StateError),
        (lambda project: atoll.open_project(project.root / "nothing"), atoll.StateError),
        (lambda _: atoll.open_project(".", home="/dev/null"), atoll.PrerequisiteError),
    ],
)
def test_what_fails_is_an_atoll_error(project, act, kind):
    with project.new("taken"):
        with pytest.raises(kind) as caught:
            act(project)
        assert isinstance(caught.value, atoll.AtollError)
        assert caught.value.message
        assert names(project) == ["taken"]


@pytest.mark.parametrize(
    "act",
    [
        lambda project: project.new("A B"),
        lambda project: project.new("y", level="vm"),
        lambda project: project.new("y", base="nothing"),
        lambda project: project.capsule("nothing"),
        lambda _: atoll.open_project("/"),
    ],
)
def test_errors_carry_the_next_command(project, act):
    with pytest.raises(atoll.AtollError) as caught:
        act(project)
    assert caught.value.hint


def test_removed_capsule_cannot_be_used(project):
    with project.new("x") as capsule:
        pass
    with pytest.raises(atoll.StateError):
        capsule.run(["true"])


def test_context_manager_asks_for_work_once(project, monkeypatch):
    asked, find_work = [], removal.find_work

    def count(*args, **kwargs):
        asked.append(args)
        return find_work(*args, **kwargs)

    monkeypatch.setattr(removal, "find_work", count)
    with project.new("x"):
        pass
    assert (len(asked), project.capsules()) == (1, [])
