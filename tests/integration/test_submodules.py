"""Real submodules: commits made in them come out with those of the project that record them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import persons
from atoll.drivers.workspace.submodules import find_module
from atoll.engine.projects import open_project
from atoll.engine.state.leases import workspace_plan
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath

ALLOW = ("-c", "protocol.file.allow=always")
BUMP = "cd lib; echo 2 > g.txt; git rm -q lib.py; git add g.txt; git commit -qm g; cd ..; "


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def owner(make_repo, git):
    """`lib` is a submodule, and `lib/deep` one of that."""
    deep = make_repo({"deep.py": "pass\n"}, name="deep")
    library = make_repo({"lib.py": "pass\n"}, name="library")
    git(*ALLOW, "submodule", "--quiet", "add", deep, "deep", cwd=library)
    git("commit", "--quiet", "--message", "deep", cwd=library)
    # A project may well lie in a directory of this name.
    root = make_repo(name="modules/project")
    git(*ALLOW, "submodule", "--quiet", "add", library, "lib", cwd=root)
    git(*ALLOW, "submodule", "--quiet", "update", "--init", "--recursive", cwd=root)
    git("commit", "--quiet", "--message", "submodule", cwd=root)
    return root


@pytest.fixture
def project(owner, atoll_home, monkeypatch, warnings):
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    return open_project(owner, background=False, warn=warnings.append)


def sh(capsule, script):
    done = capsule.run(["sh", "-ec", script])
    assert done.exit_code == 0, done
    return done.stdout.decode() if isinstance(done.stdout, bytes) else done.stdout


@pytest.mark.parametrize("driver", ["overlay", "copy"])
def test_recorded_commits_come_out_and_are_no_work_then(
    driver, project, owner, git, monkeypatch, warnings
):
    monkeypatch.setenv("ATOLL_WORKSPACE", driver)
    capsule = project.new("x")
    sh(capsule, BUMP + "git add lib; git commit -qm bump")
    assert capsule.remove(keep_branch=True) is None
    git("gc", "--quiet", "--prune=now", cwd=owner / "lib")
    git("merge", "--quiet", "atoll/x", cwd=owner)
    git("submodule", "update", "--quiet", "--no-fetch", cwd=owner)
    assert (owner / "lib" / "g.txt").read_text() == "2\n"
    assert git("status", "--short", cwd=owner) == ""
    assert warnings == []


def test_commits_of_a_submodule_of_a_submodule_come_out(project, owner, git):
    capsule = project.new("x")
    assert sh(capsule, "cat lib/deep/deep.py") == "pass\n"
    sh(
        capsule,
        "cd lib/deep; echo d > d; git add d; git commit -qm d; cd ..; git add deep; "
        "git commit -qm deep",
    )
    with pytest.raises(StateError, match=r"`lib`, `lib/deep`$") as caught:
        capsule.remove()
    assert str(caught.value.hint).startswith('atoll commit x -m "…" (records')
    capsule.commit("nested")
    assert capsule.remove(keep_branch=True) is None
    git("merge", "--quiet", "atoll/x", cwd=owner)
    git("submodule", "update", "--quiet", "--no-fetch", "--recursive", cwd=owner)
    assert (owner / "lib" / "deep" / "d").read_text() == "d\n"


def test_a_commit_from_outside_records_and_brings_them(project, owner, git):
    capsule = project.new("x")
    sh(capsule, BUMP)
    with pytest.raises(StateError, match="`lib`"):
        capsule.remove()
    capsule.commit("bump")
    recorded = git("rev-parse", "atoll/x:lib", cwd=owner).strip()
    assert git("cat-file", "-t", recorded, cwd=owner / "lib") == "commit\n"
    # Every commit of the branch, not only the last: the one before was amended away.
    sh(capsule, "cd lib; git commit -q --amend -m other; cd ..; git commit -qam amended")
    for name in ("atoll/x~1:lib", "atoll/x:lib"):
        commit = git("rev-parse", name, cwd=owner).strip()
        assert git("cat-file", "-t", commit, cwd=owner / "lib") == "commit\n"


def test_a_submodule_that_was_added_inside(project, owner, git):
    capsule = project.new("x")
    sh(
        capsule,
        "git init -q $TMPDIR/o; cd $TMPDIR/o; echo o > o; git add o; git commit -qm o; cd -; "
        "git -c protocol.file.allow=always submodule --quiet add $TMPDIR/o third/other; "
        "git commit -qm other",
    )
    assert capsule.remove(keep_branch=True) is None
    git("merge", "--quiet", "atoll/x", cwd=owner)
    git("submodule", "--quiet", "update", "--init", "third/other", cwd=owner)
    assert (owner / "third" / "other" / "o").read_text() == "o\n"
    again = project.new("y")
    assert sh(again, "cat third/other/o") == "o\n"


def test_a_pointer_to_a_commit_that_is_nowhere_is_refused(project, owner, git, warnings):
    capsule = project.new("x")
    lost = "ab" * 20
    sh(capsule, f"git update-index --cacheinfo 160000,{lost},lib; git commit -qm lost")
    assert [text for text in warnings if "`lib` is recorded at ababab" in text]
    assert "atoll/x" not in git("branch", "--list", cwd=owner)
    with pytest.raises(StateError, match="`lib`") as caught:
        capsule.export()
    assert "git submodule update" in str(caught.value.hint)


def test_a_repository_that_is_recorded_and_no_submodule_is_refused(project, owner, git, warnings):
    capsule, cured = project.new("x"), project.new("y")
    for one in (capsule, cured):
        sh(one, "git init -q emb; cd emb; echo o > o; git add o; git commit -qm o; cd ..; "
           "git -c advice.addEmbeddedRepo=false add emb; git commit -qm emb")  # fmt: skip
    assert [text for text in warnings if "you have no repository for it" in text]
    with pytest.raises(StateError, match="`emb/`"):
        capsule.remove()
    point = capsule.remove(force=True)
    assert [path for path in Path(point.files).rglob("o") if path.is_file()]
    # What the hint says is a cure.
    sh(cured, "git submodule --quiet add --force ./emb emb; git submodule absorbgitdirs emb; "
       "git commit -qm cured")  # fmt: skip
    assert cured.remove(keep_branch=True) is None
    assert (owner / ".git/modules/emb/HEAD").is_file()


def test_the_owners_own_repository_that_is_no_submodule_is_not_written(
    project, owner, git, make_repo, warnings
):
    private = make_repo({"p": "p\n"}, name="modules/project/vendor/priv")
    (owner / ".git/info").mkdir(exist_ok=True)
    (owner / ".git/info/exclude").write_text("vendor/\n")
    before = git("for-each-ref", cwd=private), git("count-objects", cwd=private)
    capsule = project.new("x")
    sh(capsule, "rm -rf vendor; git init -q vendor/priv; cd vendor/priv; git commit -q "
       "--allow-empty -m evil; c=$(git rev-parse HEAD); cd ../..; "
       "git update-index --add --cacheinfo 160000,$c,vendor/priv; git commit -qm evil")  # fmt: skip
    assert (git("for-each-ref", cwd=private), git("count-objects", cwd=private)) == before
    assert [text for text in warnings if "you have no repository for it" in text]
    capsule.remove(force=True)
    assert (git("for-each-ref", cwd=private), git("count-objects", cwd=private)) == before


@pytest.mark.parametrize("path", ["lib", "lib/deep"])
def test_a_submodule_whose_repository_lies_in_its_files_is_the_owners(path, project, owner, git):
    plan = workspace_plan(project.session, project.new("x").record)
    absorbed = git("rev-parse", "--absolute-git-dir", cwd=owner / path).strip()
    git("config", "--unset", "core.worktree", cwd=owner / path)
    (owner / path / ".git").unlink()
    os.rename(absorbed, owner / path / ".git")
    assert find_module(plan, InsidePath(path.encode())) == str(owner / path / ".git")


def test_names_of_submodules_do_not_lead_out_of_the_owners_repository(project, owner, warnings):
    """A repository below another one's `hooks`, one whose pointer leaves `.git/modules`, and names
    that a terminal or git takes for something else. The usable one goes with the others.
    """
    modules = owner / ".git" / "modules"
    before = sorted(os.listdir(modules)), sorted(os.listdir(modules / "lib"))
    capsule = project.new("x")
    sh(
        capsule,
        "for n in lib/hooks/evil ../../evil a.lock config good/one "
        "\"$(printf 'e\\033]0;p\\007\\nX')\"; do p=$(echo $n | tr -c a-z _); "
        "git init -q --bare $TMPDIR/b; c=$(git --git-dir=$TMPDIR/b commit-tree -m c $(git "
        "--git-dir=$TMPDIR/b mktree </dev/null)); git --git-dir=$TMPDIR/b update-ref HEAD $c; "
        'mkdir -p $p ".git/modules/$n"; rm -r ".git/modules/$n"; mv $TMPDIR/b ".git/modules/$n"; '
        'echo "gitdir: ../.git/modules/$n" > $p/.git; '
        "git update-index --add --cacheinfo 160000,$c,$p; done; git commit -qm evil",
    )
    assert [text for text in warnings if "were not exported" in text]
    assert (sorted(os.listdir(modules)), sorted(os.listdir(modules / "lib"))) == before
    assert not (owner / ".git" / "modules" / "lib" / "hooks" / "evil").exists()
    assert not (owner / ".git" / "evil").exists()
    assert not (owner / "evil").exists()
    assert capsule.remove(force=True) is not None
    assert sorted(os.listdir(modules)) == before[0]


@pytest.mark.parametrize("committed", [True, False])
def test_a_moved_submodule_is_recovered(committed, project, owner):
    capsule = project.new("x")
    sh(capsule, BUMP + "git add lib; git commit -qm bump; git mv lib lib2")
    if committed:
        sh(capsule, "git commit -qm moved; git switch -q --detach; echo > rest")
    else:
        assert sh(capsule, "git status --short") == "M  .gitmodules\nR  lib -> lib2\n"
    point = capsule.remove(force=True)
    again = project.recover(point, "y")
    assert sh(again, "cat lib2/g.txt; test ! -e lib; cat lib2/deep/deep.py") == "2\npass\n"
    expected = "?? rest\n" if committed else "M  .gitmodules\nR  lib -> lib2\n"
    assert sh(again, "git status --short") == expected


def test_what_was_fetched_inside_is_no_work(project, owner, git, tmp_path):
    """The owner has not initialised the submodule, and does not have its tags."""
    library = tmp_path / "library"
    git("tag", "--annotate", "--message", "v1", "v1", cwd=library)
    for number in range(30):
        git("tag", f"t{number}", cwd=library)
    git("submodule", "--quiet", "deinit", "--force", "lib", cwd=owner)
    subprocess.run(["rm", "-rf", owner / ".git/modules/lib"], check=True)
    capsule = project.new("x")
    # Where the walls hide the owner's other repositories, the capsule gets a copy.
    bundle = owner.parent / "library.bundle"
    git("bundle", "create", "--quiet", bundle, "--all", cwd=library)
    done = capsule.run(["sh", "-ec", "cat > $TMPDIR/b"], stdin=bundle.read_bytes())
    assert done.exit_code == 0
    copied = "git clone -q --bare $TMPDIR/b $TMPDIR/l"
    sh(
        capsule,
        f"{copied}; git config submodule.lib.url $TMPDIR/l; "
        "git -c protocol.file.allow=always submodule --quiet update --init lib; cat lib/lib.py; "
        "git -C lib tag | wc -l",
    )
    assert not capsule.work().any, capsule.work()
    # The remote is in the capsule's own /tmp: what was pushed there is nowhere else.
    sh(capsule, "cd lib; git switch -qc own; git commit -q --allow-empty -m own; "
       "git push -q origin own; git checkout -q --detach HEAD~1; git branch -qD own")  # fmt: skip
    assert capsule.work().nested == ("lib",)
    sh(capsule, "git -C lib update-ref -d refs/remotes/origin/own")
    assert not capsule.work().any, capsule.work()
    sh(capsule, "cd lib; git switch -qc own; git commit -q --allow-empty -m own")
    with pytest.raises(StateError, match="`lib`"):
        capsule.remove()
    sh(capsule, "git -C lib checkout -q --detach HEAD~1; git -C lib branch -qD own; "
       "echo changed > lib/lib.py")  # fmt: skip
    with pytest.raises(StateError, match="`lib`"):
        capsule.remove()


@persons.as_user
def test_a_round_trip_as_root_and_as_a_user(person):
    library = person.make_repo({"lib.py": "pass\n"}, name="library")
    person.git(*ALLOW, "submodule", "--quiet", "add", library, "lib")
    person.commit("submodule")
    person.atoll("new", "x")
    person.sh("x", BUMP + "git add lib; git commit -qm bump")
    person.atoll("rm", "x", "--keep-branch")
    person.git("merge", "-q", "atoll/x")
    person.git("submodule", "--quiet", "update", "--no-fetch")
    assert (person.repo / "lib" / "g.txt").read_text() == "2\n"
