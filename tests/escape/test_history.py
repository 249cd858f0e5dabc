"""A capsule reads the history of its base and its own commits, and no other object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.drivers.layers.commit import find_submodules, parse_links
from atoll.drivers.layers.pool import Pool
from atoll.drivers.layers.repository import Source
from atoll.engine.enclosure import views
from atoll.engine.history import layers, upkeep
from atoll.engine.state.leases import workspace_plan
from atoll.host import files, process


@pytest.fixture(autouse=True)
def _ended(project):
    yield
    for capsule in project.capsules():
        capsule.stop(grace_s=0)
        views.end_view(project.session, capsule.record)
    project.session.forkserver.close()
    project.session.store.close()


@pytest.fixture
def pool(project):
    return Pool(project.session.pool(project.record.id))


def sh(capsule, script, code=0):
    result = capsule.run(["sh", "-euc", script])
    said = (result.stdout + result.stderr).decode(errors="replace")
    assert result.exit_code == code, f"ended with {result.exit_code}:\n{said}"
    return result.stdout.decode()


def can_read(capsule, name):
    return capsule.run(["git", "cat-file", "-e", name]).exit_code == 0


def require_hidden(capsule, git, repo, *names):
    """No name can be read in the capsule; the control is that the owner can read all."""
    for name in names:
        git("cat-file", "-e", name, cwd=repo)
        assert not can_read(capsule, name), name


def commit(git, repo, subject, *, path="file"):
    (repo / path).write_text(f"{subject}\n")
    git("add", "--all", cwd=repo)
    git("commit", "-qm", subject, cwd=repo)
    return git("rev-parse", "HEAD", cwd=repo).strip()


def objects_of(git, repo, *revs):
    listed = git("rev-list", "--objects", *revs, cwd=repo).splitlines()
    return [line.split(" ")[0] for line in listed]


def stores(pool):
    return sorted(path for path in pool.history.iterdir() if path.name[0] == "h")


def test_commits_of_another_capsule(project, repo, git):
    one, two = project.new("one"), project.new("two")
    tip = sh(one, "echo secret > new; git add new; git commit -qm secret; git rev-parse HEAD")
    made = objects_of(git, repo, tip.strip(), "^HEAD")
    assert len(made) == 3
    require_hidden(two, git, repo, *made)
    assert all(can_read(one, name) for name in made)
    # One that is made afterwards starts from the same base.
    require_hidden(project.new("three"), git, repo, *made)


def test_recovery_point(project, repo, git):
    one = project.new("one")
    sh(one, "echo secret > new")
    point = one.remove(force=True)
    made = objects_of(git, repo, point.commit, "^HEAD")
    require_hidden(project.new("two"), git, repo, *made)
    # A capsule that starts from the point reads it, and so does a fork of that.
    again = project.recover(point, "again")
    assert all(can_read(again, name) for name in made)
    assert sh(again, "cat new; git fsck --full --no-dangling 2>&1") == "secret\n"
    fork = project.fork(again, "fork")
    assert sh(fork, "git add -A; git commit -qm kept; git show HEAD:new") == "secret\n"
    require_hidden(project.new("three"), git, repo, *made)


def test_other_work_of_the_owner(project, repo, git):
    base = git("rev-parse", "HEAD", cwd=repo).strip()
    (repo / "README.md").write_text("stashed\n")
    git("stash", cwd=repo)
    stashed = objects_of(git, repo, "refs/stash", f"^{base}")
    git("switch", "-qc", "unmerged", cwd=repo)
    unmerged = commit(git, repo, "unmerged")
    git("tag", "-am", "unmerged", "later", cwd=repo)
    git("switch", "-q", "main", cwd=repo)
    dangling = git("commit-tree", "HEAD^{tree}", "-m", "dangling", cwd=repo).strip()
    blob = git("hash-object", "-w", str(repo / ".git/config"), cwd=repo).strip()
    capsule = project.new("x")
    tag = git("rev-parse", "later", cwd=repo).strip()
    require_hidden(capsule, git, repo, *stashed, unmerged, tag, dangling, blob)
    assert "unmerged" not in sh(capsule, "git for-each-ref; git fsck --full 2>&1")
    assert can_read(capsule, base)


def test_the_objects_of_the_owner_are_nowhere_else(project, repo):
    """What alternates name is the store, and the owner's directory cannot be named."""
    capsule = project.new("x")
    control = sh(
        capsule, "cat .git/objects/info/alternates; echo; ls $(cat .git/objects/info/alternates)"
    )
    assert control.split()[1:] == ["info", "pack"]
    assert capsule.run(["ls", f"{repo}/.git/objects/info"]).exit_code == 0
    own = f"GIT_ALTERNATE_OBJECT_DIRECTORIES={repo}/.git/objects"
    sh(capsule, f"{own} git cat-file -e HEAD")
    assert capsule.run(["touch", f"{control.split()[0]}/pack/x"]).exit_code != 0


def test_history_works_inside(project, repo, git):
    for number in range(8):
        commit(git, repo, f"commit {number}")
        if number == 4:
            git("tag", "-am", "annotated", "v1", cwd=repo)
            git("tag", "-am", "of a tag", "v1-nested", "v1", cwd=repo)
            git("tag", "light", cwd=repo)
    for arrange in ((), ("gc", "-q")):
        if arrange:
            git(*arrange, cwd=repo)
        capsule = project.new(f"x{len(arrange)}")
        for asked in (
            "log --format=%H", "blame file", "describe --tags --match v1", "diff HEAD~5",
            "cat-file -p v1-nested", "for-each-ref refs/tags", "log -S commit --oneline",
        ):  # fmt: skip
            assert sh(capsule, f"git --no-pager {asked}") == git(*asked.split(), cwd=repo), asked
        assert sh(capsule, "git fsck --full --strict 2>&1") == ""
        snapshot = capsule.snapshot("s")
        sh(capsule, "git rm -q file; git commit -qm gone; git gc -q --prune=now")
        capsule.rollback(snapshot)
        assert sh(capsule, "git log -1 --format=%s; git fsck --full 2>&1") == "commit 7\n"
        assert sh(project.fork(capsule, f"f{len(arrange)}"), "git show HEAD~3:file") == "commit 4\n"


def test_store_is_exact(project, repo, git, pool):
    """The store holds the objects of the base and nothing else, also when packs are reused."""
    git("switch", "-qc", "other", cwd=repo)
    commit(git, repo, "other")
    git("switch", "-q", "main", cwd=repo)
    git("gc", "-q", cwd=repo)
    for number in range(3):
        base = commit(git, repo, f"commit {number}")
        project.warm()
        newest = max(stores(pool), key=lambda path: path.stat().st_mtime_ns)
        held = set()
        for index in (newest / "objects/pack").glob("*.idx"):
            held |= {
                line.split()[0]
                for line in git("verify-pack", "-v", index, cwd=repo).splitlines()
                if len(line.split()) in (5, 7) and len(line.split()[0]) == 40
            }
        assert held == set(objects_of(git, repo, base))


def test_base_that_moves_forward_adds_a_small_store(project, repo, git, pool):
    (repo / "large").write_bytes(bytes(range(256)) * 4000)
    commit(git, repo, "large")
    project.warm()
    (first,) = stores(pool)
    commit(git, repo, "small")
    project.warm()
    (second,) = set(stores(pool)) - {first}
    new = [p for p in (second / "objects/pack").glob("*.pack") if p.stat().st_nlink == 1]
    assert len(new) == 1
    assert new[0].stat().st_size < 1000
    # Each is complete without the other.
    plan = workspace_plan(project.session, project.new("x").record)
    upkeep.work(project.session)
    assert stores(pool) == [second]
    noted = json.loads((pool.history / plan.git).read_text())
    assert noted["store"] == second.name
    assert sh(project.capsule("x"), "git fsck --full 2>&1") == ""


def test_branch_that_was_rewritten_does_not_stay_readable(project, repo, git):
    commit(git, repo, "draft")
    project.warm()
    draft = git("rev-parse", "HEAD", cwd=repo).strip()
    git("reset", "-q", "--hard", "HEAD~1", cwd=repo)
    commit(git, repo, "final")
    require_hidden(project.new("x"), git, repo, draft)


def test_many_steps_become_few_packs(project, repo, git, pool):
    for number in range(20):
        commit(git, repo, f"commit {number}")
        project.warm()
    counts = [len(list((store / "objects/pack").glob("*.pack"))) for store in stores(pool)]
    assert max(counts) == 16
    assert sh(project.new("x"), "git fsck --full 2>&1; git log --oneline | wc -l") == "22\n"


def test_damaged_store_is_found_and_built_again(project, pool):
    capsule = project.new("x")
    assert sh(capsule, "git log -1 --format=%s") != ""
    views.end_view(project.session, capsule.record)
    assert not any(one.damaged for one in layers.check(project.session, project.record))
    (store,) = stores(pool)
    pack = next((store / "objects/pack").glob("*.pack"))
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(content)
    damaged = [one for one in layers.check(project.session, project.record) if one.damaged]
    assert [(one.layer.kind, one.damaged) for one in damaged] == [("history", [pack.name])]
    assert sh(capsule, "git fsck --full 2>&1") == ""


def test_store_goes_with_its_last_layer(project, repo, git, pool):
    old = project.new("old")
    for number in range(2):
        commit(git, repo, f"commit {number}")
        project.warm()
    assert len(stores(pool)) == 3
    upkeep.work(project.session)
    assert len(stores(pool)) == 2
    sh(old, "git fsck --full 2>&1")
    old.remove(force=True)
    upkeep.work(project.session)
    assert len(stores(pool)) == 1
    assert len([p for p in pool.history.iterdir() if p.name[0] == "g"]) == 1


def test_warm_project_starts_no_further_git(project, monkeypatch):
    project.warm()
    started: list[str] = []
    monkeypatch.setattr(process, "on_command", started.append)
    project.new("x")
    assert not [
        line for line in started if "pack-objects" in line or "for-each-ref --merged" in line
    ]


def test_landed_layer_gets_a_store(project, repo, git, pool):
    """A layer of an earlier version names refs that are not merged and has no store."""
    git("branch", "side", cwd=repo)
    capsule = project.new("x")
    plan = workspace_plan(project.session, capsule.record)
    git("switch", "-q", "side", cwd=repo)
    side = commit(git, repo, "side")
    stashed = git("commit-tree", "HEAD^{tree}", "-m", "stash", cwd=repo).strip()
    lost = "1" * 40
    refs = Path(pool.tree(plan.git), "workspace/.git/packed-refs")
    added = f"{side} refs/heads/side\n{stashed} refs/stash\n{lost} refs/heads/lost\n"
    refs.write_text("".join(sorted(refs.read_text().splitlines(keepends=True))) + added)
    for path in pool.history.iterdir():
        files.discard(path, home=project.session.home)
    assert can_read(capsule, side)
    require_hidden(capsule, git, repo, stashed)


def test_other_work_in_a_submodule(project, repo, git, make_repo):
    allowed = ("-c", "protocol.file.allow=always")
    origin = make_repo({"lib.py": "lib\n"}, name="origin")
    git(*allowed, "submodule", "--quiet", "add", str(origin), "lib", cwd=repo)
    git("commit", "-qam", "submodule", cwd=repo)
    lib = repo / "lib"
    base = git("rev-parse", "HEAD", cwd=lib).strip()
    git("switch", "-qc", "unmerged", cwd=lib)
    unmerged = commit(git, lib, "unmerged")
    git("switch", "-q", "--detach", base, cwd=lib)
    blob = git("hash-object", "-w", str(repo / ".git/config"), cwd=lib).strip()
    capsule = project.new("x")
    for name in (unmerged, blob):
        git("cat-file", "-e", name, cwd=lib)
        assert capsule.run(["git", "-C", "lib", "cat-file", "-e", name]).exit_code != 0
    script = "cd lib; git fsck --full 2>&1; git status --porcelain; git rev-parse HEAD"
    assert sh(capsule, script).strip() == base


@pytest.mark.parametrize("name", ["/tmp", "../outside", "a/../../outside", ".GIT/modules/x", ""])
def test_submodule_whose_path_leads_outside(name):
    """`ls-tree` prints what a hostile tree says; the plain path is the control."""
    listing = "".join(f"160000 commit {'1' * 40}       -\t{path}\0" for path in (name, "plain"))
    assert parse_links(listing) == [("plain", "1" * 40)]


def test_submodule_behind_a_link(project, repo, tmp_path, git, make_repo):
    """No git of the host is started where a tracked link leads to."""
    outside = make_repo({"lib.py": "lib\n"}, name="outside")
    inner = git("rev-parse", "HEAD", cwd=outside).strip()
    (repo / "link").symlink_to(tmp_path)
    git("add", "link", cwd=repo)
    git("commit", "-qm", "link", cwd=repo)
    refs = project.session.ref_cache.refs(project.record)
    source = Source(str(repo), f"{repo}/.git", f"{repo}/.git", refs, refs.head_commit)
    assert find_submodules(source, [("link/outside", inner)]) == []
    (repo / "link").unlink()
    (repo / "link").mkdir()
    outside.rename(repo / "link" / "outside")
    assert [found.path for found in find_submodules(source, [("link/outside", inner)])] == [
        "link/outside"
    ]


def test_work_after_a_rollback_is_saved_with_what_was_exported(project, repo, git):
    """The exported commit is a parent of the recovery point, and the capsule cannot read it."""
    capsule = project.new("x")
    before = capsule.snapshot("before")
    tip = sh(capsule, "echo a > a; git add a; git commit -qm exported; git rev-parse HEAD").strip()
    capsule.rollback(before)
    require_hidden(capsule, git, repo, tip)
    sh(capsule, "echo b > b")
    point = capsule.remove(force=True)
    assert tip in git("log", "-1", "--format=%P", point.commit, cwd=repo)
    again = project.recover(point, "again")
    assert sh(again, f"cat b; git cat-file -t {tip}; git fsck --full --no-dangling 2>&1") == (
        "b\ncommit\n"
    )
