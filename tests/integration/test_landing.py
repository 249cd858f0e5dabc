"""A branch lands on plain repositories: with the owner's checkout anywhere, and killed anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from atoll.engine.promotion.checkout_update import Obstacle
from atoll.engine.promotion.landing import BranchMovedError, Landing, land
from atoll.model.errors import DriverError, StateError

STEPS = ("noted", "prepared", "files", "indexed", "landed")
DIES = """
import os, signal, sys
from atoll.engine.promotion.landing import Landing, land
step, *words = sys.argv[1:]
places = []
def reach(name):
    if name == step:
        print(*places, sep="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
def note(place):
    places.append(place)
    reach("noted")
land(Landing(*words[:4], "landing", is_patch=bool(words[4]), index_at=words[5]),
     is_resumed=False, note=note, reach=reach)
"""


class World(NamedTuple):
    """A repository whose branch `main` is at `old`, and a commit `new` to land."""

    root: Path
    git: Any
    old: str
    new: str

    @property
    def landing(self) -> Landing:
        return Landing(f"{self.root}/.git", "refs/heads/main", self.old, self.new, "landing")

    def land(self, landing: Landing | None = None, *, resumed: bool = False) -> str:
        return land(
            landing or self.landing, is_resumed=resumed, note=lambda _: None, reach=lambda _: None
        )

    def at(self, ref: str = "main") -> str:
        return self.git("rev-parse", ref, cwd=self.root).strip()

    def status(self, root: Path | None = None) -> str:
        return self.git("status", "--porcelain", "--untracked-files=all", cwd=root or self.root)

    def portrait(self, root: Path | None = None) -> dict[str, Any]:
        """Every file and the index."""
        place = root or self.root
        found: dict[str, Any] = {"": self.git("ls-files", "-s", cwd=place)}
        for path in sorted(place.rglob("*")):
            name = str(path.relative_to(place))
            if name.split("/", 1)[0] == ".git":
                continue
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.is_file():
                found[name] = (path.read_bytes(), path.stat().st_mode)
        return found

    def left(self) -> list[str]:
        places = [self.root / ".git"]
        return [
            str(path) for place in places for path in place.rglob("*")
            if path.name.endswith(".lock") or path.name.startswith("atoll-")
        ]  # fmt: skip


@pytest.fixture
def world(make_repo, git) -> World:
    """The commit changes, adds, removes and retypes files; there is uncommitted work beside."""
    root = make_repo({
        "changed.txt": "one\n" * 1000, "removed.txt": "gone\n", "kept.txt": "kept\n",
        "folder/inner.txt": "inner\n", "file": "to be a folder\n", "tool.sh": "#!/bin/sh\n",
        "odd \"name\"\t.txt": "odd\n", ".gitignore": "*.log\n",
    })  # fmt: skip
    old = git("rev-parse", "HEAD", cwd=root).strip()
    git("switch", "--quiet", "--create", "work", cwd=root)
    (root / "changed.txt").write_text("two\n" * 1000)
    (root / "removed.txt").unlink()
    (root / "folder/inner.txt").unlink()
    (root / "folder").rmdir()
    (root / "folder").write_text("now a file\n")
    (root / "file").unlink()
    (root / "file").mkdir()
    (root / "file/deep.txt").write_text("deep\n")
    (root / "tool.sh").chmod(0o755)
    (root / 'odd "name"\t.txt').write_text("odder\n")
    (root / "new").mkdir()
    (root / "new/file.txt").write_text("new\n")
    (root / "link").symlink_to("kept.txt")
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "--message", "work", cwd=root)
    new = git("rev-parse", "HEAD", cwd=root).strip()
    git("switch", "--quiet", "main", cwd=root)
    return World(root, git, old, new)


def make_dirty(root: Path, git) -> None:
    """Uncommitted work of every kind that is in no way."""
    (root / "kept.txt").write_text("edited\n")
    (root / "staged.txt").write_text("staged\n")
    git("add", "staged.txt", cwd=root)
    (root / "staged.txt").write_text("staged, then edited\n")
    (root / "untracked.txt").write_text("untracked\n")
    (root / "ignored.log").write_text("ignored\n")


def expected_after(world: World, root: Path) -> dict[str, Any]:
    """What `git checkout` of the new commit gives, with the same uncommitted work."""
    world.git("worktree", "add", "--quiet", "--detach", root, world.new, cwd=world.root)
    make_dirty(root, world.git)
    found = world.portrait(root)
    world.git("worktree", "remove", "--force", root, cwd=world.root)
    return found


def test_lands_beside_uncommitted_work_and_goes_back(world, tmp_path):
    expected = expected_after(world, tmp_path / "expected")
    make_dirty(world.root, world.git)
    before = world.portrait()
    assert world.land() == str(world.root)
    assert world.at() == world.new
    assert world.portrait() == expected
    assert "HEAD@{0}: landing" in world.git("reflog", cwd=world.root)
    back = world.landing._replace(old=world.new, new=world.old)
    world.land(back)
    assert world.at() == world.old
    assert world.portrait() == before
    assert world.left() == []


def test_a_branch_that_is_not_checked_out_moves_alone(world):
    world.git("switch", "--quiet", "--create", "other", cwd=world.root)
    make_dirty(world.root, world.git)
    before = world.portrait()
    assert world.land() == ""
    assert (world.at(), world.at("HEAD")) == (world.new, world.old)
    assert world.portrait() == before


def test_lands_in_the_linked_worktree_that_has_the_branch(world, tmp_path):
    expected = expected_after(world, tmp_path / "expected")
    world.git("switch", "--quiet", "--create", "other", cwd=world.root)
    place, third = tmp_path / "linked", tmp_path / "third"
    world.git("worktree", "add", "--quiet", place, "main", cwd=world.root)
    world.git("worktree", "add", "--quiet", "-b", "third", third, cwd=world.root)
    make_dirty(place, world.git)
    before = world.portrait()
    assert world.land() == str(place)
    assert world.portrait(place) == expected
    assert world.portrait() == before
    assert world.status(third) == ""
    assert world.left() == []


def test_a_patch_changes_the_files_alone_and_goes_back(world):
    make_dirty(world.root, world.git)
    before = world.portrait()
    patch = world.landing._replace(is_patch=True, index_at=world.old)
    world.land(patch)
    after = world.portrait()
    assert world.at() == world.old
    assert after[""] == before[""]
    assert (world.root / "changed.txt").read_text() == "two\n" * 1000
    assert (world.root / "file/deep.txt").exists()
    world.land(patch._replace(old=world.new, new=world.old))
    assert world.portrait() == before
    assert world.left() == []


def edit(root, git):
    (root / "changed.txt").write_text("mine\n")


def stage(root, git):
    edit(root, git)
    git("add", "changed.txt", cwd=root)


def stage_and_restore(root, git):
    stage(root, git)
    (root / "changed.txt").write_text("one\n" * 1000)


def delete(root, git):
    (root / "removed.txt").unlink()


def untracked(root, git):
    (root / "new").mkdir()
    (root / "new/file.txt").write_text("mine\n")


def intended(root, git):
    untracked(root, git)
    git("add", "--intent-to-add", "new/file.txt", cwd=root)


def ignored(root, git):
    (root / ".git/info/exclude").write_text("link\n")
    (root / "link").write_text("mine\n")


def file_for_directory(root, git):
    (root / "new").write_text("mine\n")


def link_for_directory(root, git):
    (root / "elsewhere").mkdir()
    (root / "new").symlink_to("elsewhere")


def untracked_below(root, git):
    (root / "folder/mine.log").write_text("mine\n")


def hidden(root, git):
    git("update-index", "--assume-unchanged", "changed.txt", cwd=root)
    edit(root, git)


def skipped(root, git):
    git("update-index", "--skip-worktree", "changed.txt", cwd=root)
    edit(root, git)


def chmod(root, git):
    (root / "tool.sh").chmod(0o755)


@pytest.mark.parametrize(
    ("act", "path"),
    [(edit, "changed.txt"), (stage, "changed.txt"), (stage_and_restore, "changed.txt"),
     (delete, "removed.txt"), (untracked, "new/file.txt"), (intended, "new/file.txt"),
     (ignored, "link"), (file_for_directory, "new"), (link_for_directory, "new"),
     (untracked_below, "folder/mine.log"), (hidden, "changed.txt"), (skipped, "changed.txt"),
     (chmod, "tool.sh")],
)  # fmt: skip
@pytest.mark.parametrize("is_patch", [False, True])
def test_work_of_the_owner_in_the_way_stops_it(world, act, path, is_patch):
    act(world.root, world.git)
    before = world.portrait()
    landing = world.landing._replace(is_patch=is_patch, index_at=world.old if is_patch else "")
    with pytest.raises(Obstacle) as caught:
        world.land(landing)
    assert path in caught.value.paths
    assert world.portrait() == before
    assert world.at() == world.old
    assert world.left() == []


def merging(root, git):
    git("switch", "--quiet", "--create", "other", cwd=root)
    (root / "kept.txt").write_text("other\n")
    git("commit", "--quiet", "--all", "--message", "other", cwd=root)
    git("switch", "--quiet", "main", cwd=root)
    git("merge", "--no-ff", "--no-commit", "other", cwd=root)


def rebasing(root, git):
    """The branch is being rebased, so that HEAD is detached."""
    git("switch", "--quiet", "--create", "other", cwd=root)
    (root / "kept.txt").write_text("other\n")
    git("commit", "--quiet", "--all", "--message", "other", cwd=root)
    git("switch", "--quiet", "main", cwd=root)
    (root / "kept.txt").write_text("main\n")
    git("commit", "--quiet", "--all", "--message", "main", cwd=root)
    git("rebase", "other", cwd=root, check=False)


def bisecting(root, git):
    git("bisect", "start", cwd=root)


def locked(root, git):
    (root / ".git/index.lock").write_text("")


def locked_ref(root, git):
    (root / ".git/refs/heads/main.lock").write_text("")


def sparse(root, git):
    git("sparse-checkout", "set", "src", cwd=root)


def twice(root, git):
    git("worktree", "add", "--quiet", "--force", root.parent / "twice", "main", cwd=root)


def vanished(root, git):
    git("switch", "--quiet", "--create", "other", cwd=root)
    git("worktree", "add", "--quiet", root.parent / "vanished", "main", cwd=root)
    (root.parent / "vanished").rename(root.parent / "moved")


@pytest.mark.parametrize(
    "act", [merging, rebasing, bisecting, locked, locked_ref, sparse, twice, vanished]
)
def test_a_checkout_in_no_state_for_it_stops_it(world, act):
    act(world.root, world.git)
    before, at, left = world.portrait(), world.at(), world.left()
    with pytest.raises(StateError) as caught:
        world.land(world.landing._replace(old=at))
    assert caught.value.hint
    assert world.portrait() == before
    assert (world.at(), world.left()) == (at, left)


def test_a_branch_that_has_moved_stops_it(world):
    world.git("commit", "--quiet", "--allow-empty", "--message", "more", cwd=world.root)
    with pytest.raises(BranchMovedError) as caught:
        world.land()
    assert caught.value.found == world.at()
    world.git("switch", "--quiet", "--detach", cwd=world.root)
    world.git("branch", "--quiet", "--delete", "--force", "main", cwd=world.root)
    with pytest.raises(BranchMovedError, match="gone"):
        world.land()


def test_the_index_is_locked_meanwhile(world):
    tried = []

    def reach(step):
        if step in ("prepared", "files"):
            for words in (("add", "kept.txt"), ("switch", "work"), ("commit", "-am", "x")):
                (world.root / "kept.txt").write_text(f"edited at {step}\n")
                argv = ("git", *words)
                done = subprocess.run(argv, cwd=world.root, capture_output=True, check=False)
                tried.append(done.returncode)

    land(world.landing, is_resumed=False, note=lambda _: None, reach=reach)
    assert len(tried) == 6
    assert all(tried)
    assert world.at() == world.new
    assert world.status() == " M kept.txt\n"


def die(world: World, step: str, *, is_patch: bool = False) -> Landing:
    """Kills a landing at a step; the landing as its journal describes it then."""
    words = (f"{world.root}/.git", "refs/heads/main", world.old, world.new)
    more = ("yes", world.old) if is_patch else ("", "")
    done = subprocess.run(
        [sys.executable, "-c", DIES, step, *words, *more],
        capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    return world.landing._replace(
        place=done.stdout.strip(), is_patch=is_patch, index_at=world.old if is_patch else ""
    )


@pytest.mark.parametrize("is_patch", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_landing_is_completed(world, step, is_patch, tmp_path):
    expected = expected_after(world, tmp_path / "expected")
    make_dirty(world.root, world.git)
    landing = die(world, step, is_patch=is_patch)
    world.land(landing, resumed=True)
    if not is_patch:
        assert world.at() == world.new
        assert world.portrait() == expected
    else:
        assert world.at() == world.old
        assert {**world.portrait(), "": ""} == {**expected, "": ""}
    assert world.left() == []
    world.git("fsck", cwd=world.root)


def test_a_landing_killed_between_any_two_files_is_completed(world, tmp_path):
    """Every mixture of old, new, missing and half-written files is recognized."""
    expected = expected_after(world, tmp_path / "expected")
    make_dirty(world.root, world.git)
    landing = world.landing._replace(place=str(world.root))
    (world.root / "changed.txt").write_text("two\n" * 400)
    (world.root / "removed.txt").unlink()
    (world.root / "tool.sh").unlink()
    (world.root / "new").mkdir()
    (world.root / "new/file.txt").write_text("")
    (world.root / "link").symlink_to("kept.txt")
    (world.root / ".git/index.lock").write_text("atoll promotion\n")
    (world.root / ".git/atoll-index.lock").write_text("cut off")
    world.land(landing, resumed=True)
    assert world.at() == world.new
    assert world.portrait() == expected
    assert world.left() == []


@pytest.mark.parametrize(
    "act",
    [lambda root: (root / "changed.txt").write_text("mine\n"),
     lambda root: (root / "new/file.txt").write_text("mine\n"),
     lambda root: (root / "removed.txt").write_text("mine\n"),
     lambda root: (root / "link").unlink() or (root / "link").symlink_to("mine")],
)  # fmt: skip
def test_what_the_owner_changed_since_the_kill_stops_it(world, act):
    landing = die(world, "files")
    act(world.root)
    before = world.portrait()
    with pytest.raises(Obstacle, match="neither as at"):
        world.land(landing, resumed=True)
    assert world.portrait() == before
    assert world.at() == world.old
    world.git("restore", f"--source={world.new}", "--worktree", "--", ":/", cwd=world.root)
    world.land(landing, resumed=True)
    assert world.at() == world.new
    assert world.status() == ""


def test_a_switch_after_the_kill_stops_it(world):
    landing = die(world, "indexed")
    world.git("symbolic-ref", "HEAD", "refs/heads/work", cwd=world.root)
    world.git("update-ref", "refs/heads/work", world.old, cwd=world.root)
    before = world.portrait()
    with pytest.raises(StateError, match="another branch now"):
        world.land(landing, resumed=True)
    assert world.portrait() == before
    # A checkout that has nothing of it is no reason to stop.
    world.git("reset", "--quiet", "--hard", cwd=world.root)
    assert world.land(landing, resumed=True) == ""
    assert world.at() == world.new


@pytest.mark.parametrize("step", ["files", "indexed"])
def test_a_commit_of_what_a_killed_landing_has_left_settles_it(world, step):
    make_dirty(world.root, world.git)
    landing = die(world, step)
    for name in (".git/index.lock", ".git/atoll-index"):
        (world.root / name).unlink(missing_ok=True)
    world.git("add", "--all", cwd=world.root)
    world.git("commit", "--quiet", "--message", "mine", cwd=world.root)
    before, tip = world.portrait(), world.at()
    with pytest.raises(BranchMovedError):
        world.land(landing, resumed=True)
    assert (world.portrait(), world.at(), world.left()) == (before, tip, [])


@pytest.mark.parametrize("step", ["files", "indexed"])
def test_a_commit_of_something_else_after_the_kill_stops_it(world, step):
    landing = die(world, step)
    (world.root / ".git/index.lock").unlink()
    with_other = world.git("commit-tree", "-p", world.old, "-m", "other", f"{world.old}^{{tree}}",
                           cwd=world.root).strip()  # fmt: skip
    world.git("update-ref", "refs/heads/main", with_other, cwd=world.root)
    before = world.portrait()
    with pytest.raises(StateError, match="the branch has moved"):
        world.land(landing, resumed=True)
    assert world.portrait() == before


def test_an_edit_in_the_second_of_the_last_checkout_stops_it(world):
    """Git sees such an edit only by the age of its index."""
    world.git("config", "core.trustctime", "false", cwd=world.root)
    path, index = world.root / "changed.txt", world.root / ".git/index"
    times = (path.stat().st_atime, int(path.stat().st_mtime) - 60)
    os.utime(path, times)
    world.git("update-index", "--refresh", cwd=world.root)
    path.write_text("ONE\n" * 1000)
    for place in (path, index):
        os.utime(place, times)
    assert world.git("diff-files", "--name-only", cwd=world.root) == "changed.txt\n"
    with pytest.raises(Obstacle, match=r"changed: `changed\.txt`"):
        world.land()
    assert path.read_text() == "ONE\n" * 1000


def failing_filter(world: World, pattern: str) -> Path:
    """A smudge filter of the owner that fails while a file exists, for content with a pattern."""
    flag = world.root.parent / "fails"
    flag.write_text("")
    (world.root / ".git/info/attributes").write_text("odd* filter=fails\n")
    world.git("config", "filter.fails.required", "true", cwd=world.root)
    world.git("config", "filter.fails.clean", "cat", cwd=world.root)
    script = f'c=$(cat; echo x); test -e {flag} && case "$c" in {pattern}) exit 1;; esac; '
    script += 'printf "%s" "${c%x}"'
    world.git("config", "filter.fails.smudge", script, cwd=world.root)
    return flag


def test_a_failure_in_the_middle_is_taken_back(world):
    flag = failing_filter(world, "odder*")
    make_dirty(world.root, world.git)
    before = world.portrait()
    with pytest.raises(DriverError, match="nothing was changed"):
        world.land()
    assert (world.portrait(), world.at(), world.left()) == (before, world.old, [])
    flag.unlink()
    world.land()
    assert world.at() == world.new


def test_a_failure_that_cannot_be_taken_back_is_reported_and_continued(world):
    flag = failing_filter(world, "*")
    places: list[str] = []
    with pytest.raises(DriverError, match="could not be brought back"):
        land(world.landing, is_resumed=False, note=places.append, reach=lambda _: None)
    assert (world.at(), world.left()) == (world.old, [])
    flag.unlink()
    world.land(world.landing._replace(place=places[0]), resumed=True)
    assert world.at() == world.new
    assert world.status() == ""


def test_a_submodule_is_recorded_and_its_files_are_left_alone(world, make_repo):
    make_repo({"inner.txt": "inner\n"}, name="other")
    other = world.git("rev-parse", "HEAD", cwd=world.root.parent / "other").strip()
    world.git("switch", "--quiet", "work", cwd=world.root)
    world.git("update-index", "--add", "--cacheinfo", f"160000,{other},module", cwd=world.root)
    world.git("commit", "--quiet", "--message", "module", cwd=world.root)
    new = world.at("work")
    world.git("switch", "--quiet", "main", cwd=world.root)
    world.land(world.landing._replace(new=new))
    assert world.at() == new
    assert (world.root / "module").is_dir()
    world.land(world.landing._replace(old=new, new=world.old))
    assert world.status() == ""
