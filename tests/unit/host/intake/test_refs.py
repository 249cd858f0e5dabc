"""The refs of a repository, read as bytes: as git reads them, and harmless when hostile."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.host.intake.refs import AgentRefs, RefBudget, _parse_target, load_refs
from present import present
from readers import DirectoryReader

ONE, TWO, THREE = "1" * 40, "2" * 40, "3" * 40


@pytest.fixture
def bare(tmp_path):
    """A `.git` with the least that makes a repository."""
    place = tmp_path / "work" / ".git"
    (place / "refs" / "heads").mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    return place


def load(git_directory) -> AgentRefs:
    found = load_refs(DirectoryReader(git_directory.parent))
    assert found is not None
    return found


def write(place, name, content):
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_refs_are_those_that_git_lists(repo, git):
    git("tag", "--annotate", "--message", "x", "v1", cwd=repo)
    git("branch", "feature/a", "HEAD~1", cwd=repo)
    git("pack-refs", "--all", cwd=repo)
    git("branch", "feature/b", cwd=repo)
    git("tag", "light", cwd=repo)
    (repo / "app.py").write_text("changed\n")
    git("stash", cwd=repo)
    (repo / "app.py").write_text("changed again\n")
    git("stash", cwd=repo)
    git("worktree", "add", "--quiet", "--detach", repo.parent / "linked", "HEAD~1", cwd=repo)
    found = load(repo / ".git")
    listed = git("for-each-ref", "--format=%(refname) %(objectname)", cwd=repo).splitlines()
    assert found.refs == dict(line.split(" ") for line in listed)
    assert found.head_ref == "refs/heads/main"
    assert found.head == git("rev-parse", "HEAD", cwd=repo).strip()
    stashes = git("log", "--walk-reflogs", "--format=%H", "refs/stash", cwd=repo).split()
    assert len(stashes) == 2
    assert list(found.stashes) == stashes
    assert list(found.worktrees) == git("rev-parse", "HEAD~1", cwd=repo).split()
    assert found.refused == ()


def test_loose_ref_hides_a_packed_one(repo, git):
    git("pack-refs", "--all", cwd=repo)
    packed = load(repo / ".git")
    git("commit", "--quiet", "--allow-empty", "--message", "third", cwd=repo)
    assert load(repo / ".git").head == git("rev-parse", "HEAD", cwd=repo).strip() != packed.head


def test_detached_and_unborn_head(repo, git, bare):
    git("checkout", "--quiet", "--detach", cwd=repo)
    found = load(repo / ".git")
    assert (found.head_ref, found.head) == (None, git("rev-parse", "HEAD", cwd=repo).strip())
    unborn = load(bare)
    assert (unborn.head_ref, unborn.head, unborn.refs) == ("refs/heads/main", None, {})


def test_sha256(tmp_path, git):
    git("init", "--quiet", "--object-format=sha256", tmp_path / "new", cwd=tmp_path)
    git("commit", "--quiet", "--allow-empty", "--message", "x", cwd=tmp_path / "new")
    found = load(tmp_path / "new" / ".git")
    assert found.head == git("rev-parse", "HEAD", cwd=tmp_path / "new").strip()
    assert len(present(found.head)) == 64


def replace_by_a_file(place):
    shutil.rmtree(place)
    place.write_text("gitdir: elsewhere\n")


@pytest.mark.parametrize(
    "change",
    [
        shutil.rmtree,
        replace_by_a_file,
        lambda place: (place.rename(place.with_name("real")), place.symlink_to("real")),
        lambda place: write(place, "commondir", "../..\n"),
        lambda place: shutil.rmtree(place / "refs"),
        lambda place: (place / "reftable").mkdir(),
    ],
    ids=["missing", "file", "link", "worktree", "no-refs", "reftable"],
)
def test_what_is_no_repository_in_the_files_format(bare, change):
    assert load_refs(DirectoryReader(bare.parent)) is not None
    change(bare)
    assert load_refs(DirectoryReader(bare.parent)) is None


def test_symbolic_refs_are_followed_and_circles_end(bare):
    write(bare, "refs/heads/main", "ref: refs/heads/other\n")
    write(bare, "refs/heads/other", f"{ONE}\n")
    write(bare, "refs/heads/a", "ref: refs/heads/b\n")
    write(bare, "refs/heads/b", "ref:refs/heads/a\n")
    found = load(bare)
    assert found.head == ONE
    assert found.refs == {"refs/heads/main": ONE, "refs/heads/other": ONE}
    assert "cycle" in " ".join(found.refused)


def test_links_fifos_and_odd_names_are_refused(bare, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text(f"{ONE}\n")
    (bare / "refs" / "heads" / "link").symlink_to(outside)
    (bare / "refs" / "tags").symlink_to(tmp_path)
    os.mkfifo(bare / "refs" / "heads" / "fifo")
    for name in ("x.lock", ".hidden", "a~b", "two words", "new\nline", "back\\slash", "@{x"):
        write(bare, f"refs/heads/{name}", f"{TWO}\n")
    write(bare, "refs/heads/good", f"{THREE}\n")
    found = load(bare)
    assert found.refs == {"refs/heads/good": THREE}
    assert len(found.refused) == 9
    assert all(text.isprintable() for text in found.refused)


def test_head_that_is_a_link_or_nonsense(bare):
    for content in (b"", b"x", b"ref: ../../etc/passwd\n", b"ref: refs/heads/..\n", b"\xff" * 99,
                    ONE[:39].encode(), b"0" * 40, b" " + ONE.encode(), b"-" * 40):  # fmt: skip
        write(bare, "HEAD", content)
        found = load(bare)
        assert (found.head_ref, found.head) == (None, None), content
        assert len(found.refused) == 1
    (bare / "HEAD").unlink()
    (bare / "HEAD").symlink_to("refs/heads/main")
    write(bare, "refs/heads/main", f"{ONE}\n")
    assert load(bare).head is None


def test_head_may_lead_to_any_ref(bare):
    write(bare, "HEAD", "ref: refs/other/x")
    write(bare, "refs/other/x", ONE)
    found = load(bare)
    assert (found.head_ref, found.head) == ("refs/other/x", ONE)
    assert found.refs == {"refs/other/x": ONE}


def test_packed_refs_with_lines_that_are_none(bare):
    write(
        bare,
        "packed-refs",
        f"# pack-refs with: peeled\n{ONE} refs/heads/a\n{TWO} refs/tags/t\n^{THREE}\n"
        f"{ONE} refs/heads/../x\n{ONE}refs/heads/b\n\x1b[2J\n{ONE} HEAD\n{TWO} refs/remotes/o/m\n",
    )
    found = load(bare)
    assert found.refs == {"refs/heads/a": ONE, "refs/tags/t": TWO}
    assert len(found.refused) == 4
    assert all(text.isprintable() for text in found.refused)


def test_too_large_files_are_refused(bare):
    write(bare, "refs/heads/big", ONE + "\n" * 5000)
    with (bare / "packed-refs").open("wb") as file:
        file.truncate(65 << 20)
    assert load(bare).refs == {}
    assert len(load(bare).refused) == 2


def test_refusals_are_bounded(bare):
    write(bare, "packed-refs", "nonsense\n" * 5000)
    write(bare, "HEAD", ONE)
    write(bare, "refs/heads/loose", ONE)
    found = load(bare)
    assert found.refused[100:] == ("the remaining refs were not read",)
    assert (found.head, found.refs) == (ONE, {})


@pytest.mark.parametrize("kind", ["loose", "packed", "stash", "directories", "worktrees"])
def test_what_is_looked_at_is_bounded(bare, kind):
    """By the number of looks: there may be more than anybody can wait for."""
    write(bare, "HEAD", ONE)
    for number in range(200):
        if kind == "loose":
            write(bare, f"refs/heads/x{number}", ONE)
        elif kind == "directories":
            (bare / "refs" / "heads" / str(number)).mkdir()
        elif kind == "worktrees":
            write(bare, f"worktrees/{number}/HEAD", ONE)
    if kind == "packed":
        write(bare, "packed-refs", f"{ONE} refs/heads/x\n" * 4000)
    if kind == "stash":
        write(bare, "logs/refs/stash", f"{ONE} {TWO} A <a@example.org> 1 +0000\tmessage\n" * 4000)
    looks = []

    class Counted(DirectoryReader):
        def kind(self, path):
            looks.append(path)
            return super().kind(path)

    reader = Counted(bare.parent)
    assert present(load_refs(reader)).refused == ()
    looks.clear()
    part = present(load_refs(reader, budget=RefBudget(50)))
    assert part.refused == ("the remaining refs were not read",)
    assert part.head == ONE
    assert len(looks) < 150


def test_stash_log_with_nonsense(bare):
    good = f"{ONE} {TWO} A <a@example.org> 1 +0000\tmessage\n"
    write(bare, "logs/refs/stash", f"x\n{good}{ONE} -x y\n{good}\xff\n")
    assert load(bare).stashes == (TWO,)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"ref: refs/" + tail))
def test_any_ref_file_parses_or_not(content):
    target = _parse_target(content)
    if target is not None:
        assert (target.ref is None) != (target.object_id is None)
