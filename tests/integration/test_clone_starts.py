"""Levels with layers from every kind of checkout: it works, or it is refused with a reason."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

import atoll
from atoll.testing.conformance.bench import survey
from present import present

SECRET = "hunter2"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1\n"


@pytest.fixture(autouse=True, params=[pytest.param("clone", marks=pytest.mark.soak), "sandbox"])
def level(request, atoll_home, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", request.param)
    # Submodules and clones come from directories here.
    with Path(os.environ["GIT_CONFIG_GLOBAL"]).open("a") as config:
        config.write('[protocol "file"]\n\tallow = always\n')
    return request.param


@pytest.fixture
def begun(git):
    """`begun(path)`: a capsule of the checkout there, in which git works and nothing differs."""
    made = []

    def begin(path, name="x", **options):
        made.append(atoll.open_project(path, **options))
        capsule = made[-1].new(name)
        assert sh(capsule, "git status --porcelain") == ""
        assert sh(capsule, "git rev-parse HEAD") == git("rev-parse", "HEAD", cwd=path)
        assert sh(capsule, "git log --format=%H") == git("log", "--format=%H", cwd=path)
        return capsule

    yield begin
    for project in made:
        for capsule in project.capsules():
            capsule.remove(force=True)
        project.session.forkserver.close()
        project.session.store.close()


def sh(capsule, script, code=0):
    result = capsule.run(["sh", "-euc", script])
    said = (result.stdout + result.stderr).decode(errors="replace")
    assert result.exit_code == code, f"ended with {result.exit_code}:\n{said}"
    return result.stdout.decode(errors="surrogateescape")


@pytest.fixture
def goes_both_ways(git):
    """Commits arrive with the owner, both repositories are whole, the checkout is as it was."""

    def check(capsule, root):
        before = survey(root)
        tip = sh(
            capsule, "echo w > work; git add --sparse work; git commit -qm work; git rev-parse HEAD"
        )
        assert sh(capsule, "git fsck --full --no-dangling --no-progress 2>&1") == ""
        branch = f"atoll/{capsule.name}"
        assert git("rev-parse", branch, cwd=root) == tip
        assert git("show", f"{branch}:work", cwd=root) == "w\n"
        git("fsck", "--full", "--no-dangling", cwd=root)
        assert survey(root) == before

    return check


def test_linked_worktree(repo, tmp_path, git, begun, goes_both_ways):
    linked = tmp_path / "linked"
    git("worktree", "add", "-q", "-b", "side", linked, cwd=repo)
    (linked / "side").write_text("side\n")
    git("add", "-A", cwd=linked)
    git("commit", "-qm", "side", cwd=linked)
    capsule = begun(linked)
    assert sh(capsule, "cat side; git worktree list | wc -l; ls -d .git/objects").split() == [
        "side", "1", ".git/objects",
    ]  # fmt: skip
    goes_both_ways(capsule, linked)
    assert git("worktree", "list", cwd=repo).count("\n") == 2


def test_main_checkout_and_linked_worktree_side_by_side(repo, tmp_path, git, begun):
    linked = tmp_path / "linked"
    git("worktree", "add", "-q", "-b", "side", linked, cwd=repo)
    (linked / "README.md").write_text("side\n")
    git("commit", "-qam", "side", cwd=linked)
    one, two = begun(repo, "one"), begun(linked, "two")
    assert sh(one, "pwd; tail -1 README.md") == f"{repo}\nA project to try things on.\n"
    assert sh(two, "pwd; cat README.md") == f"{linked}\nside\n"
    sh(one, "echo 1 > 1; git add 1; git commit -qm 1")
    assert git("log", "-1", "--format=%s", "atoll/one", cwd=linked) == "1\n"


def test_worktree_inside_of_the_checkout(repo, git, begun, goes_both_ways):
    (repo / ".gitignore").write_text("trees/\nbuild/\n")
    git("commit", "-qam", "ignore", cwd=repo)
    git("worktree", "add", "-q", "-b", "side", repo / "trees" / "side", cwd=repo)
    capsule = begun(repo)
    assert sh(capsule, "ls -A trees 2>/dev/null || true") == ""
    goes_both_ways(capsule, repo)


def test_shallow_clone(repo, tmp_path, git, begun, goes_both_ways):
    git("clone", "-q", "--depth=1", f"file://{repo}", tmp_path / "shallow", cwd=tmp_path)
    capsule = begun(tmp_path / "shallow")
    assert sh(capsule, "git rev-parse --is-shallow-repository; git log --oneline | wc -l") == (
        "true\n1\n"
    )
    goes_both_ways(capsule, tmp_path / "shallow")


def test_sha256_repository(tmp_path, git, begun, goes_both_ways):
    root = tmp_path / "sha256"
    git("init", "-q", "--object-format=sha256", root, cwd=tmp_path)
    (root / "file").write_text("content\n")
    git("add", "-A", cwd=root)
    git("commit", "-qm", "first", cwd=root)
    capsule = begun(root)
    assert len(sh(capsule, "git rev-parse HEAD").strip()) == 64
    goes_both_ways(capsule, root)


@pytest.mark.parametrize("how", ["--cone", "--no-cone"])
def test_sparse_checkout(make_repo, git, begun, goes_both_ways, how):
    root = make_repo({f"{top}/{name}": f"{top}\n" for top in "abc" for name in ("one", "two")})
    git("sparse-checkout", "set", how, "a", cwd=root)
    assert sorted(path.name for path in root.iterdir()) == [".git", "a"]
    capsule = begun(root)
    assert sh(capsule, "ls -A; git sparse-checkout list").split() == [".git", "a", "a"]
    goes_both_ways(capsule, root)
    assert {"a", "b"} <= {*sh(capsule, "git sparse-checkout add b; ls").split()}
    assert sh(capsule, "git sparse-checkout disable; ls").split() == ["a", "b", "c", "work"]
    assert sorted(path.name for path in root.iterdir()) == [".git", "a"]


def test_submodules(repo, make_repo, git, begun, goes_both_ways):
    library = make_repo({"lib.c": "int x;\n"}, name="library")
    git(
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        library,
        "vendor/lib",
        cwd=repo,
    )
    git("commit", "-qm", "submodule", cwd=repo)
    before = survey(repo)
    capsule = begun(repo)
    assert sh(capsule, "cat vendor/lib/lib.c; git submodule status").startswith("int x;\n ")
    sh(capsule, "cd vendor/lib; echo y >> lib.c; git commit -qam inside; git log --oneline | wc -l")
    assert sh(capsule, "git status --porcelain") == " M vendor/lib\n"
    assert capsule.work().nested == ("vendor/lib",)
    assert survey(repo) == before
    assert git("log", "--oneline", "--all", cwd=repo / "vendor" / "lib").count("\n") == 1


def test_submodules_that_are_not_checked_out(repo, make_repo, tmp_path, git, begun, goes_both_ways):
    library = make_repo({"lib.c": "int x;\n"}, name="library")
    git(
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        library,
        "vendor/lib",
        cwd=repo,
    )
    git("commit", "-qm", "submodule", cwd=repo)
    git("clone", "-q", repo, tmp_path / "bare-bones", cwd=tmp_path)
    capsule = begun(tmp_path / "bare-bones")
    assert sh(capsule, "ls -A vendor/lib; git submodule status").startswith("-")
    goes_both_ways(capsule, tmp_path / "bare-bones")


def test_lfs_pointers_without_lfs(make_repo, begun, goes_both_ways):
    root = make_repo({".gitattributes": "*.bin filter=lfs diff=lfs -text\n", "a.bin": POINTER})
    capsule = begun(root)
    assert sh(capsule, "cat a.bin") == POINTER
    goes_both_ways(capsule, root)


def test_lfs_that_is_required_and_missing(make_repo, git):
    root = make_repo({".gitattributes": "*.bin filter=lfs diff=lfs -text\n", "a.bin": POINTER})
    for key in ("clean", "smudge"):
        git("config", f"filter.lfs.{key}", f"git-lfs-that-is-missing {key} -- %f", cwd=root)
    git("config", "filter.lfs.required", "true", cwd=root)
    project = atoll.open_project(root)
    with pytest.raises(atoll.AtollError, match="lfs"):
        project.new("x")
    assert project.capsules() == []
    project.session.forkserver.close()


def test_partial_clone_is_refused(repo, tmp_path, git):
    git("config", "uploadpack.allowFilter", "true", cwd=repo)
    partial = tmp_path / "partial"
    git("clone", "-q", "--filter=blob:none", f"file://{repo}", partial, cwd=tmp_path)
    project = atoll.open_project(partial)
    with pytest.raises(atoll.StateError, match="partial clone") as refusal:
        project.new("x")
    assert "git fetch" in present(refusal.value.hint)
    assert project.capsules() == []
    project.session.forkserver.close()


def test_detached_head(repo, git, begun, goes_both_ways):
    git("switch", "-q", "--detach", "HEAD~1", cwd=repo)
    capsule = begun(repo)
    assert sh(capsule, "git branch --show-current; git log --oneline | wc -l") == "atoll/x\n1\n"
    goes_both_ways(capsule, repo)


def test_packed_refs_and_tags(repo, git, begun, goes_both_ways):
    git("tag", "-a", "-m", "noted", "v1", cwd=repo)
    git("tag", "light", "HEAD~1", cwd=repo)
    git("tag", "-a", "-m", "tag of a tag", "nested", "v1", cwd=repo)
    git("branch", "feature/one", "HEAD~1", cwd=repo)
    git("pack-refs", "--all", cwd=repo)
    git("branch", "loose", cwd=repo)
    capsule = begun(repo)
    asked = "for-each-ref", "--format=%(objectname) %(refname)", "refs/tags", "refs/heads"
    wanted = git(*asked, cwd=repo)
    inside = sh(
        capsule, "git for-each-ref '--format=%(objectname) %(refname)' refs/tags refs/heads"
    )
    assert [row for row in inside.splitlines() if "atoll" not in row] == [
        row for row in wanted.splitlines() if "atoll" not in row
    ]
    assert sh(capsule, "git describe --match 'v*'") == "v1\n"
    git("tag", "-d", "v1", "nested", "light", cwd=repo)
    git("gc", "-q", "--prune=now", cwd=repo)
    assert sh(capsule, "git cat-file -p nested | tail -1") == "tag of a tag\n"
    goes_both_ways(capsule, repo)


def test_objects_through_alternates(repo, tmp_path, git, begun, goes_both_ways):
    git("clone", "-q", "--shared", repo, tmp_path / "between", cwd=tmp_path)
    git("clone", "-q", "--shared", tmp_path / "between", tmp_path / "sharing", cwd=tmp_path)
    capsule = begun(tmp_path / "sharing")
    goes_both_ways(capsule, tmp_path / "sharing")
    refused = capsule.run(["touch", f"{repo}/.git/objects/x"])
    assert refused.exit_code != 0 or os.environ["ATOLL_LEVEL"] == "clone"
    (repo / ".git/objects/x").unlink(missing_ok=True)


def test_objects_through_relative_alternates(repo, tmp_path, git, begun, goes_both_ways):
    git("clone", "-q", "--shared", repo, tmp_path / "sharing", cwd=tmp_path)
    alternates = tmp_path / "sharing" / ".git" / "objects" / "info" / "alternates"
    alternates.write_text("../../../repo/.git/objects\n")
    goes_both_ways(begun(tmp_path / "sharing"), tmp_path / "sharing")


def test_git_directory_that_lies_elsewhere(repo, tmp_path, git, begun, goes_both_ways):
    git("init", "-q", "--separate-git-dir", tmp_path / "else where", cwd=repo)
    assert (repo / ".git").is_file()
    goes_both_ways(begun(repo), repo)


def test_checkout_seen_through_a_link(repo, tmp_path, begun, goes_both_ways):
    (tmp_path / "link").symlink_to(repo)
    capsule = begun(tmp_path / "link" / "src")
    assert sh(capsule, "pwd -P") == f"{repo}\n"
    goes_both_ways(capsule, repo)


@pytest.mark.parametrize(
    "name", ["a b", "a:b", "a,b", "é ü", 'q"uote', "it's", "back\\slash", "a=b"]
)
def test_odd_places(make_repo, tmp_path, begun, goes_both_ways, name):
    root = make_repo(name=f"repo {name}")
    capsule = begun(root, home=tmp_path / f"home {name}")
    goes_both_ways(capsule, root)
    capsule.snapshot("s")
    # Without root it takes a directory in the PATH, which cannot name one with a colon.
    is_told = ":" in name and os.geteuid() != 0
    sh(capsule, "git mv src moved; git status", code=128 if is_told else 0)


def test_project_on_another_filesystem(git, begun, goes_both_ways, level):
    if not os.path.ismount("/dev/shm"):
        pytest.skip("there is no other filesystem at hand")
    place = Path(tempfile.mkdtemp(prefix="atoll-", dir="/dev/shm"))
    try:
        git("init", "-q", cwd=place)
        (place / "file").write_text("f\n")
        (place / ".gitignore").write_text("deps/\n")
        (place / "deps").mkdir()
        (place / "deps" / "one").write_text("1\n")
        git("add", "-A", cwd=place)
        git("commit", "-qm", "first", cwd=place)
        if level == "sandbox":
            with pytest.raises(atoll.IsolationError, match="`/dev`"):
                begun(place)
            return
        capsule = begun(place)
        assert sh(capsule, "cat deps/one") == "1\n"
        goes_both_ways(capsule, place)
    finally:
        shutil.rmtree(place)


def test_home_inside_of_the_project_is_refused(repo):
    project = atoll.open_project(repo, home=repo / ".atoll")
    with pytest.raises(atoll.PrerequisiteError):
        project.new("x")
    project.session.forkserver.close()


# What of the owner's settings comes along.


def test_no_credential_comes_along(repo, git, begun):
    settings = {
        "remote.origin.url": f"https://user:{SECRET}@example.org/a.git",
        "remote.token.url": f"https://{SECRET}@example.org/a.git",
        "remote.odd.url": f"https://user:p@{SECRET}@example.org/a.git",
        "remote.origin.pushurl": f"https://user:{SECRET}@example.org/push.git",
        "http.extraHeader": f"Authorization: {SECRET}",
        f"url.https://x:{SECRET}@example.org/.insteadOf": "https://example.org/",
        "credential.helper": f"!echo password={SECRET}",
        "core.sshCommand": f"ssh -i {SECRET}",
        "branch.main.remote": f"https://user:{SECRET}@example.org/b.git",
        "submodule.lib.url": f"https://user:{SECRET}@example.org/c.git",
        "alias.leak": f"!echo {SECRET}",
    }
    for key, value in settings.items():
        git("config", key, value, cwd=repo)
    capsule = begun(repo)
    assert sh(capsule, "git remote get-url origin") == "https://example.org/a.git\n"
    kept = sh(capsule, "git config --list; cat .git/config .git/packed-refs")
    found = [line for line in kept.splitlines() if SECRET in line]
    assert found == []


def test_hooks_in_a_directory_of_the_project(make_repo, git, begun):
    root = make_repo(
        {".husky/pre-commit": "#!/bin/sh\necho ran > hooked\n", ".gitignore": "hooked"}
    )
    (root / ".husky" / "pre-commit").chmod(0o755)
    git("add", "-A", cwd=root)
    git("commit", "-qm", "mode", cwd=root)
    git("config", "core.hooksPath", ".husky", cwd=root)
    capsule = begun(root)
    sh(capsule, "echo x > x; git add x; git commit -qm x; grep -q ran hooked")
    assert not (root / "hooked").exists()


def test_stash_and_recovery_points_of_the_owner_stay_out(repo, git, begun):
    (repo / "README.md").write_text("stashed\n")
    git("stash", "-q", cwd=repo)
    capsule = begun(repo)
    assert sh(capsule, "git stash list; git for-each-ref refs/stash refs/atoll") == ""
    assert git("stash", "list", cwd=repo).count("\n") == 1
