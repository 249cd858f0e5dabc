"""`new --dirty` keeps the state of the index; what of it only a capsule has is work."""

from __future__ import annotations

import pytest

from atoll.engine.projects import CapsuleSpec, open_project
from atoll.model.errors import StateError

FILES = {name: f"{name}\n" for name in ("mod", "both", "ren", "del", "cached", "gone", "cleared")}


@pytest.fixture
def root(make_repo):
    return make_repo(FILES)


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def project(root, atoll_home, monkeypatch, warnings):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    return open_project(root, background=False, warn=warnings.append)


@pytest.fixture
def status(git, root):
    """What git says of the owner's checkout, and of a capsule."""

    def ask(capsule=None):
        words = ("status", "--porcelain=v1", "--untracked-files=all")
        if capsule is None:
            return git(*words, cwd=root)
        return capsule.run(["git", *words]).stdout.decode()

    return ask


def stage_everything(root, git):
    for name, more in (("mod", "staged\n"), ("both", "staged\n"), ("cleared", "staged\n")):
        (root / name).write_text(FILES[name] + more)
        git("add", name, cwd=root)
    (root / "both").write_text("staged and changed since\n")
    (root / "cleared").write_text(FILES["cleared"])
    git("mv", "ren", "renamed", cwd=root)
    git("rm", "--quiet", "del", cwd=root)
    git("rm", "--quiet", "--cached", "cached", cwd=root)
    (root / "gone").unlink()
    for name in ("added", "added and gone", "empty é", "intended", "untracked"):
        (root / name).write_text("" if name.startswith("empty") else f"{name}\n")
    git("add", "added", "added and gone", "empty é", cwd=root)
    git("add", "--intent-to-add", "intended", cwd=root)
    (root / "added and gone").unlink()


@pytest.mark.parametrize("level", ["clone", "sandbox"])
def test_the_state_of_the_index_is_kept(level, project, root, git, status):
    stage_everything(root, git)
    capsule = project.new("x", level=level, dirty=True)
    assert status(capsule) == status()
    shown = capsule.run(["git", "diff", "--cached"]).stdout.decode()
    assert shown == git("diff", "--cached", cwd=root)
    # All of it is the owner's still.
    assert not capsule.work().any
    assert capsule.remove() is None


def test_workspaces_that_are_copies_keep_it_too(project, root, git, status):
    stage_everything(root, git)
    spec = CapsuleSpec(level="clone", workspace="copy", dirty=True)
    capsule = project.make([project.plan("x", spec)])[0]
    assert status(capsule) == status()
    assert capsule.remove() is None


def test_forks_keep_it(project, root, git, status):
    stage_everything(root, git)
    fork = project.fork(project.new("x", dirty=True), "y")
    assert status(fork) == status()
    assert not fork.work().any


@pytest.mark.parametrize("how", ["sparse", "split"])
def test_other_kinds_of_index(how, project, root, git, status):
    if how == "sparse":
        git("sparse-checkout", "set", "--no-cone", "/*", "!/gone", cwd=root)
    else:
        git("update-index", "--split-index", cwd=root)
    (root / "both").write_text("staged\n")
    git("add", "both", cwd=root)
    capsule = project.new("x", dirty=True)
    assert status(capsule) == status() == "M  both\n"
    assert capsule.remove() is None


def test_what_only_the_index_of_a_capsule_holds_is_work(project, root, git):
    (root / "both").write_text("staged\n")
    git("add", "both", cwd=root)
    (root / "both").write_text("changed since\n")
    capsule = project.new("x", dirty=True)
    assert not capsule.work().any
    git("reset", "--quiet", "both", cwd=root)
    with pytest.raises(StateError, match="`both`"):
        capsule.remove()
    point = capsule.remove(force=True)
    assert point is not None
    assert git("show", f"{point.index_commit}:both", cwd=root) == "staged\n"
    again = project.recover(point, "x")
    assert again.run(["git", "show", ":both"]).stdout == b"staged\n"
    assert (again.run(["cat", "both"])).stdout == b"changed since\n"


def test_conflicts_stay_conflicts(project, root, git, status, warnings):
    git("switch", "--quiet", "--create", "other", cwd=root)
    (root / "mod").write_text("theirs\n")
    git("rm", "--quiet", "del", cwd=root)
    git("commit", "--quiet", "--all", "--message", "theirs", cwd=root)
    git("switch", "--quiet", "main", cwd=root)
    (root / "mod").write_text("ours\n")
    (root / "del").write_text("ours\n")
    git("commit", "--quiet", "--all", "--message", "ours", cwd=root)
    git("merge", "--quiet", "other", cwd=root, check=False)
    capsule = project.new("x", dirty=True)
    assert status(capsule) == status() == "UD del\nUU mod\n"
    assert any("does not record the merge" in warning for warning in warnings)
    assert capsule.remove() is None
    capsule = project.new("x", dirty=True)
    git("merge", "--abort", cwd=root)
    with pytest.raises(StateError, match="`mod`"):
        capsule.remove()


def test_staged_secrets_stay_out(project, root, git, status):
    """Also those that are in the index only."""
    secrets = {
        ".env": "TOKEN=abcdef0123456789\n",
        "conf/.npmrc": "//registry.example/:_authToken=abcdef0123456789\n",
        "key.pem": "-----BEGIN PRIVATE KEY-----\nabc\n",
    }
    for name, content in {**secrets, "added": "added\n"}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content)
    git("add", ".", cwd=root)
    # As it is now the file is harmless.
    (root / "key.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (root / "conf/.npmrc").unlink()
    capsule = project.new("x", dirty=True)
    assert status(capsule) == "A  added\n?? key.pem\n"
    script = "git cat-file --batch-all-objects --batch | grep -ac 'abcdef\\|PRIVATE'"
    assert capsule.run(["sh", "-c", script]).stdout == b"0\n"


def test_nothing_staged_needs_no_index(project, root, git):
    """The layer of changes is as it was in the versions before."""
    (root / "mod").write_text("changed\n")
    capsule = project.new("x", dirty=True)
    assert capsule.run(["git", "status", "--porcelain"]).stdout == b" M mod\n"
    pool = project.session.pool(project.record.id)
    assert not list(pool.glob("layers/x*/tree/workspace/.git"))


@pytest.mark.parametrize("workspace", ["overlay", "copy"])
def test_what_a_fork_or_a_snapshot_carried_is_work(workspace, project, root, git):
    """Once the owner has discarded it, whatever the layers of the capsule are by then."""
    (root / "mod").write_text("only in capsules soon\n")
    spec = CapsuleSpec(level="clone", workspace=workspace, dirty=True)
    first = project.make([project.plan("x", spec)])[0]
    point = first.snapshot()
    assert first.run(["git", "checkout", "--quiet", "mod"]).exit_code == 0
    first.rollback(point)
    fork = project.fork(first, "y")
    git("checkout", "--quiet", "mod", cwd=root)
    for capsule in (first, fork):
        with pytest.raises(StateError, match="`mod`"):
            capsule.remove()
        saved = capsule.remove(force=True)
        assert saved is not None
        assert git("show", f"{saved.commit}:mod", cwd=root) == "only in capsules soon\n"
