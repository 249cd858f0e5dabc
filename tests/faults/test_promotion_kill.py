"""kill -9 at every step of a promotion and of its undo: the next command goes on where it was.

Nothing is done twice, the owner's uncommitted work is untouched, and no lock or capsule is left,
with the branch in the main checkout, in a linked worktree, or nowhere.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.cli import app
from atoll.engine.state.session import STEPS
from atoll.testing.faults import KILLED, kill_at, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECT_FILE = """
[checks.test]
run = "test -e new.txt"
[stages.local]
branch = "main"
[stages.staging]
run = "echo ran >> $MARKS"
undo = "echo undone >> $MARKS"
health = "true"
"""
UNKNOWN = {"promote.running", "promote.ran", "undo.running", "undo.ran"}
"""Nobody knows whether the command has ended, so that a person has to decide."""
IN_A_CHECKOUT = {"noted", "prepared", "files", "indexed"}


class Desk:
    """A project whose branch `main` is checked out at `place`, if anywhere."""

    def __init__(self, root: Path, place: Path | None, marks: Path, git: Any) -> None:
        self.root, self.place, self.marks, self._git = root, place, marks, git

    def git(self, *words: str, cwd: Path | None = None) -> str:
        return self._git(*words, cwd=cwd or self.root)

    def try_atoll(self, *words: str) -> tuple[int, str, str]:
        """In this process: only what is killed needs its own."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = app.run([words[0], "--project", str(self.root), *words[1:]])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        said, narrated = (text.buffer.getvalue().decode() for text in (out, err))
        return code, said, narrated

    def atoll(self, *words: str, code: int = 0) -> str:
        found, said, told = self.try_atoll(*words)
        assert found == code, (words, said, told)
        return said

    def at(self) -> str:
        return self.git("rev-parse", "main").strip()

    def count(self) -> list[str]:
        found = self.marks.read_text().split() if self.marks.exists() else []
        self.marks.unlink(missing_ok=True)
        return found

    def dirt(self) -> dict[str, str]:
        """Of every checkout: what is uncommitted, and its content."""
        found = {}
        for place in {self.root, self.place or self.root}:
            status = self.git("status", "--porcelain", "--untracked-files=all", cwd=place)
            content = (place / "README.md").read_text() + (place / "loose.txt").read_text()
            found[str(place)] = status + content
        return found

    def require_clean(self, point: str) -> None:
        self.atoll("gc")
        left = [path.name for path in (self.root / ".git").rglob("*.lock")]
        left += [path.name for path in (self.root / ".git").rglob("atoll-*index*")]
        home = self.root.parent / "atoll-home"
        locks = {path.name for path in (home / "locks").iterdir()}
        # Trash may be being emptied.
        left += sorted(locks - {"upkeep"})
        assert left == [], point
        branches = self.git("branch", "--list", "--format=%(refname:short)", "atoll/*").split()
        assert branches in ([], ["atoll/x"]), (point, branches)


@pytest.fixture
def make_desk(repo, git, atoll_home, tmp_path, monkeypatch) -> Callable[[str], Desk]:
    def make(where: str) -> Desk:
        monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
        (repo / "atoll.toml").write_text(PROJECT_FILE)
        git("add", "atoll.toml", cwd=repo)
        git("commit", "--quiet", "--message", "settings", cwd=repo)
        place: Path | None = repo
        if where != "main":
            git("switch", "--quiet", "--create", "other", cwd=repo)
            place = None
        if where == "linked":
            place = tmp_path / "linked"
            git("worktree", "add", "--quiet", place, "main", cwd=repo)
        for root in {repo, place or repo}:
            (root / "README.md").write_text("edited\n")
            (root / "loose.txt").write_text("loose\n")
        desk = Desk(repo, place, tmp_path / "marks", git)
        desk.atoll("trust")
        return desk

    return make


def steps(verb: str, *, is_checked_out: bool, landing_only: bool) -> list[str]:
    found = []
    for point in steps_of(verb):
        name = point.partition(".")[2]
        if name in IN_A_CHECKOUT and not is_checked_out:
            continue
        if landing_only and name not in {*IN_A_CHECKOUT, "journalled", "landed", "recorded"}:
            continue
        found.append(point)
    return found


@pytest.mark.parametrize("where", ["main", "linked", "nowhere"])
def test_killed_promotion_and_undo_go_on_where_they_were(make_desk, where):
    desk = make_desk(where)
    wanted = {"is_checked_out": where != "nowhere", "landing_only": where != "main"}
    promoting, undoing = steps("promote", **wanted), steps("undo", **wanted)
    dirt = desk.dirt()
    # Each kill of a promotion is followed by one of an undo.
    for point, back in itertools.zip_longest(promoting, undoing):
        before = desk.at()
        desk.atoll("new", "x")
        desk.atoll("run", "x", "--", "sh", "-c", f"echo '{point}' > new.txt; echo a > added.txt")
        desk.atoll("commit", "x", "-m", str(point))
        argv = ["promote", "x", "--to", "staging"]
        if point is not None:
            assert kill_at(point, argv, cwd=desk.root).code == KILLED, point
        if point in UNKNOWN:
            desk.atoll(*argv, code=4)
            argv.append("--again")
        desk.atoll(*argv)
        assert desk.git("rev-parse", "main^{tree}") == desk.git("rev-parse", "atoll/x^{tree}")
        assert desk.git("rev-parse", "main^").strip() == before, point
        assert desk.count() == (["ran", "ran"] if point == "promote.ran" else ["ran"]), point
        assert desk.dirt() == dirt, point
        desk.require_clean(str(point))
        argv = ["undo", "x"]
        if back is not None:
            assert kill_at(back, argv, cwd=desk.root).code == KILLED, back
        if back in UNKNOWN:
            desk.atoll(*argv, code=4)
            argv.append("--again")
        desk.atoll(*argv)
        assert desk.at() == before, back
        assert desk.count() == (["undone", "undone"] if back == "undo.ran" else ["undone"]), back
        assert desk.dirt() == dirt, back
        [latest] = json.loads(desk.atoll("history", "x", "--json"))["data"][:1]
        assert latest["state"] == "undone", back
        desk.atoll("rm", "x", "--force")
        desk.require_clean(str(back))


def test_every_step_is_tried():
    assert {"promote", "undo"} <= STEPS.keys()
    main = {"is_checked_out": True, "landing_only": False}
    assert steps("promote", **main) == steps_of("promote")
    assert steps("undo", **main) == steps_of("undo")


@pytest.mark.soak
@pytest.mark.parametrize("tenth", range(1, 30))
def test_killed_at_any_moment_with_every_process(make_desk, tenth):
    """The whole process group dies, git in the middle of its work included."""
    desk = make_desk("main")
    dirt, before = desk.dirt(), desk.at()
    desk.atoll("new", "x")
    desk.atoll("run", "x", "--", "sh", "-c", "seq 20000 > new.txt; seq 9 > added.txt")
    desk.atoll("commit", "x", "-m", "work")
    argv = ["promote", "x", "--to", "staging"]
    kill_at(f"time:{tenth / 10}", argv, cwd=desk.root)
    code, _, told = desk.try_atoll(*argv)
    if code == 4:
        assert "--again" in told, told
        desk.atoll(*argv, "--again")
    else:
        assert code == 0, told
    assert desk.git("rev-parse", "main^{tree}") == desk.git("rev-parse", "atoll/x^{tree}")
    assert desk.dirt() == dirt
    desk.atoll("undo")
    assert (desk.at(), desk.dirt()) == (before, dirt)
    desk.require_clean(str(tenth))
