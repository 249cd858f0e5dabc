"""Work that a capsule's private repository holds in unusual places is work all the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from atoll.engine.projects import open_project
from atoll.host.tree.merged_tree import MergedTree
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath
from present import present


@pytest.fixture(params=[pytest.param("clone", marks=pytest.mark.soak), "sandbox"])
def project(request, repo, atoll_home, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", request.param)
    return open_project(repo, background=False, warn=lambda _: None)


HIDDEN = {
    "on a branch of its own": "git switch -qc wip; echo w > w; git add w; git commit -qm w; "
    "git switch -q atoll/x",
    "under a tag": "git switch -q --detach; echo w > w; git add w; git commit -qm w; "
    "git tag kept; git switch -q atoll/x",
    "under an annotated tag": "git switch -q --detach; echo w > w; git add w; git commit -qm w; "
    "git tag -a -m kept kept; git switch -q atoll/x",
    "on a remote-tracking branch": "git init -q --bare $TMPDIR/o; git remote add o $TMPDIR/o; "
    "git switch -qc wip; echo w > w; git add w; git commit -qm w; git push -q o wip; "
    "git switch -q atoll/x; git branch -qD wip",
    "in an older stash": "echo w > README.md; git stash -q; echo v > app.py; git stash -q",
    "on a detached HEAD": "git switch -q --detach; echo w > w; git add w; git commit -qm w",
    "in a bisection of a worktree": "git worktree add -q --detach $TMPDIR/linked; "
    "cd $TMPDIR/linked; echo w > w; git add w; git commit -qm w; git update-ref refs/bisect/bad "
    "HEAD; git checkout -q HEAD~1",
    "under a rebase": "git switch -q --detach; echo w > w; git add w; git commit -qm w; "
    "GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git rebase -q -i HEAD~1 || true",
    "under a merge": "git switch -q --detach; echo w > w; git add w; git commit -qm w; "
    "w=$(git rev-parse HEAD); git switch -q atoll/x; git merge -q --no-commit --no-ff -s ours $w",
    "put aside in a worktree": "git worktree add -q --detach $TMPDIR/linked; cd $TMPDIR/linked; "
    "echo w > README.md; w=$(git stash create); git checkout -q README.md; d=$(git rev-parse "
    "--git-dir); mkdir $d/rebase-merge; echo $w > $d/rebase-merge/autostash",
}


@pytest.mark.parametrize("where", HIDDEN)
def test_commits_are_found_and_kept(where, project, repo, git):
    capsule = project.new("x")
    assert capsule.run(["sh", "-c", HIDDEN[where]]).exit_code == 0
    with pytest.raises(StateError, match="exists nowhere else"):
        capsule.remove()
    point = capsule.remove(force=True)
    assert point is not None
    held = git("log", "--format=%s", point.ref, cwd=repo)
    assert "w\n" in held or "WIP" in held
    if "stash" in where:
        assert held.count("WIP on") == 2


def test_a_fetch_without_history_keeps_no_stash_from_being_stored(repo, atoll, git, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    atoll("new", "x", cwd=repo)
    script = (
        "git clone -q . $TMPDIR/r; cd $TMPDIR/r; git commit -q --allow-empty -m one; "
        "git commit -q --allow-empty -m two; cd -; git fetch -q --depth 1 file://$TMPDIR/r "
        "HEAD:refs/remotes/other/one; echo w > README.md; git stash -q"
    )
    atoll("run", "x", "--", "sh", "-ec", script, cwd=repo)
    assert atoll("rm", "x", cwd=repo, check=False).returncode == 4
    atoll("rm", "x", "--force", cwd=repo)
    said = atoll("recover", "x", cwd=repo).stderr
    assert "stash entries, newest first: " in said


def test_stash_entries_are_named_and_can_be_applied_again(repo, atoll, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    atoll("new", "x", cwd=repo)
    script = "echo w > README.md; git stash -q; echo v > app.py; git stash -q"
    atoll("run", "x", "--", "sh", "-ec", script, cwd=repo)
    for words in ((), ("--keep-branch",)):
        said = atoll("rm", "x", *words, cwd=repo, check=False).stderr
        assert "nowhere else: 2 stash entries\n" in said
        assert "hint: atoll run x -- git stash pop, or atoll rm x --force" in said
    atoll("rm", "x", "--force", cwd=repo)
    said = atoll("recover", "x", cwd=repo).stderr
    hint = said.partition("hint: atoll run x -- ")[2].splitlines()[0]
    assert "stash entries, newest first: " in said
    atoll("run", "x", "--", *hint.split(), cwd=repo)
    assert atoll("run", "x", "--", "cat", "app.py", cwd=repo).stdout == "v\n"


def test_a_commit_on_another_branch_has_a_hint_that_works(project, repo):
    capsule = project.new("x")
    capsule.run(["sh", "-c", HIDDEN["on a branch of its own"]])
    with pytest.raises(StateError, match=r"1 commit .* outside the capsule's branch") as refused:
        capsule.remove()
    assert present(refused.value.hint).startswith("atoll rm x --force")


def test_what_was_fetched_is_no_work_once_the_owner_has_it(repo, git, atoll, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    atoll("new", "x", cwd=repo)
    git("switch", "--quiet", "--create", "other", cwd=repo)
    git("commit", "--quiet", "--allow-empty", "--message", "older", cwd=repo)
    git("commit", "--quiet", "--allow-empty", "--message", "other", cwd=repo)
    bundle = repo.parent / "other.bundle"
    git("bundle", "create", "--quiet", bundle, "other", cwd=repo)
    fetch = "git fetch -q $0 other:refs/remotes/o/a; git update-ref refs/remotes/o/b o/a~1"
    atoll("run", "x", "--", "sh", "-ec", fetch, bundle, cwd=repo)
    assert atoll("rm", "x", "--dry-run", cwd=repo).returncode == 0
    git("switch", "--quiet", "main", cwd=repo)
    git("branch", "--quiet", "-D", "other", cwd=repo)
    said = atoll("rm", "x", cwd=repo, check=False).stderr
    assert "2 commits that no other branch holds, only remote-tracking branches inside\n" in said
    assert "hint: git fetch in your checkout, or atoll rm x --force" in said


def test_commits_are_found_among_many_branches(project, repo, git):
    head = git("rev-parse", "HEAD", cwd=repo).strip()
    refs = "".join(f"create refs/heads/many/{number} {head}\n" for number in range(1100))
    subprocess.run(["git", "update-ref", "--stdin"], cwd=repo, input=refs, text=True, check=True)
    capsule = project.new("x")
    capsule.run(["sh", "-c", HIDDEN["on a branch of its own"]])
    with pytest.raises(StateError, match="exists nowhere else"):
        capsule.remove()
    assert capsule.remove(force=True) is not None


def test_recorded_submodule_commit_is_kept(project, repo, make_repo, git):
    library = make_repo({"lib.py": "pass\n"}, name="library")
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "add", "--quiet", str(library), "lib", cwd=repo)
    git("commit", "--quiet", "--message", "submodule", cwd=repo)
    capsule = project.new("x")
    script = (
        "cd lib && echo more > more.py && git add -A && git commit -qm more && "
        "cd .. && git add lib && git commit -qm bump"
    )
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    git("merge", "--quiet", "atoll/x", cwd=repo)
    # The owner's own submodule has the commit, and a ref keeps it.
    assert capsule.remove() is None
    git("gc", "--quiet", "--prune=now", cwd=repo / "lib")
    git("submodule", "update", "--quiet", cwd=repo)
    assert (repo / "lib" / "more.py").read_text() == "more\n"


@pytest.mark.parametrize("driver", ["overlay", "copy"])
def test_nothing_is_written_through_a_link(driver, project, tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_WORKSPACE", driver)
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    capsule = project.new("x")
    script = (
        f"rm -f .git/config .git/HEAD $HOME/.gitconfig; ln -s {outside} .git/config; "
        f"ln -s {outside} .git/HEAD; ln -s {outside} $HOME/.gitconfig"
    )
    capsule.run(["sh", "-c", script])
    point = capsule.snapshot("linked")
    capsule.rollback(point)
    capsule.run(["true"])
    assert outside.read_text() == "mine\n"
    capsule.remove(force=True)
    assert outside.read_text() == "mine\n"


@pytest.mark.parametrize("script", ["git -C lib checkout -q HEAD~1; git add lib", "git rm -q lib"])
def test_a_moved_or_removed_submodule_is_a_change(script, project, repo, make_repo, git):
    library = make_repo({"lib.py": "pass\n"}, name="library")
    first = git("rev-parse", "HEAD", cwd=library).strip()
    git("commit", "--quiet", "--allow-empty", "--message", "second", cwd=library)
    second = git("rev-parse", "HEAD", cwd=library).strip()
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "add", "--quiet", str(library), "lib", cwd=repo)
    git("commit", "--quiet", "--message", "submodule", cwd=repo)
    capsule = project.new("x")
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    told = capsule.diff().text.decode()
    assert f"-Subproject commit {second}" in told
    assert (f"+Subproject commit {first}" in told) == ("checkout" in script)
    with pytest.raises(StateError, match="exists nowhere else"):
        capsule.remove()
    capsule.commit("moved")
    assert git("diff", "--submodule=short", "main", "atoll/x", cwd=repo) == told


HIDDEN_IN_SUBMODULES = {
    "as a mode": "chmod +x lib.py",
    "as a removal": "rm lib.py",
    "on a branch": "git checkout -qb wip; echo w > w; git add w; git commit -qm w; "
    "git checkout -q -",
    "without a change": "git commit -q --allow-empty -m w",
    "under a tag": "git commit -q --allow-empty -m w; git tag w; git checkout -q HEAD~1",
    "in a stash": "echo w > lib.py; git stash -q",
    "in the index": "echo w > w; git add w; rm w",
    "behind a link": "git commit -q --allow-empty -m w; git branch w; git reset -q HEAD~1; "
    "cd ../.git; cp -a modules real; rm -rf modules; ln -s real modules",
    "in a broken repository": "git init -q ../.git/modules/lib/modules/two --bare; "
    "cd ../.git/modules/lib/modules/two; git update-ref refs/heads/w "
    "$(git commit-tree -m w $(git mktree </dev/null)); mv objects real; ln -s real objects",
    "without a HEAD": "git init -q ../.git/modules/lib/modules/a/two --bare; "
    "cd ../.git/modules/lib/modules/a/two; git update-ref refs/heads/w "
    "$(git commit-tree -m w $(git mktree </dev/null)); rm HEAD",
}


@pytest.mark.parametrize("where", HIDDEN_IN_SUBMODULES)
def test_commits_of_submodules_are_found_and_kept(where, project, repo, make_repo, git):
    library = make_repo({"lib.py": "pass\n"}, name="library")
    (library / "lib.py").write_text("second\n")
    git("commit", "--quiet", "--all", "--message", "second", cwd=library)
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "add", "--quiet", str(library), "lib", cwd=repo)
    git("commit", "--quiet", "--message", "submodule", cwd=repo)
    capsule = project.new("x")
    assert not capsule.work().any
    # Looking leaves no trace that would be taken for work, nor does a name for what is known.
    script = (
        "cd lib; git status; git fetch; git gc -q; git tag known HEAD~1; git branch too HEAD~1; "
        "touch lib.py; git status; git checkout -q known; git checkout -q -; echo w > lib.py; "
        "git stash -q; git stash drop -q; git revert -n HEAD; git reset -q --hard"
    )
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    assert not capsule.work().any
    assert capsule.run(["sh", "-c", f"cd lib; {HIDDEN_IN_SUBMODULES[where]}"]).exit_code == 0
    with pytest.raises(StateError, match=r"`lib`|`\.git/modules"):
        capsule.remove()
    point = capsule.remove(force=True)
    assert point is not None
    kept = Path(point.files)
    objects = [path for path in kept.rglob("*") if path.is_file() and len(path.name) == 38]
    assert objects


@pytest.mark.parametrize("counts", [True, False])
def test_modes_count_as_the_owner_says(counts, project, repo, git):
    git("config", "core.fileMode", str(counts).lower(), cwd=repo)
    capsule = project.new("x")
    assert capsule.run(["chmod", "+x", "README.md"]).exit_code == 0
    assert (b"new mode 100755" in capsule.diff().text) is counts
    if counts:
        with pytest.raises(StateError, match="exists nowhere else"):
            capsule.remove()
    else:
        assert capsule.remove() is None


SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c"
"""Characters that end a line for Python and not for git."""


def test_odd_separators_are_characters_like_any_other(project, repo, git, tmp_path):
    named = f"wip{SEPARATORS[:3]}end"
    git("branch", named, cwd=repo)
    git("tag", "--annotate", "--message", "t", f"v{named}", cwd=repo)
    capsule = project.new("x")
    script = 'printf %s "$0" > "$1"; git branch "$2"'
    names = (f"a{SEPARATORS}b\nc", f"file {SEPARATORS}", f"of-{named}")
    assert capsule.run(["sh", "-c", script, *names]).exit_code == 0
    (tmp_path / "patch").write_bytes(capsule.diff().text)
    capsule.commit("done")
    assert git("show", f"atoll/x:{names[1]}", cwd=repo) == names[0]
    git("clone", "--quiet", str(repo), str(tmp_path / "fresh"), cwd=tmp_path)
    git("apply", str(tmp_path / "patch"), cwd=tmp_path / "fresh")
    assert (tmp_path / "fresh" / names[1]).read_bytes() == names[0].encode()
    git("merge", "--quiet", "atoll/x", cwd=repo)
    assert capsule.remove() is None


GIT_MODULES = InsidePath(b".git/modules")
FLOODS = {
    "objects": "cd .git/modules/lib/objects; for d in $(seq 256); do mkdir d$d; "
    "for n in $(seq 40); do : > d$d/$n; done; done",
    "depth": "cd .git/modules; for n in $(seq 60); do mkdir a; cd a; done; "
    "for n in $(seq 2000); do : > $n; done",
    "refs": "cd .git/modules; mkdir -p m0/objects m0/refs; echo ref: refs/heads/x > m0/HEAD; "
    'h=$(git rev-parse HEAD); seq -f "$h refs/heads/%g" 99000 > m0/packed-refs; '
    "for n in $(seq 300); do mkdir -p m$n/objects m$n/refs; cp m0/HEAD m$n; "
    "ln m0/packed-refs m$n; done",
    "junk": "cd .git/modules; yes xx | head -c 60000000 > junk; for n in $(seq 50); do "
    "mkdir -p m$n/objects m$n/refs; echo ref: refs/heads/x > m$n/HEAD; ln junk m$n/packed-refs; "
    "done; rm junk",
    "loose refs": "cd .git/modules/lib/refs/heads; seq 20000 | xargs touch",
    "broken": "cd .git/modules; p=a; for n in $(seq 20); do p=$p/a; done; "
    'seq -f "$p/%g" 5000 | xargs mkdir -p; seq -f "$p/%g/HEAD" 5000 | xargs touch',
    "links": "cd .git/modules; ln -s / root; mkfifo lib/refs/heads/fifo; ln -s /etc/passwd "
    "lib/refs/heads/passwd; mkdir none; ln -s .. none/refs",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_odd_repositories_of_submodules_are_looked_at_within_bounds(
    kind, project, repo, make_repo, git, monkeypatch
):
    """By the number of looks: what is worth looking at needs some hundred."""
    library = make_repo({"lib.py": "pass\n"}, name="library")
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "add", "--quiet", str(library), "lib", cwd=repo)
    git("commit", "--quiet", "--message", "submodule", cwd=repo)
    capsule = project.new("x")
    assert capsule.run(["bash", "-c", FLOODS[kind]]).exit_code == 0
    looks = []
    look = MergedTree._find

    def find(tree, path):
        looks.append(path)
        return look(tree, path)

    monkeypatch.setattr(MergedTree, "_find", find)
    # Objects that nothing names are no work; what cannot be told is.
    assert capsule.work().any is (kind != "objects")
    assert len([path for path in looks if path.is_below(GIT_MODULES)]) < 15_000


@pytest.fixture
def dirty(project, repo):
    """A capsule with what the owner has not committed: changed, new and removed."""
    (repo / "README.md").write_text("changed\n")
    (repo / "src" / "calc.py").unlink()
    (repo / "new").mkdir()
    (repo / "new" / "file").write_text("new\n")
    (repo / "new" / "tool").write_text("#!/bin/sh\n")
    (repo / "new" / "tool").chmod(0o755)
    (repo / "new" / "link").symlink_to("file")
    return project.new("x", dirty=True)


def test_changes_that_the_owner_still_has_are_no_work(dirty, repo, git):
    assert not dirty.work().any
    assert dirty.run(["git", "status"]).exit_code == 0
    (repo / "other").write_text("more of the owner's\n")
    assert not dirty.work().any
    git("add", "new", cwd=repo)
    git("commit", "--quiet", "--message", "new", "new", cwd=repo)
    assert not dirty.work().any
    assert dirty.remove() is None


LOST = {
    "README.md": lambda repo, git: git("checkout", "README.md", cwd=repo),
    "src/calc.py": lambda repo, git: git("checkout", "src/calc.py", cwd=repo),
    "new/file": lambda repo, _: (repo / "new" / "file").unlink(),
    "new/tool": lambda repo, _: (repo / "new" / "tool").chmod(0o644),
    "new/link": lambda repo, _: (repo / "new" / "link").rename(repo / "moved"),
}


@pytest.mark.parametrize("path", LOST)
def test_changes_that_the_owner_has_no_more_are_work(path, dirty, repo, git):
    """Whether or not anything was done in the capsule."""
    LOST[path](repo, git)
    found = dirty.work()
    assert (*found.uncommitted, *found.untracked) == (path,)
    with pytest.raises(StateError, match=f"`{path}`"):
        dirty.remove()
    point = dirty.remove(force=True)
    assert point is not None
    names = git("diff", "--name-only", "HEAD", point.commit, cwd=repo).split()
    assert set(names) == set(LOST)


def test_all_changes_are_work_when_the_checkout_is_gone(dirty, repo):
    repo.rename(repo.with_name("elsewhere"))
    try:
        assert dirty.work().any
    finally:
        repo.with_name("elsewhere").rename(repo)


def test_rules_that_ignore_themselves_are_no_work(project, repo, git):
    """As pytest, ruff, mypy and virtualenv write them into their caches."""
    capsule = project.new("x")
    script = "mkdir cache; echo '*' > cache/.gitignore; echo x > cache/x; git status --porcelain"
    assert capsule.run(["sh", "-c", script]).stdout == b""
    assert not capsule.work().any
    with pytest.raises(StateError, match="nothing to commit"):
        capsule.commit("cache")
    # A patch shows them all the same: they hide files.
    assert b"cache/.gitignore" in capsule.diff().text
    # Beside what is tracked they may hide work.
    assert capsule.run(["sh", "-c", "echo '*' > src/.gitignore; echo w > src/w"]).exit_code == 0
    assert capsule.work().untracked == ("src/.gitignore",)
    script = "rm src/.gitignore src/w; echo w > w; echo '!kept' >> .gitignore"
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    assert capsule.work().uncommitted == (".gitignore",)
    assert capsule.work().untracked == ("w",)
    capsule.commit("work")
    assert git("diff", "--name-only", "main", "atoll/x", cwd=repo).split() == [".gitignore", "w"]
