"""Work of real capsules goes through the stages: verified, landed, deployed, taken back."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest

import atoll
from atoll.cli.promote import render_landing
from atoll.engine.promotion import acceptance, merge_capsule, stage_commands, stage_runs
from atoll.engine.promotion.promotions import PromotionReport
from atoll.keeper import process_tree
from atoll.model.errors import SpecError, StateError
from atoll.model.promotion import PromotionState, StepAct

CHECKS = """
[checks.test]
run = "test ! -e broken && test ! -e broken-with-other -o ! -e other.txt"
"""
STAGING = """
[stages.local]
[stages.staging]
run = "echo ran $ATOLL_COMMIT >> $MARKS; test ! -e ../fails"
undo = "echo undone $ATOLL_COMMIT $ATOLL_PREVIOUS_COMMIT >> $MARKS; test ! -e ../undo-fails"
health = "test ! -e ../sick"
"""


class Desk:
    """A project whose owner promotes."""

    def __init__(self, project, git, marks: Path) -> None:
        self.project, self._git, self._marks = project, git, marks
        self.root = project.root
        self.declare("")

    def declare(self, text: str) -> None:
        (self.root / "atoll.toml").write_text(CHECKS + text)
        self.git("add", "atoll.toml")
        self.git("commit", "--quiet", "--allow-empty", "--message", "settings")
        self.project.trust()

    def git(self, *words: str) -> str:
        return self._git(*words, cwd=self.root)

    def at(self, ref: str = "main") -> str:
        return self.git("rev-parse", ref).strip()

    def tree(self, ref: str = "main") -> str:
        return self.at(f"{ref}^{{tree}}")

    def commit(self, path: str, text: str = "owner\n") -> str:
        (self.root / path).write_text(text)
        self.git("add", path)
        self.git("commit", "--quiet", "--message", f"add {path}")
        return self.at("HEAD")

    def work(self, name: str, script: str = "echo new > new.txt"):
        """A capsule with one commit."""
        capsule = self.project.new(name)
        self.more(capsule, script)
        return capsule

    def more(self, capsule, script: str) -> str:
        assert capsule.run(["sh", "-c", script]).exit_code == 0
        return capsule.commit(f"work: {script[:20]}")

    def promote(self, capsule, *args, **kwargs) -> PromotionReport:
        return self.project.promotions.promote(capsule.record, *args, **kwargs)

    def marks(self) -> list[str]:
        text = self._marks.read_text() if self._marks.exists() else ""
        return [line.split()[0] for line in text.splitlines()]

    def left(self) -> list[str]:
        names = [path.name for path in (self.root / ".git").rglob("*.lock")]
        names += [path.name for path in (self.root / ".git").glob("atoll-*")]
        home = self.project.session.home
        names += [path.name for path in (home / "locks").iterdir() if "promotion" in path.name]
        records = self.project.session.store.capsules(self.project.record.id)
        return names + [record.name for record in records if record.temporary]


@pytest.fixture
def desk(project, git, tmp_path, monkeypatch):
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    made = Desk(project, git, tmp_path / "marks")
    yield made
    assert made.left() == []


def test_verified_tree_lands_beside_uncommitted_work_and_is_taken_back(desk):
    before = desk.at()
    capsule = desk.work("x")
    desk.more(capsule, "echo more > more.txt")
    (desk.root / "README.md").write_text("edited\n")
    report = desk.promote(capsule)
    assert (report.has_passed, report.exit_code) == (True, 0)
    assert report.passed_stages == ("verified", "local")
    assert desk.at("main^") == before
    assert desk.tree() == desk.tree("atoll/x") == report.landings[0].facts.tree
    assert {result.tree for result in report.results} == {desk.tree()}
    assert desk.git("log", "-1", "--format=%an %B") == (
        "Test Owner work: echo new > new.txt\n\n* work: echo new > new.txt\n"
        "* work: echo more > more.txt\n\nAtoll-Capsule: x\n\n"
    )
    assert desk.git("status", "--porcelain") == " M README.md\n"
    # Again: nothing is done twice. The work is in the branch, so that the capsule can go.
    assert desk.promote(capsule).landings == report.landings
    assert not capsule.work().any
    undone = desk.project.promotions.undo()
    assert undone.promotion.state is PromotionState.UNDONE
    assert desk.at() == before
    assert desk.git("status", "--porcelain") == " M README.md\n"
    assert capsule.work().commits == 2
    with pytest.raises(StateError, match="no promotion"):
        desk.project.promotions.undo()
    # It can be promoted once more, and goes on from there with what is committed later.
    assert desk.promote(capsule, message="mine").has_passed
    desk.more(capsule, "echo even more >> more.txt")
    assert desk.promote(capsule).has_passed
    assert desk.tree() == desk.tree("atoll/x")
    assert desk.git("log", "--format=%s", "-2") == "work: echo even more >> mo\nmine\n"


@pytest.mark.parametrize("way", ["squash", "merge", "rebase", "ff", "patch"])
def test_work_is_brought_onto_a_branch_that_has_moved_and_verified_again(desk, way):
    desk.declare(f'[stages.local]\nmerge = "{way}"\n')
    capsule = desk.work("x")
    tip = desk.more(capsule, "echo more > more.txt")
    moved = desk.commit("other.txt")
    report = desk.promote(capsule)
    assert report.has_passed, report.promotion.spec
    facts = report.landings[0].facts
    trees = [result.tree for result in report.results]
    assert trees == [desk.tree(tip), facts.tree]
    if way == "patch":
        assert desk.at() == moved
        assert desk.git("status", "--porcelain") == "?? more.txt\n?? new.txt\n"
    else:
        assert desk.tree() == facts.tree
        assert desk.git("status", "--porcelain") == ""
        parents = {"merge": [moved, tip], "squash": [moved]}
        if way in parents:
            assert desk.git("log", "-1", "--format=%P").split() == parents[way]
        else:
            assert desk.at("main~2") == moved
    assert set(desk.git("ls-tree", "--name-only", facts.tree).split()) >= {
        "new.txt", "more.txt", "other.txt"}  # fmt: skip
    undone = desk.project.promotions.undo("x")
    [back] = [step for step in undone.steps if step.act is StepAct.UNDO_LAND]
    assert ("taken out of" in render_landing(back)) == (way == "patch")
    assert desk.at() == moved
    assert desk.git("status", "--porcelain") == ""


def test_work_that_fails_with_what_is_new_does_not_land(desk):
    """What was verified alone is not what would land."""
    capsule = desk.work("x", "touch broken-with-other")
    moved = desk.commit("other.txt")
    report = desk.promote(capsule)
    assert (report.promotion.state, report.exit_code) == (PromotionState.FAILED, 1)
    assert report.passed_stages == ("verified",)
    assert "`test` failed" in report.promotion.spec.reason
    assert desk.at() == moved


def test_branch_that_moves_between_verification_and_landing(desk, monkeypatch):
    """It is brought onto the new tip and verified again, and not for ever."""
    capsule = desk.work("x")
    reach = type(desk.project.session).reach
    moves = [1]

    def moving(session, step, subject):
        reach(session, step, subject)
        if step == "promote.accepted" and moves[0] > 0:
            moves[0] -= 1
            desk.commit(f"moved-{moves[0]}.txt")

    monkeypatch.setattr(type(desk.project.session), "reach", moving)
    report = desk.promote(capsule)
    assert report.has_passed
    assert (desk.root / "moved-0.txt").exists()
    assert desk.at("main^") == report.landings[-1].facts.old
    desk.more(capsule, "echo more > more.txt")
    moves[0] = 100
    report = desk.promote(capsule)
    assert report.exit_code == 4
    assert "moved 5 times" in report.promotion.spec.reason


@pytest.mark.parametrize("way", ["squash", "merge", "rebase"])
def test_conflict_is_left_in_a_capsule_for_the_owner(desk, way):
    desk.declare(f'[stages.local]\nmerge = "{way}"\n')
    capsule = desk.work("x", "echo agent > app.py")
    moved = desk.commit("app.py", "owner\n")
    report = desk.promote(capsule)
    assert (report.promotion.state, report.exit_code) == (PromotionState.WAITING, 4)
    assert "`app.py`" in report.promotion.spec.reason
    assert "atoll promote x-onto-main" in report.promotion.spec.hint
    assert desk.at() == moved
    # Not one more for each try.
    assert desk.promote(capsule).promotion.spec.reason == report.promotion.spec.reason
    assert [one.name for one in desk.project.capsules()] == ["x", "x-onto-main"]
    kept = desk.project.capsule("x-onto-main")
    verb = {"squash": "cherry-pick", "merge": "merge", "rebase": "rebase"}[way]
    script = f"echo both > app.py; git add app.py; GIT_EDITOR=true git {verb} --continue"
    assert kept.run(["sh", "-c", script]).exit_code == 0
    report = desk.promote(kept)
    assert report.has_passed, report.promotion.spec
    assert (desk.root / "app.py").read_text() == "both\n"


def test_failed_or_flaky_checks_and_none_at_all_land_nothing(desk):
    capsule = desk.work("x", "touch broken")
    before = desk.at()
    report = desk.promote(capsule)
    assert (report.exit_code, report.passed_stages) == (1, ())
    desk.more(capsule, "rm broken")
    assert desk.promote(capsule).has_passed
    (desk.root / "atoll.toml").unlink()
    desk.git("commit", "--quiet", "--all", "--message", "no checks")
    before = desk.at()
    other = desk.work("y")
    report = desk.promote(other)
    assert report.exit_code == 4
    assert "no checks" in report.promotion.spec.reason
    assert desk.at() == before


def test_what_cannot_be_promoted_is_refused(desk):
    capsule = desk.project.new("x")
    with pytest.raises(StateError, match="committed nothing"):
        desk.promote(capsule)
    capsule.run(["sh", "-c", "echo loose > loose.txt"])
    with pytest.raises(StateError, match=r"uncommitted work: `loose\.txt`") as caught:
        desk.promote(capsule)
    assert "atoll commit x" in str(caught.value.hint)
    capsule.commit("loose")
    with pytest.raises(SpecError, match="no stage `moon`"):
        desk.promote(capsule, "moon")
    with pytest.raises(SpecError, match="no such kind"):
        desk.promote(capsule, accept=["everything"])
    with pytest.raises(StateError, match="never promoted"):
        desk.project.promotions.status("x")
    (desk.root / "atoll.toml").write_text(CHECKS + STAGING)
    with pytest.raises(StateError, match="changed since") as caught:
        desk.promote(capsule)
    assert caught.value.hint == "read it, then: atoll trust"


@pytest.mark.parametrize("way", ["rebase", "ff", "merge"])
def test_merge_that_drops_the_commits_of_the_branch_does_not_land(desk, monkeypatch, way):
    desk.declare(f'[stages.local]\nmerge = "{way}"\n')
    capsule = desk.work("x")
    before = desk.commit("other.txt")
    # As if what runs in the capsule had answered for git.
    monkeypatch.setattr(merge_capsule, "merge", lambda *_: desk.at("HEAD~1"))
    report = desk.promote(capsule)
    assert (report.exit_code, report.landings) == (5, ())
    assert "does not contain" in report.promotion.spec.reason
    assert desk.at() == before


def test_huge_diff_of_risky_files_is_cut_before_it_is_held(desk, monkeypatch):
    monkeypatch.setattr(acceptance, "_DIFF_BYTES", 100_000)
    capsule = desk.work("x", "seq -f 'x%.0f: y' 200000 > big.mk")
    asked = []

    def refuse(request):
        asked.append(request)
        return False

    report = desk.promote(capsule, ask=refuse)
    assert report.exit_code == 4
    assert len(asked[0].diff) < 100_200
    assert b"the diff is too large and is cut here" in asked[0].diff[-100:]
    # A script is asked nothing, and waits however large the files are.
    assert desk.promote(capsule).exit_code == 4
    assert desk.promote(capsule, accept=["build"]).has_passed


def test_risky_files_need_a_yes_bound_to_the_tree(desk):
    capsule = desk.work("x", "mkdir .vscode; echo '{}' > .vscode/tasks.json; echo n > new.txt")
    before = desk.at()
    report = desk.promote(capsule)
    assert report.exit_code == 4
    assert ".vscode/tasks.json" in report.promotion.spec.reason
    assert "--accept editor" in report.promotion.spec.hint
    asked = []

    def refuse(request):
        asked.append(request)
        return False

    report = desk.promote(capsule, ask=refuse)
    assert (report.exit_code, len(asked)) == (4, 1)
    assert b"tasks.json" in asked[0].diff
    assert b"new.txt" not in asked[0].diff
    assert desk.at() == before
    assert desk.promote(capsule, accept=["editor"]).has_passed
    desk.project.promotions.undo()
    # The yes was to this promotion's tree.
    assert desk.promote(capsule).exit_code == 4
    assert desk.promote(capsule, ask=lambda _: True).has_passed
    given = [s for s in desk.project.promotions.status("x").steps if s.act is StepAct.ACCEPT]
    assert given[0].facts.by.startswith("Test Owner <owner@example.org>")


def test_the_program_of_a_stage_is_risky(desk):
    desk.declare('[stages.local]\n[stages.staging]\nrun = "./src/calc.py"\n')
    capsule = desk.work("x", "echo '# more' >> src/calc.py")
    report = desk.promote(capsule, "staging")
    assert report.exit_code == 4
    assert "src/calc.py" in report.promotion.spec.reason


def test_stages_run_their_commands_and_undo_them(desk):
    desk.declare(STAGING)
    capsule = desk.work("x")
    assert desk.promote(capsule).passed_stages == ("verified", "local")
    assert desk.marks() == []
    report = desk.promote(capsule, "staging")
    assert report.passed_stages == ("verified", "local", "staging")
    assert desk.promote(capsule, "staging").has_passed
    assert desk.marks() == ["ran"]
    run = next(step for step in report.steps if step.act is StepAct.RUN)
    assert (run.facts.commit, run.facts.exit_code) == (desk.at(), 0)
    before = desk.at("main^")
    assert desk.project.promotions.undo("x").exit_code == 0
    assert desk.marks() == ["ran", "undone"]
    assert desk.at() == before


def test_a_stage_that_fails_is_undone_and_tried_again_only_when_asked(desk):
    desk.declare(STAGING)
    capsule = desk.work("x")
    fails = desk.root.parent / "fails"
    fails.touch()
    report = desk.promote(capsule, "staging")
    assert (report.promotion.state, report.exit_code) == (PromotionState.FAILED, 1)
    assert report.passed_stages == ("verified", "local")
    assert "failed: exit code 1; its undo command has run" in report.promotion.spec.reason
    assert desk.marks() == ["ran", "undone"]
    assert desk.promote(capsule, "staging").exit_code == 1
    assert desk.marks() == ["ran", "undone"]
    fails.unlink()
    sick = desk.root.parent / "sick"
    sick.touch()
    report = desk.promote(capsule, "staging", again=True)
    assert "health of the stage `staging` failed" in report.promotion.spec.reason
    assert desk.marks() == ["ran", "undone"] * 2
    # An undo that fails too says so, and is not repeated by itself.
    undo_fails = desk.root.parent / "undo-fails"
    undo_fails.touch()
    report = desk.promote(capsule, "staging", again=True)
    assert report.exit_code == 5
    assert "UNDO FAILED TOO" in report.promotion.spec.reason
    assert desk.marks() == ["ran", "undone"] * 3
    undone = desk.project.promotions.undo()
    assert undone.exit_code == 5
    assert "stays where it is" in undone.promotion.spec.reason
    assert desk.marks() == ["ran", "undone"] * 3
    with pytest.raises(StateError, match="being taken back"):
        desk.promote(capsule, "staging")
    undo_fails.unlink()
    assert desk.project.promotions.undo(again=True).exit_code == 0
    assert desk.marks() == [*["ran", "undone"] * 3, "undone"]


def test_a_stage_that_failed_before_the_kill_is_undone_by_the_next_command(desk, monkeypatch):
    desk.declare(STAGING)
    capsule = desk.work("x")
    (desk.root.parent / "fails").touch()

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as trap:
        trap.setattr(stage_runs, "undo_failed", die)
        with pytest.raises(KeyboardInterrupt):
            desk.promote(capsule, "staging")
    assert desk.marks() == ["ran"]
    report = desk.promote(capsule, "staging")
    assert (report.promotion.state, report.exit_code) == (PromotionState.FAILED, 1)
    assert "its undo command has run" in report.promotion.spec.reason
    assert desk.promote(capsule, "staging").exit_code == 1
    assert desk.marks() == ["ran", "undone"]


def test_a_command_that_outlives_its_atoll_is_neither_run_nor_undone_beside_itself(
    desk, start_cli, wait_for
):
    desk.declare("""
        [stages.local]
        [stages.staging]
        run = "echo ran >> $MARKS; sleep 600"
        undo = "echo undone >> $MARKS"
    """)
    capsule = desk.work("x")
    started = start_cli("promote", "x", "--to", "staging", cwd=desk.root)
    store, project = desk.project.session.store, desk.project.record

    def is_recorded():
        steps = [s for one in store.promotions(project.id) for s in store.promotion_steps(one.id)]
        return any(step.facts.process for step in steps)

    wait_for(lambda: desk.marks() == ["ran"] and is_recorded(), what="the command")
    started.kill()
    started.wait(timeout=20)
    with pytest.raises(StateError, match="is still running as process"):
        desk.promote(capsule, "staging", again=True)
    with pytest.raises(StateError, match="is still running as process") as found:
        desk.project.promotions.undo()
    group = int(str(found.value.hint).rpartition("-")[2])
    os.killpg(group, signal.SIGKILL)

    def has_ended():
        process = process_tree.find_process(group)
        return process is None or process.is_dead

    wait_for(has_ended, what="the end of the command")
    assert desk.project.promotions.undo().exit_code == 0
    assert desk.marks() == ["ran", "undone"]


def test_the_work_of_a_removed_capsule_survives_the_undo_of_its_promotion(desk):
    capsule = desk.work("x")
    assert desk.promote(capsule).has_passed
    landed = desk.at()
    capsule.remove()
    assert desk.project.promotions.undo().exit_code == 0
    [point] = desk.project.recovery_points()
    assert (point.capsule, point.commit) == ("x", landed)
    # A capsule that is still there needs none.
    other = desk.work("y")
    desk.promote(other)
    desk.project.promotions.undo()
    assert len(desk.project.recovery_points()) == 1


def test_a_full_disk_of_logs_does_not_end_the_command_of_a_stage(desk, monkeypatch):
    desk.declare(STAGING + '[stages.long]\nrun = "echo a; sleep 1; echo b; echo long >> $MARKS"\n')

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as trap:
        trap.setattr(stage_commands.files, "write_all", fail)
        assert desk.promote(desk.work("x"), "long").has_passed
    assert desk.marks() == ["ran", "long"]


def test_a_stage_does_not_wait_for_what_its_command_leaves_in_the_background(desk):
    desk.declare('[stages.local]\n[stages.staging]\nrun = "sleep 600 & echo on"\n')
    report = desk.promote(desk.work("x"), "staging")
    assert report.has_passed, report.promotion.spec.reason
    run = next(step for step in report.steps if step.act is StepAct.RUN)
    assert run.facts.output == "on\n"


def test_the_landing_of_a_stage_that_fails_is_taken_back(desk):
    desk.declare('[stages.local]\nrun = "exit 3"\n')
    capsule = desk.work("x")
    before = desk.at()
    report = desk.promote(capsule)
    assert report.exit_code == 1
    assert "exit code 3" in report.promotion.spec.reason
    assert "the branch is back" in report.promotion.spec.reason
    assert desk.at() == before
    assert desk.git("status", "--porcelain") == ""


def test_an_approval_is_bound_to_the_tree(desk):
    desk.declare("[stages.local]\napprove = true\n")
    capsule = desk.work("x")
    before = desk.at()
    promotions = desk.project.promotions
    report = desk.promote(capsule)
    assert (report.exit_code, report.promotion.state) == (4, PromotionState.WAITING)
    assert "atoll approve x local" in report.promotion.spec.hint
    with pytest.raises(StateError, match="does not wait"):
        promotions.approve("x", "staging")
    given = promotions.approve("x", "local")
    assert given.tree == desk.tree("atoll/x")
    # Something else would land now.
    desk.commit("other.txt")
    report = desk.promote(capsule)
    assert report.exit_code == 4
    assert desk.at() != before
    assert promotions.approve("x", "local").tree != given.tree
    assert desk.promote(capsule).has_passed
    assert [one.stage for one in promotions.history()[0].approvals] == ["local", "local"]


def test_an_undo_that_was_begun_ends_when_the_branch_has_gone_on(desk):
    desk.declare(STAGING)
    capsule = desk.work("x")
    assert desk.promote(capsule, "staging").has_passed
    undo_fails = desk.root.parent / "undo-fails"
    undo_fails.touch()
    assert desk.project.promotions.undo().exit_code == 5
    undo_fails.unlink()
    top = desk.commit("other.txt")
    report = desk.project.promotions.undo(again=True)
    assert (report.promotion.state, report.exit_code) == (PromotionState.FAILED, 4)
    assert "on top" in report.promotion.spec.reason
    assert "git revert" in report.promotion.spec.hint
    assert (desk.marks(), desk.at()) == (["ran", "undone", "undone"], top)
    # It can be promoted again, and then only the stages that were undone are walked.
    assert desk.promote(capsule, "staging").has_passed
    assert (desk.marks()[3:], desk.at()) == (["ran"], top)


def test_a_patch_that_the_owner_has_thrown_away_is_undone(desk):
    desk.declare('[stages.local]\nmerge = "patch"\n')
    capsule = desk.work("x", "echo new > new.txt; echo more >> README.md")
    assert desk.promote(capsule).has_passed
    desk.git("restore", "README.md")
    assert desk.project.promotions.undo().exit_code == 0
    assert desk.git("status", "--porcelain") == ""
    assert desk.promote(capsule).has_passed
    assert desk.git("status", "--porcelain") == " M README.md\n?? new.txt\n"


def test_undo_says_what_to_revert_when_others_have_gone_on(desk):
    capsule = desk.work("x")
    desk.promote(capsule)
    landed = desk.at()
    top = desk.commit("other.txt")
    with pytest.raises(StateError, match="on top") as caught:
        desk.project.promotions.undo()
    assert caught.value.hint == f"on main: git revert {landed}"
    assert desk.at() == top


def test_the_command_line_behaves_the_same_without_a_terminal(desk, atoll):
    """An exit code and a report; nothing is asked."""
    capsule = desk.work("x", "mkdir .vscode; echo '{}' > .vscode/tasks.json")
    done = atoll("promote", "x", "--json", cwd=desk.root, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, report["kind"]) == (4, "promotion")
    assert (report["data"]["state"], report["data"]["exit_code"]) == ("waiting", 4)
    done = atoll("promote", "x", "--accept", "risky", "-m", "land: it", cwd=desk.root)
    assert "(squash)" in done.stdout
    assert desk.git("log", "-1", "--format=%s") == "land: it\n"
    shown = atoll("promote", "x", "--status", cwd=desk.root).stdout
    assert "local: passed" in shown
    assert "accept done" in shown
    listed = json.loads(atoll("history", "--json", cwd=desk.root).stdout)["data"]
    assert listed[0]["checks"][0]["tree"] == listed[0]["tree"]
    atoll("undo", "x", cwd=desk.root)
    assert atoll("undo", cwd=desk.root, check=False).returncode == 4
    del capsule


def test_two_promotions_at_once(desk, start_cli, wait_for, atoll):
    """The second is refused and can be repeated."""
    desk.declare('[checks.slow]\nrun = "sleep 3"\n')
    desk.work("x")
    desk.work("y", "echo y > y.txt")
    first = start_cli("promote", "x", cwd=desk.root)
    lock = desk.project.session.promotion_lock(desk.project.record.id).path
    wait_for(lock.exists, what="the first promotion")
    second = atoll("promote", "y", cwd=desk.root, check=False)
    assert second.returncode == 4
    assert "another promotion" in second.stderr
    assert first.wait(timeout=60) == 0
    assert atoll("promote", "y", cwd=desk.root).returncode == 0
    assert {"new.txt", "y.txt"} <= set(os.listdir(desk.root))


def test_rewritten_history_lands_as_a_squash_only(desk):
    desk.declare('[stages.local]\n[stages.linear]\nbranch = "linear"\nmerge = "rebase"\n')
    desk.git("branch", "linear")
    capsule = desk.project.new("x")
    script = "git checkout -q --orphan other; echo n > new.txt; git add .; git commit -qm all; "
    script += "git branch -f atoll/x; git checkout -q atoll/x"
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    report = desk.promote(capsule, "linear")
    assert report.passed_stages == ("verified", "local")
    assert desk.tree() == desk.tree("atoll/x")
    assert "rewritten" in report.promotion.spec.reason


def test_level_worktree(desk, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "worktree")
    capsule = desk.work("x")
    desk.commit("other.txt")
    report = desk.promote(capsule)
    assert report.has_passed, report.promotion.spec
    assert desk.git("branch", "--list", "atoll/*").split() == ["+", "atoll/x"]


def test_library(desk):
    capsule = desk.work("x")
    assert atoll.open_project(desk.root).capsule("x").promote().has_passed
    assert desk.tree() == desk.tree(capsule.record.branch)
