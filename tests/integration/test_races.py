"""Races of commands and of scripted agents, from the request to checked trees."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from atoll.engine.capsules import Capsule
from atoll.model.errors import AtollError, PrerequisiteError, SpecError, StateError
from atoll.model.race import CandidateState, RaceRequest, RaceState
from matches import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from atoll.engine.projects import Project
    from atoll.engine.race.races import RaceHandle
    from atoll.engine.race.report import CandidateStatus, RaceStatus

DONE, FAILED = CandidateState.DONE, CandidateState.FAILED
WORKER = """\
echo "$1" > work.txt
echo '{"type": "usage", "model": "scripted", "input_tokens": 90, "output_tokens": 10}'
echo '{"type": "done"}'
"""


@pytest.fixture
def project(project: Project) -> Iterator[Project]:
    """Its races are removed, with their candidates. What it warns of is not of interest."""
    project.session.warn = lambda _: None
    yield project
    for race in project.races.all():
        race.remove(force=True)


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """`script("echo hello")`: the name of a scripted agent."""

    def make(text: str, name: str = "worker.sh") -> str:
        (tmp_path / name).write_text(text)
        return f"script:{tmp_path / name}"

    return make


def race(project: Project, command: str = "", **options: Any) -> RaceHandle:
    argv = ("sh", "-c", command) if command else ()
    return project.races.start(RaceRequest(**{"argv": argv, **options}))


def run_race(project: Project, command: str = "", **options: Any) -> RaceStatus:
    return race(project, command, **options).carry_on()


def by_name(status: RaceStatus) -> dict[str, CandidateStatus]:
    return {one.name: one for one in status.candidates}


def states(status: RaceStatus) -> dict[str, tuple[CandidateState, str]]:
    return {one.name: (one.candidate.state, one.candidate.reason) for one in status.candidates}


def content(git: Callable[..., str], repo: Path, commit: str, path: str) -> str:
    return git("show", f"{commit}:{path}", cwd=repo)


def test_command_with_variables_is_checked(
    project: Project, repo: Path, git: Callable[..., str]
) -> None:
    moved = git("rev-parse", "HEAD", cwd=repo).strip()
    handle = race(
        project,
        'echo "$SIZE $KIND" > out; echo $ATOLL_RACE > race; [ $SIZE = 1 ] || exit 7',
        vary=("SIZE=1,2", "KIND=a,b"),
        checks=("test $(cut -c1 out) = 1", "exec true"),
        name="r",
    )
    # A base that moves in the middle changes nothing.
    git("commit", "--quiet", "--allow-empty", "--message", "later", cwd=repo)
    status = handle.carry_on()
    assert status.race.state is RaceState.FINISHED
    assert status.race.base_commit == moved
    assert status.is_good
    found = by_name(status)
    assert list(found) == ["r-1-a", "r-1-b", "r-2-a", "r-2-b"]
    assert states(status)["r-1-a"] == (DONE, "")
    assert states(status)["r-2-b"] == (DONE, "it ended with code 7")
    one = found["r-2-b"].candidate
    assert one.exit_code == 7
    assert (one.files, one.added, one.removed) == (2, 2, 0)
    assert content(git, repo, one.commit, "out") == "2 b\n"
    assert content(git, repo, one.commit, "race") == "r\n"
    assert git("rev-parse", f"{one.commit}^", cwd=repo).strip() == moved
    assert git("rev-parse", "atoll/r-2-b", cwd=repo).strip() == one.commit
    checks = {n: [str(c.status) for c in s.checks] for n, s in found.items()}
    assert checks["r-1-a"] == ["passed", "passed"]
    assert checks["r-2-a"] == ["failed", "passed"]
    assert [str(result.status) for result in status.base] == ["failed", "passed"]
    # A second call has nothing left to do.
    assert states(handle.carry_on()) == states(status)
    assert [len(capsule.runs()) for capsule in project.capsules()] == [1, 1, 1, 1]


def test_one_at_a_time(project: Project) -> None:
    seen: list[int] = []

    def look(status: RaceStatus) -> None:
        alive = [c for c in project.capsules() if c.living()]
        seen.append(len(alive))
        del status

    command = "date +%s.%N > times; sleep 0.3; date +%s.%N >> times"
    handle = race(project, command, number=4, most=1, has_checks=False)
    status = handle.carry_on(look)
    assert [state for state, _ in states(status).values()] == [DONE] * 4
    assert max(seen) <= 1
    spans = sorted(
        tuple(float(line) for line in c.run(["cat", "times"]).stdout.split())
        for c in project.capsules()
    )
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_prompts_of_a_file(
    project: Project, repo: Path, atoll: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    (repo.parent / "prompts").write_text("first\nline\n---\nsecond $HOME\n---\n\n")
    done = atoll(
        "race", "--prompts", repo.parent / "prompts", "--name", "p", "--no-checks", "--json", "--",
        "sh", "-c", 'printf %s "$1" > said', "sh", "{prompt}", cwd=repo,
    )  # fmt: skip
    shown = json.loads(done.stdout)["data"]
    assert [one["name"] for one in shown["candidates"]] == ["p-p1", "p-p2"]
    assert shown["good"]
    said = [project.capsule(n).run(["cat", "said"]).stdout for n in ("p-p1", "p-p2")]
    assert said == [b"first\nline", b"second $HOME"]


def test_scripted_agents(
    project: Project, script: Callable[..., str], repo: Path, git: Callable[..., str]
) -> None:
    agents = (f"{script(WORKER)}:2", script("exit 3", "bad.sh"))
    handle = race(project, prompt="Speed it up", agents=agents, checks=("test -s work.txt",))
    # It is stored with the race.
    for path in matching(repo.parent, "*.sh"):
        path.unlink()
    status = handle.carry_on()
    assert states(status) == {
        f"{handle.name}-worker-1": (DONE, ""),
        f"{handle.name}-worker-2": (DONE, ""),
        f"{handle.name}-bad": (DONE, "it ended with code 3"),
    }
    found = status.candidates
    assert [one.candidate.tokens for one in found] == [100, 100, 0]
    assert [one.passes(status.race.spec.checks) for one in found] == [True, True, False]
    # What commits nothing has the tree of the base.
    base = git("rev-parse", f"{status.race.base_commit}^{{tree}}", cwd=repo).strip()
    assert found[2].candidate.tree == base
    assert content(git, repo, found[0].candidate.commit, "work.txt") == "Speed it up\n"
    trees = {one.candidate.tree for one in found[:2]}
    assert len(trees) == 1


HOSTILE = {
    "hang": ("sleep 600", DONE, "it was ended by its time limit"),
    "daemon": ("setsid sleep 600 >/dev/null 2>&1 & echo x > f", DONE, ""),
    "garbage": ("head -c 3000000 /dev/urandom; echo x > f", DONE, ""),
    "empty": ("true", DONE, ""),
    "wiped": ("rm -rf ./* .gitignore", DONE, ""),
    "off": ("git switch -q -c mine; echo x > f", FAILED, "is not on its branch"),
    "nogit": ("rm -rf .git; echo x > f", FAILED, "its work could not be recorded"),
    "rewritten": (
        "git checkout -q --orphan z && git commit -qm new && git branch -f $B && git switch -q $B",
        DONE,
        "",
    ),
    "killed": ("kill -9 $$", DONE, "137"),
    "missing": ("", FAILED, "its command could not be started"),
    "control": ("printf '\\033[2J' > $(printf 'a\\033[31mb'); exit 1", DONE, "code 1"),
}


def test_hostile_candidates_do_not_stop_the_others(project: Project) -> None:
    lines = []
    for name, (command, _, _) in HOSTILE.items():
        text = command.replace("$B", f"atoll/h-{name}")
        lines.append(f"{name}) {text};;" if text else f"{name}) ;;")
    body = "\n".join(lines)
    handles = [
        race(
            project, f'case $K in\n{body}\nesac', vary=("K=" + ",".join(
                name for name in HOSTILE if name != "missing"
            ),), name="h", timeout_s=6.0, checks=("exec true",), most=6,
        ),
        race(project, argv=("no-such-program",), name="m", checks=("exec true",)),
    ]  # fmt: skip
    found = {k: v for handle in handles for k, v in states(handle.carry_on()).items()}
    found["h-missing"] = found.pop("m-1", found.get("m", (FAILED, "")))
    for name, (_, state, reason) in HOSTILE.items():
        assert found[f"h-{name}"][0] is state, (name, found[f"h-{name}"])
        assert reason in found[f"h-{name}"][1], (name, found[f"h-{name}"])
        assert found[f"h-{name}"][1].isprintable()
    assert [capsule.name for capsule in project.capsules() if capsule.living()] == []
    status = handles[0].status()
    assert {one.name for one in status.candidates if one.passes(status.race.spec.checks)} == {
        f"h-{name}" for name, (_, state, _) in HOSTILE.items() if state is DONE
    }


def test_removed_capsules_break_nothing(project: Project) -> None:
    handle = race(project, "echo x > f; sleep $S", vary=("S=0,30",), name="r", has_checks=False)

    def remove(status: RaceStatus) -> None:
        for one in status.candidates:
            if one.candidate.state in (CandidateState.RUNNING, DONE) and one.has_capsule:
                with suppress(AtollError):
                    project.capsule(one.name).remove(force=True)

    status = handle.carry_on(remove)
    assert states(status)["r-30"][0] is FAILED
    assert "was removed" in states(status)["r-30"][1]
    after = handle.status()
    assert [one.has_capsule for one in after.candidates] == [False, False]
    assert handle.remove(force=False) == []
    assert project.races.all() == []


def test_over_budget_and_timeout_end_an_agent(project: Project, script: Callable[..., str]) -> None:
    agent = script("echo x > f; sleep 600", "slow.sh")
    over = race(project, prompt="a", agents=(agent,), budget=("time=1s",), has_checks=False)
    late = race(project, prompt="b", agents=(agent,), timeout_s=1.0, has_checks=False)
    [one] = over.carry_on().candidates
    [two] = late.carry_on().candidates
    assert one.candidate.state is DONE
    assert one.candidate.files == 1
    assert one.candidate.reason == "over-budget: 1s of 1s"
    assert two.candidate.state is DONE
    assert "time limit" in two.candidate.reason


def test_two_at_once_and_stop(project: Project, repo: Path, git: Callable[..., str]) -> None:
    quick = race(project, "echo > $ATOLL_CAPSULE", number=3, name="quick", checks=("exec true",))
    slow = race(project, "echo $ATOLL_CAPSULE > f; sleep 600", number=3, most=2, name="slow")
    threads = [threading.Thread(target=handle.carry_on) for handle in (quick, slow)]
    for thread in threads:
        thread.start()
    threads[0].join(60)
    assert quick.status().is_good
    # A second one watches, and the request to stop reaches the one that carries it on.
    other = project.races.require("slow")
    while not any(one.candidate.run for one in other.status().candidates):
        project.session.store.capsules(project.record.id)
    status = other.stop()
    threads[1].join(60)
    assert not any(thread.is_alive() for thread in threads)
    found = [state for state, _ in states(status).values()]
    assert found.count(FAILED) == 1
    assert found.count(DONE) == 2
    assert not any(capsule.living() for capsule in project.capsules())
    with pytest.raises(StateError, match="is finished"):
        other.stop()
    with pytest.raises(StateError, match="exists nowhere else"):
        other.remove()
    removed = other.remove(force=True)
    assert len(removed) == 2
    git("merge", "--quiet", *(f"atoll/quick-{number}" for number in (1, 2, 3)), cwd=repo)
    assert [one.point for one in quick.remove()] == [None] * 3


def test_interrupt_leaves_a_race_that_can_be_resumed(
    project: Project, repo: Path, start_cli: Any, wait_for: Any, atoll: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    command = "until [ -e go ]; do sleep 0.05; done; echo x > f"
    process = start_cli(
        "race", "--name", "r", "-n", "2", "--max", "2", "--check", "test -s f", "--",
        "sh", "-c", command, cwd=repo,
    )  # fmt: skip
    handle = wait_for(lambda: next(iter(project.races.all()), None))
    wait_for(lambda: all(one.candidate.run for one in handle.status().candidates))
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=40) == 130
    assert not handle.is_carried_on
    assert all(capsule.living() for capsule in project.capsules())
    shown = atoll("race", "show", "r", cwd=repo)
    assert "atoll race resume r" in shown.stderr
    for capsule in project.capsules():
        capsule.run(["touch", "go"])
    done = atoll("race", "resume", "r", "--json", cwd=repo)
    shown = json.loads(done.stdout)["data"]
    assert [one["state"] for one in shown["candidates"]] == ["done", "done"]
    assert [one["attempts"] for one in shown["candidates"]] == [1, 1]
    assert [one["run"] for one in shown["candidates"]] == ["r-1.1", "r-2.1"]


def test_in_the_background(
    project: Project, repo: Path, atoll: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    started = atoll(
        "race", "-d", "--name", "r", "-n", "2", "--no-checks", "--",
        "sh", "-c", "echo $ATOLL_CAPSULE > f", cwd=repo,
    )  # fmt: skip
    assert started.stdout == "r\n"
    handle = project.races.require("r")
    wait_for(lambda: handle.status().race.state is RaceState.FINISHED)
    wait_for(lambda: not handle.is_carried_on)
    atoll("race", "resume", "r", cwd=repo)
    listed = json.loads(atoll("race", "ls", "--json", cwd=repo).stdout)["data"]
    assert [(one["name"], one["good"]) for one in listed] == [("r", True)]
    refused = atoll("race", "rm", "r", cwd=repo, check=False)
    assert refused.returncode == 4
    atoll("race", "rm", "r", "--force", cwd=repo)
    assert project.races.all() == []
    assert project.capsules() == []


def test_lost_run_is_started_once_more(project: Project) -> None:
    command = "echo $(date +%s.%N) > f; echo written; sleep 600"
    handle = race(project, command, name="r", has_checks=False)
    killed: list[str] = []

    def kill(status: RaceStatus) -> None:
        [one] = status.candidates
        capsule = next(iter(project.capsules()), None)
        living = capsule.living() if capsule is not None else []
        is_running = one.candidate.state is CandidateState.RUNNING
        if capsule is not None and is_running and living and len(killed) < 2:
            [run] = living
            has_written = any(b"written" in entry.data for entry in capsule.log(run))
            if has_written and run.token not in killed:
                killed.append(run.token)
                kill_keeper(run.directory)

    status = handle.carry_on(kill)
    assert states(status) == {"r-1": (FAILED, "its run disappeared twice")}
    assert status.candidates[0].candidate.attempts == 2
    # What the first attempt left is a recovery point.
    assert [point.capsule for point in project.recovery_points()] == ["r-1"]


def kill_keeper(directory: str) -> None:
    from atoll.keeper.status import load_status  # noqa: PLC0415

    status = load_status(directory)
    assert status is not None
    for victim in (status.keeper, status.guard):
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(victim[0], signal.SIGKILL)


WRONG: tuple[tuple[dict[str, Any], type[AtollError], str], ...] = (
    ({}, SpecError, "needs a prompt or a command"),
    ({"prompt": "x", "agents": ("no-such-agent",)}, SpecError, "there is no agent"),
    ({"prompt": "x", "agents": ("script:/none:2",)}, SpecError, "there is no file"),
    ({"prompt": "x", "agents": ("claude:0",)}, SpecError, "from 1 to 100"),
    ({"prompt": "x", "agents": ("claude,,codex",)}, SpecError, "empty name"),
    ({"argv": ("true",), "prompt": "x"}, SpecError, "a command gets no prompt"),
    ({"argv": ("true",), "number": 101}, SpecError, "101 candidates"),
    ({"argv": ("true",), "vary": ("A=1,2,3,4,5,6,7,8,9,0", "B=1,2,3,4,5,6,7,8,9,0,x")},
     SpecError, "110 candidates"),
    ({"argv": ("true",), "vary": ("A",)}, SpecError, "NAME=a,b"),
    ({"argv": ("true",), "vary": ("A=1", "A=2")}, SpecError, "given twice"),
    ({"argv": ("true",), "vary": ("A=1,1",)}, SpecError, "a value twice"),
    ({"argv": ("true",), "vary": ("A B=1",)}, SpecError, "name"),
    ({"argv": ("true",), "vary": ("ATOLL_X=1",)}, SpecError, "set by Atoll itself"),
    ({"argv": ("true",), "name": "taken"}, StateError, "taken-1"),
    ({"argv": ("true",), "name": "Bad Name"}, SpecError, "not usable"),
    ({"argv": ("true",), "name": "x" * 39}, SpecError, "at most"),
    ({"argv": ("true",), "level": "none"}, SpecError, "the checkout itself"),
    ({"argv": ("true",), "base": "nowhere"}, StateError, "unknown or ambiguous"),
    ({"argv": ("true",), "checks": ("tset",)}, SpecError, "there is no check"),
    ({"argv": ("true",), "checks": ("a b", "a b")}, SpecError, "given twice"),
    ({"argv": ("true",), "checks": (" ",)}, SpecError, "needs the name of a check"),
    ({"argv": ("true",), "prompts": ("a", "b")}, SpecError, "has {prompt}"),
    ({"argv": ("true",), "most": 0}, SpecError, "at least 1"),
    ({"argv": ("true",), "model": "m"}, SpecError, "for agents"),
    ({"argv": ("true",), "limits": ("nope=1",)}, SpecError, "mistake"),
    ({"argv": ("true",), "rule": "beauty"}, SpecError, "unknown criterion"),
    ({"argv": ("true",), "rule": "judge"}, SpecError, "never decides alone"),
    ({"argv": ("true",), "rule": " judge:higher"}, SpecError, "never decides alone"),
    ({"argv": ("true",), "promote_to": "local"}, SpecError, "needs checks"),
    ({"argv": ("true",), "accept": ("risky",)}, SpecError, "what `--promote` brings in"),
    ({"argv": ("true",), "checks": ("exit 0",), "promote_to": "lokal"}, SpecError,
     "no stage `lokal`"),
)  # fmt: skip


def test_wrong_requests_make_nothing(project: Project) -> None:
    project.new("taken-1")
    for options, kind, text in WRONG:
        with pytest.raises((kind, PrerequisiteError)) as caught:
            project.races.start(RaceRequest(**options))
        assert text in caught.value.message, options
    assert project.races.all() == []
    assert [capsule.name for capsule in project.capsules()] == ["taken-1"]
    first = race(project, "true", name="r", vary=("A=b",), number=2)
    with pytest.raises(StateError, match="already exists"):
        race(project, "true", name="r")
    with pytest.raises(StateError, match="candidate of another race"):
        race(project, "true", name="r-b")
    assert first.name == "r"
    assert isinstance(project.capsule("taken-1"), Capsule)


def test_an_unattended_race_lands_only_what_was_accepted(
    project: Project, git: Callable[..., str]
) -> None:
    argv = ("sh", "-c", "echo 'all:' > Makefile")
    for name, accept, is_good in (("no", (), False), ("yes", ("risky",), True)):
        request = RaceRequest(
            argv=argv, checks=("test -e Makefile",), name=name, promote_to="local", accept=accept
        )
        done = project.races.start(request).carry_on()
        assert done.promotion is not None
        assert done.promotion.is_good is is_good, done.promotion
        assert is_good or "--accept" in done.promotion.message
        landed = git("ls-tree", "--name-only", "HEAD", cwd=project.root).split()
        assert ("Makefile" in landed) is is_good
