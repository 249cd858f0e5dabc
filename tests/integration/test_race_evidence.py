"""The evidence of a race: real commits, real checks in fresh capsules, and what comes of them."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import atoll
from atoll.engine.check.checks import Checker, CheckTarget
from atoll.engine.race.evidence import cross_tests
from atoll.engine.race.evidence.ranking import pick_by_rule
from atoll.engine.race.results import RaceResults
from atoll.model.check import CheckSpec
from atoll.model.errors import DriverError, SpecError, StateError
from atoll.model.evidence import BASE, CellStatus
from atoll.model.race import CandidateSpec, CandidateState, RaceSpec, RaceState
from present import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from atoll.engine.projects import Project

Files = dict[str, str | bytes | None]
"""By path; None deletes it, and bytes are the target of a link."""

CHECK = 'set -e; for t in tests/*.sh; do test ! -e "$t" || sh -eu "$t"; done'
BENCH = "wc -c <total.sh | sed 's/^/size /; s/$/ B lower/'"
CHECKS = (CheckSpec("test", CHECK), CheckSpec("bench", BENCH, has_figures=True))
REPORT = '<testsuite><testcase name="a"/><testcase name="b"/></testsuite>'
REPORTED = f"set -- 1 2; . ./total.sh; echo '{REPORT}' >r.xml"
BASE_FILES: Files = {
    "total.sh": "echo $(($1 + $2))\n",
    "tests/test_total.sh": 'test "$(sh total.sh 1 2)" = 3\ntest "$(sh total.sh 2 2)" = 4\n',
    "docs/a.md": "a\n",
}
GOOD: Files = {
    "total.sh": "echo $(( $1 + $2 )) # good\n",
    "tests/test_negative.sh": 'test "$(sh total.sh -1 -2)" = -3\n',
}
SHORT: Files = {"total.sh": "echo $(($2+$1))\n"}
NO_NEGATIVE: Files = {
    "total.sh": "case $1 in -*) echo no;; *) echo $(($1 + $2));; esac\n",
    "tests/test_zero.sh": 'test "$(sh total.sh 0 0)" = 0\n',
}
WEAK: Files = {"total.sh": "echo 3\n", "tests/test_total.sh": 'test "$(sh total.sh 1 2)" = 3\n'}
BROKEN: Files = {"total.sh": "echo 5\n"}


class World:
    """A project, and races on it whose candidates are commits of the owner's repository."""

    def __init__(self, project: Project, git: Callable[..., str]) -> None:
        self.project = project
        self.repo = project.root
        self.git = git
        self.write(BASE_FILES)
        git("add", "-A", cwd=self.repo)
        git("commit", "-qm", "base", cwd=self.repo)
        self.base = git("rev-parse", "HEAD", cwd=self.repo).strip()

    def write(self, files: Files) -> None:
        for name, content in files.items():
            path = self.repo / name
            if path.is_symlink() or path.is_file():
                path.unlink()
            if content is None:
                with contextlib.suppress(OSError):
                    path.parent.rmdir()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.symlink_to(content.decode())
            else:
                path.write_text(content)

    def commit(self, files: Files) -> tuple[str, str]:
        """A commit on the base, and its tree."""
        self.git("checkout", "-q", "--detach", self.base, cwd=self.repo)
        self.write(files)
        self.git("add", "-A", cwd=self.repo)
        self.git("commit", "-q", "--allow-empty", "-m", "work", cwd=self.repo)
        found = self.git("rev-parse", "HEAD", "HEAD^{tree}", cwd=self.repo).split()
        self.git("checkout", "-qf", "main", cwd=self.repo)
        return found[0], found[1]

    def race(
        self, attempts: Mapping[str, Files], *, checks: tuple[CheckSpec, ...] = CHECKS,
        **options: object,
    ) -> RaceResults:  # fmt: skip
        """A race that has ended, with its evidence."""
        spec = RaceSpec("add", tuple(CandidateSpec() for _ in attempts), checks, **options)  # type: ignore[arg-type]
        store, record = self.project.session.store, self.project.record
        race = store.add_race(record.id, "sums", self.base, spec, list(attempts))
        checker = Checker(self.project.session, record)
        for one in store.candidates(race.id):
            commit, tree = self.commit(attempts[one.name])
            checker.check(CheckTarget(commit, tree, self.base), checks)
            store.set_candidate(
                one._replace(
                    state=CandidateState.DONE, commit=commit, tree=tree,
                    started_at=1.0, ended_at=3.0,
                )
            )  # fmt: skip
        race = store.set_race_state(race, RaceState.FINISHED)
        self.cross(race)
        return self.project.races.require("sums").results

    def cross(self, race: object) -> list[tuple[int, int]]:
        """Runs the cross-tests; returns the progress that was reported."""
        session, record = self.project.session, self.project.record
        seen: list[tuple[int, int]] = []
        candidates = session.store.candidates(race.id)  # type: ignore[attr-defined]
        cross_tests.run_cross_tests(
            session, record, race, candidates, Checker(session, record),  # type: ignore[arg-type]
            lambda done, total: seen.append((done, total)),
        )  # fmt: skip
        return seen


@pytest.fixture
def world(repo: Path, atoll_home: Path, git: Callable[..., str]) -> Iterator[World]:
    del atoll_home
    opened = atoll.open_project(repo)
    yield World(opened, git)
    for capsule in opened.capsules():
        capsule.remove(force=True)
    opened.session.store.close()


def statuses(results: RaceResults) -> dict[str, dict[str, str]]:
    """The matrix: by the authors of a suite and the candidates of a tree."""
    matrix = results.compare().matrix
    return {
        "+".join(row.names): {
            "+".join(column.names): str(cell.status)
            for column, cell in zip(matrix.columns, row.cells, strict=True)
        }
        for row in matrix.rows
    }


def test_matrix_shows_weak_tests_and_a_rule_picks_by_evidence(world: World) -> None:
    attempts = {
        "good": GOOD, "short": SHORT, "twin": SHORT, "partial": NO_NEGATIVE, "weak": WEAK,
        "broken": BROKEN,
    }  # fmt: skip
    refs = world.git("for-each-ref", "refs/heads", cwd=world.repo)
    results = world.race(attempts)
    assert statuses(results) == {
        BASE: {
            "good": "passed", "short+twin": "passed", "partial": "passed", "weak": "failed",
            "broken": "failed",
        },
        "good": {
            "good": "own", "short+twin": "passed", "partial": "failed", "weak": "failed",
            "broken": "failed",
        },
        "partial": {
            "good": "passed", "short+twin": "passed", "partial": "own", "weak": "failed",
            "broken": "failed",
        },
        "weak": {
            "good": "passed", "short+twin": "passed", "partial": "passed", "weak": "own",
            "broken": "failed",
        },
    }  # fmt: skip
    evidence = results.compare()
    assert "`weak` fails the tests of the base that it changed: `tests/test_total.sh`" in (
        evidence.notes
    )
    assert "`short`, `twin` ended with the same tree" in evidence.notes
    size = len(str(BASE_FILES["total.sh"]))
    assert evidence.base_figures["size"].value == size
    assert [one.cross for one in evidence.candidates if one.name in ("good", "partial")] == [
        (3, 3), (2, 3),
    ]  # fmt: skip

    choice = results.pick(rule="checks, crosstests, bench").choice
    assert (choice.winner, choice.runner_up) == ("short", "good")
    assert choice.reason.startswith("`bench`: ")
    assert choice.rejected["twin"] == "it has the same tree as `short`"
    assert choice.rejected["broken"] == "the check `test`: failed"
    assert choice.rejected["weak"].startswith("it fails the base's tests, of which it changed")
    assert results.race.winner == "short"
    assert results.pick("weak").obstacle.startswith("it fails the base's tests")
    with pytest.raises(SpecError, match="unknown criterion `bnch`") as refused:
        results.pick(rule="bnch:lower")
    assert "`size`" in str(refused.value.hint)

    # Nothing is checked twice, no branch has moved, and no index is left.
    count = len(world.project.session.store._rows("SELECT id FROM check_results"))
    seen = world.cross(results.race)
    assert seen[-1][0] == seen[-1][1]
    assert len(world.project.session.store._rows("SELECT id FROM check_results")) == count
    assert world.git("for-each-ref", "refs/heads", cwd=world.repo) == refs
    assert not list((world.project.session.home / "trees").iterdir())
    assert not world.git("status", "--porcelain", cwd=world.repo)


def test_code_that_ends_the_test_runner_is_noted(world: World) -> None:
    attempts: dict[str, Files] = {
        "quits": {"total.sh": "exit 0\n"}, "works": {"total.sh": ": # works\n"},
    }  # fmt: skip
    results = world.race(attempts, checks=(CheckSpec("test", REPORTED, junit="r.xml"),))
    assert statuses(results)[BASE] == {"quits": "passed", "works": "passed"}
    [note] = [note for note in results.compare().notes if "report" in note]
    assert note == (
        "the tests of the base pass on `quits`, but its report has none of the 2 tests that pass "
        "on the base"
    )


def test_hostile_trees_cannot_be_combined_and_are_not_picked(world: World) -> None:
    gone: Files = {"tests/test_total.sh": None}
    results = world.race({
        "link": {**gone, "tests": b"docs", "total.sh": "echo 3\n"},
        "file": {**gone, "tests": "no directory\n"},
        "deep": {"tests/test_total.sh": None, "tests/test_total.sh/x": "echo\n"},
        "deleted": dict.fromkeys(BASE_FILES),
        "idle": {},
    })  # fmt: skip
    base = statuses(results)[BASE]
    assert base == {
        "link": "impossible", "file": "impossible", "deep": "passed", "deleted": "failed",
        "idle": "passed",
    }  # fmt: skip
    choice = results.pick().choice
    assert choice.winner == "deep"
    assert "cannot exist" in choice.rejected["link"]
    assert choice.rejected["idle"] == "it changes nothing"
    assert any(
        note.startswith("the tests of the base cannot be run") for note in (results.compare().notes)
    )


def test_judge_is_one_voice_in_both_orders(world: World, tmp_path: Path) -> None:
    results = world.race({"good": GOOD, "short": SHORT, "partial": NO_NEGATIVE})
    heard = tmp_path / "heard"
    first = (
        f"tee -a {heard} | python3 -c 'import json, sys; "
        'print(json.dumps([c["name"] for c in json.load(sys.stdin)["candidates"]]))\''
    )
    picked = results.pick(judge=first)
    # It prefers what comes first, in either order: that says nothing.
    judgement = picked.evidence.judgement
    assert judgement is not None
    assert set(judgement.ranks.values()) == {1}
    assert len(judgement.undecided) == 3
    assert any("contradicts itself" in note for note in picked.evidence.notes)
    asked = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [[c["name"] for c in question["candidates"]] for question in asked] == [
        ["A", "B", "C"], ["D", "E", "F"],
    ]  # fmt: skip
    assert asked[0]["candidates"][0]["diff"] == asked[1]["candidates"][2]["diff"]
    assert "good" not in json.dumps(asked).replace("# good", "")
    results.pick(judge=first)
    assert len(heard.read_text().splitlines()) == 2
    longest = first.replace("[c[", "[c[").replace(
        'json.load(sys.stdin)["candidates"]',
        'sorted(json.load(sys.stdin)["candidates"], key=lambda c: -len(c["diff"]))',
    )
    picked = results.pick(judge=longest, rule="checks, judge, diff")
    assert picked.choice.winner == "partial"
    assert picked.choice.reason == "`judge`: rank 1 against rank 2 of `good`"
    with pytest.raises(SpecError, match="never decides alone"):
        results.pick(judge=first, rule="judge")
    for wrong in ("exit 3", "echo A B", "echo '[1, 2]'", "yes"):
        with pytest.raises(DriverError, match="judge"):
            results.pick(judge=wrong)


def test_losers_are_discarded_only_of_a_race_that_has_ended(
    world: World, atoll: Callable[..., Any]
) -> None:
    results = world.race({"good": GOOD, "short": SHORT})
    store = world.project.session.store
    race = store.set_race_state(results.race, RaceState.RUNNING)
    refused = atoll("pick", race.name, "good", "--discard-losers", cwd=world.repo, check=False)
    assert (refused.returncode, "has not ended" in refused.stderr) == (4, True)
    assert present(store.race(race.id)).winner is None
    assert not any(one.is_removed for one in store.candidates(race.id))


def interrupted(project: Project, act: Callable[[], object]) -> None:
    """Interrupts `act` when it begins to make a capsule."""

    def interrupt(step: str, subject: str) -> None:
        del subject
        if step == "new.leased":
            raise KeyboardInterrupt

    before, project.session.listen = project.session.listen, interrupt
    try:
        act()
    finally:
        project.session.listen = before


def test_graft_is_a_candidate_like_the_rest(world: World, git: Callable[..., str]) -> None:
    results = world.race({"good": GOOD, "short": SHORT, "partial": NO_NEGATIVE})
    grafted = results.graft(["short:total.sh", "good:tests", "partial:tests/"]).candidate
    assert grafted.name == "sums-graft-1"
    assert grafted.state is CandidateState.DONE
    assert git("rev-parse", f"atoll/{grafted.name}", cwd=world.repo).strip() == grafted.commit
    assert git("show", f"{grafted.commit}:total.sh", cwd=world.repo) == SHORT["total.sh"]
    names = git("ls-tree", "--name-only", grafted.commit, "tests/", cwd=world.repo).split()
    assert [os.path.basename(name) for name in names] == [
        "test_negative.sh", "test_total.sh", "test_zero.sh",
    ]  # fmt: skip
    assert git("rev-parse", f"{grafted.commit}^", cwd=world.repo).strip() == world.base
    counted = git("diff", "--shortstat", world.base, grafted.commit, cwd=world.repo)
    told = (f"{grafted.files} files", f"{grafted.added} insertion", f"{grafted.removed} deletion")
    assert [word for word in told if word not in counted] == [], counted
    capsule = world.project.capsule(grafted.name)
    assert capsule.record.base_commit == world.base
    evidence = results.compare()
    found = evidence.find(grafted.name)
    assert found is not None
    assert found.base_tests.status is CellStatus.PASSED
    assert all(result is not None and result.passed for result in found.checks)
    assert pick_by_rule(evidence).ranking

    # A killed command leaves a candidate without a capsule; the same command goes on with it.
    with pytest.raises(KeyboardInterrupt):
        interrupted(world.project, lambda: results.graft(["partial"]))
    with pytest.raises(StateError, match="has not ended") as refused:
        results.pick()
    assert str(refused.value.hint).startswith("atoll graft sums partial")
    assert results.graft(["partial"]).candidate.name == "sums-graft-2"
    assert results.pick().choice.winner

    for words, message in (
        (["good:total.sh", "short"], "the parts differ about `total.sh`"),
        (["good:docs"], "`good` changes nothing at `docs`, only `tests/test_negative.sh`"),
        (["nobody:docs"], "no candidate `nobody`"),
    ):
        with pytest.raises(StateError, match=message) as wrong:
            results.graft(words)
        assert wrong.value.hint != "atoll compare"
    for word in ("good:../x", "good:/etc", "good:", "good:a//b", "good:.git/hooks", "Good!:a"):
        with pytest.raises(SpecError):
            results.graft([word])
    assert [one.name for one in results.candidates()][3:] == [grafted.name, "sums-graft-2"]


ATTEMPTS = {
    "fast": "echo 'echo $(($2+$1))' > total.sh",
    "slow": "echo 'sleep 0; echo $(( $1 + $2 ))' > total.sh; "
    "echo 'test \"$(sh total.sh -1 1)\" = 0' > tests/test_zero.sh",
    "weak": "echo 'echo 3' > total.sh; echo 'sh total.sh 1 2' > tests/test_total.sh",
}


def test_from_the_race_to_the_winner_on_the_command_line(
    world: World, atoll: Callable[..., Any], git: Callable[..., str], tmp_path: Path
) -> None:
    repo = world.repo
    kind = " ".join(f"{name}) {script};;" for name, script in ATTEMPTS.items())
    atoll(
        "race", "--name", "sums", "--vary", "KIND=fast,slow,weak", "--check", CHECK, "--",
        "sh", "-c", f"case $KIND in {kind} esac", cwd=repo,
    )  # fmt: skip
    shown = atoll("compare", "sums", cwd=repo).stdout
    assert "`sums-weak` fails the tests of the base that it changed: `tests/test_total.sh`" in shown
    data = json.loads(atoll("compare", "sums", "--json", cwd=repo).stdout)["data"]
    assert [(one["name"], one["base_tests"]) for one in data["candidates"]] == [
        ("sums-fast", "passed"), ("sums-slow", "passed"), ("sums-weak", "failed"),
    ]  # fmt: skip
    assert (
        data["candidates"][2]["tree"]
        == git("rev-parse", "atoll/sums-weak^{tree}", cwd=repo).strip()
    )
    patch = atoll("compare", "sums", "--diff", "sums-fast", "sums-slow", cwd=repo).stdout
    assert patch == git("diff", "atoll/sums-fast", "atoll/sums-slow", cwd=repo)
    stat = atoll("compare", "sums", "--diff", BASE, "sums-fast", "--stat", cwd=repo).stdout
    assert "total.sh | 2 +-" in stat
    page = tmp_path / "page.html"
    atoll("compare", "sums", "--html", str(page), cwd=repo)
    assert "cannot be combined" not in page.read_text()
    assert "sums-weak" in page.read_text()

    judge_choice(world, atoll, git)


def judge_choice(world: World, atoll: Callable[..., Any], git: Callable[..., str]) -> None:
    """The second half of the way: the choice, a graft, and the end."""
    repo = world.repo
    refused = atoll("pick", "sums", "--rule", "checks, spede", cwd=repo, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    picked = atoll("pick", "sums", "--discard-losers", cwd=repo)
    assert picked.stdout == "sums-fast\n"
    assert "not `sums-weak`: it fails the base's tests" in picked.stderr
    assert [capsule.name for capsule in world.project.capsules()] == ["sums-fast"]
    assert git("for-each-ref", "--format=%(refname)", "refs/heads/atoll", cwd=repo).split() == [
        "refs/heads/atoll/sums-fast"
    ]
    points = {point.capsule for point in world.project.recovery_points()}
    assert {"sums-weak", "sums-slow"} <= points
    # What was observed stays, and can still be grafted.
    made = atoll("graft", "sums", "sums-slow", "--name", "both", cwd=repo)
    assert made.stdout == "both\n"
    again = json.loads(atoll("compare", "sums", "--json", cwd=repo).stdout)["data"]
    assert [one["removed"] for one in again["candidates"]] == [False, True, True, False]
    assert again["winner"] == "sums-fast"
    none = atoll("pick", "sums", "--rule", "diff", "--json", cwd=repo)
    assert json.loads(none.stdout)["data"]["ranking"][0] == "sums-fast"
    kept = atoll("race", "rm", "sums", cwd=repo, check=False)
    assert kept.returncode == 4
    assert "hint: atoll race rm sums --force" in kept.stderr
    atoll("race", "rm", "sums", "--force", cwd=repo)
    assert not git("for-each-ref", "refs/atoll/races", cwd=repo)
