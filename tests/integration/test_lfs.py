"""Git LFS with the real git-lfs: objects come out with the commits, and the owner's are inside."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from pathlib import Path

import pytest

import persons
from atoll.drivers.layers.pool import Pool
from atoll.engine.capsule import reaper
from atoll.engine.projects import open_project
from atoll.engine.state.leases import workspace_plan
from atoll.host.intake import lfs_objects
from atoll.model.errors import StateError

FILTER = """\
[filter "lfs"]
    clean = git-lfs clean -- %f
    smudge = git-lfs smudge -- %f
    process = git-lfs filter-process
    required = true
"""
ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
FIRST = b"first\0" * 1000


@pytest.fixture(autouse=True)
def _git_lfs(atoll_home):
    if shutil.which("git-lfs") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("git-lfs is not installed")
        pytest.skip("git-lfs is not installed")
    with Path(os.environ["GIT_CONFIG_GLOBAL"]).open("a", encoding="utf-8") as config:
        config.write(FILTER)


@pytest.fixture
def owner(make_repo):
    return make_repo({".gitattributes": ATTRIBUTES, "a.bin": FIRST, "README.md": "# p\n"})


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def project(owner, atoll_home, monkeypatch, warnings):
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    return open_project(owner, background=False, warn=warnings.append)


def sh(capsule, script):
    done = capsule.run(["sh", "-ec", script])
    assert done.exit_code == 0, done
    return done.stdout.decode() if isinstance(done.stdout, bytes) else done.stdout


def stored(place, content):
    """Where an LFS store keeps an object."""
    oid = hashlib.sha256(content).hexdigest()
    return place / "objects" / oid[:2] / oid[2:4] / oid


COMMIT = "seq 9000 > b.bin; git add b.bin; git commit -qm b"
SECOND = "".join(f"{number}\n" for number in range(1, 9001)).encode()


@pytest.mark.parametrize("level", ["clone", "sandbox"])
def test_objects_of_new_commits_come_out_and_can_be_merged(
    level, project, owner, git, monkeypatch, warnings
):
    monkeypatch.setenv("ATOLL_LEVEL", level)
    capsule = project.new("x")
    sh(capsule, COMMIT)
    assert stored(owner / ".git/lfs", SECOND).read_bytes() == SECOND
    assert capsule.remove(keep_branch=True) is None
    git("merge", "--quiet", "atoll/x", cwd=owner)
    assert (owner / "b.bin").read_bytes() == SECOND
    assert git("status", "--short", cwd=owner) == ""
    assert warnings == []


def test_removal_keeps_the_objects_of_commits_that_came_out_without_them(project, owner, git):
    """As earlier versions exported them."""
    capsule = project.new("x")
    sh(capsule, COMMIT)
    shutil.rmtree(owner / ".git/lfs")
    assert capsule.remove(keep_branch=True) is None
    assert stored(owner / ".git/lfs", SECOND).read_bytes() == SECOND


def test_objects_go_where_the_owner_keeps_them(project, owner, git):
    git("config", "lfs.storage", "media", cwd=owner)
    capsule = project.new("x")
    sh(capsule, COMMIT)
    sh(capsule, "seq 100 > c.bin")
    capsule.commit("c")
    assert stored(owner / ".git/media", SECOND).is_file()
    content = "".join(f"{number}\n" for number in range(1, 101)).encode()
    assert stored(owner / ".git/media", content).read_bytes() == content


def test_the_owners_objects_are_inside_and_no_others(project, owner, git):
    git("switch", "--quiet", "--create", "private", cwd=owner)
    (owner / "p.bin").write_bytes(b"private\0" * 500)
    git("add", "p.bin", cwd=owner)
    git("commit", "--quiet", "--message", "private", cwd=owner)
    git("switch", "--quiet", "main", cwd=owner)
    project.new("w").remove()
    # Another state of the project: its git layer is not the one that `a.bin` was frozen with.
    git("commit", "--quiet", "--allow-empty", "--message", "more", cwd=owner)
    capsule = project.new("x")
    said = sh(capsule, "echo changed > a.bin; git checkout -q a.bin; cat a.bin; git status --short")
    assert said.encode() == FIRST
    alternates = sh(capsule, "cat .git/objects/info/alternates").strip()
    seen = sh(capsule, f"find {Path(alternates).parent}/lfs .git/lfs -type f -size +0")
    assert hashlib.sha256(FIRST).hexdigest() in seen
    assert hashlib.sha256(b"private\0" * 500).hexdigest() not in seen
    # The owner's object is linked, not copied, and cannot be written inside.
    assert stored(owner / ".git/lfs", FIRST).stat().st_nlink > 1
    held = f"{Path(alternates).parent}/lfs/objects"
    done = capsule.run(["sh", "-c", f"find {held} -type f -exec sh -c 'echo x > $0' {{}} \\;"])
    assert b"Read-only" in done.stderr or b"denied" in done.stderr
    assert stored(owner / ".git/lfs", FIRST).read_bytes() == FIRST
    pool = Pool(workspace_plan(capsule.session, capsule.record).pool)
    layers = [layer for name in pool.all() if (layer := pool.find(name)) is not None]
    assert {layer.id: pool.damage(layer) for layer in layers if pool.damage(layer)} == {}


def test_tracking_another_kind_of_file_inside(project, owner, git):
    capsule = project.new("x")
    sh(capsule, "git lfs track -q '*.psd' || git lfs track '*.psd'; seq 5000 > n.psd; git add -A; "
       "git commit -qm psd")  # fmt: skip
    assert not capsule.work().uncommitted
    sh(capsule, "seq 4000 > m.psd; seq 3000 > m.txt")
    capsule.commit("more")
    sizes = git("ls-tree", "--long", "atoll/x", "n.psd", "m.psd", "m.txt", cwd=owner).split("\n")
    assert [int(line.split()[3]) < 200 for line in sizes if line] == [True, False, True]
    assert sh(capsule, "git status --short") == ""
    git("merge", "--quiet", "atoll/x", cwd=owner)
    assert (owner / "m.psd").read_text().endswith("\n4000\n")
    assert git("status", "--short", cwd=owner) == ""


def test_staged_and_uncommitted_objects_survive_a_removal(project, owner):
    capsule = project.new("x")
    sh(capsule, "seq 2000 > s.bin; git add s.bin; rm s.bin; seq 1000 > u.bin; seq 7 > a.bin")
    with pytest.raises(StateError, match="exists nowhere else"):
        capsule.remove()
    point = capsule.remove(force=True)
    again = project.recover(point, "x")
    assert sh(again, "git status --short") == " M a.bin\nAD s.bin\n?? u.bin\n"
    assert sh(again, "cat u.bin a.bin | tail -n 8").startswith("1000\n1\n")
    assert sh(again, "git checkout -q s.bin; tail -n 1 s.bin") == "2000\n"


@pytest.mark.parametrize("level", ["worktree", "sandbox"])
def test_a_point_keeps_its_objects_as_long_as_it_is_there(
    level, project, owner, git, monkeypatch, warnings, atoll_home
):
    """`git lfs prune` does not look at the refs of recovery points."""
    monkeypatch.setenv("ATOLL_LEVEL", level)
    capsule = project.new("x")
    sh(capsule, f"{COMMIT}; seq 3000 > s.bin; git add s.bin; rm s.bin; seq 1000 > u.bin")
    point = capsule.remove(force=True)
    git("lfs", "prune", "--recent", cwd=owner)
    assert not stored(owner / ".git/lfs", SECOND).exists()
    again = project.recover(point, "x")
    said = sh(again, "git status --short; git checkout -q s.bin; tail -qn 1 b.bin s.bin u.bin")
    assert said == "AD s.bin\n?? u.bin\n9000\n3000\n1000\n"
    assert warnings == []
    # Nothing is kept of what the base commit has, and a link is enough.
    [kept] = Path(atoll_home, "points").glob("*/x/*.lfs")
    assert not stored(kept, FIRST).exists()
    assert len([path for path in kept.rglob("*") if path.is_file()]) == 3
    again.remove(force=True)
    [newer, older] = project.recovery_points()
    assert older == point
    project.drop(older)
    [kept] = Path(atoll_home, "points").glob("*/x/*.lfs")
    # As somebody may who does not know of `recover --drop`.
    git("update-ref", "-d", newer.ref, cwd=owner)
    assert reaper.collect(project.session, dry_run=True).files == (str(kept),)
    assert str(kept) in reaper.collect(project.session).files
    assert not kept.exists()


def test_objects_that_are_nowhere_are_named(project, owner, git, warnings, atoll_home):
    """Of a point that an earlier version made, and of one whose kept objects were damaged."""
    capsule = project.new("x")
    sh(capsule, f"{COMMIT}; seq 1000 > u.bin")
    point = capsule.remove(force=True)
    git("lfs", "prune", "--recent", cwd=owner)
    [kept] = Path(atoll_home, "points").glob("*/x/*.lfs")
    content = stored(kept, SECOND)
    content.write_bytes(content.read_bytes()[::-1])
    assert f"size {len(SECOND)}" in sh(project.recover(point, "y"), "cat b.bin; tail -n 1 u.bin")
    assert [text for text in warnings if "`b.bin`: Git LFS pointers" in text]
    assert not stored(owner / ".git/lfs", SECOND).exists()
    shutil.rmtree(kept)
    shutil.rmtree(owner / ".git/lfs")
    project.recover(point, "z")
    assert [text for text in warnings if "`a.bin`, `b.bin`, `u.bin`: Git LFS pointers" in text]


HOSTILE = {
    "another content": "o=$(find .git/lfs/objects -type f -size +10k); rm $o; seq 9001 > $o",
    "too short": "o=$(find .git/lfs/objects -type f -size +10k); rm $o; seq 10 > $o",
    "a link to the host": "o=$(find .git/lfs/objects -type f -size +10k); rm $o; ln -s TARGET $o",
    "a link on the way": "cp -a .git/lfs $TMPDIR/real; rm -r .git/lfs; ln -s $TMPDIR/real .git/lfs",
    "a fifo": "o=$(find .git/lfs/objects -type f -size +10k); rm $o; mkfifo $o",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_what_is_not_the_object_is_not_taken(how, project, owner, warnings, tmp_path):
    capsule = project.new("x")
    (tmp_path / "target").write_bytes(SECOND)
    script = HOSTILE[how].replace("TARGET", str(tmp_path / "target"))
    # The file itself goes first: the object would be made of it.
    sh(capsule, f"{COMMIT}; git rm -q b.bin; git commit -qm gone; {script}")
    objects = [path for path in (owner / ".git/lfs/objects").rglob("*") if path.is_file()]
    assert objects == [stored(owner / ".git/lfs", FIRST)]
    assert [text for text in warnings if "`b.bin`" in text and "Git LFS" in text]
    if "link on" not in how:
        with pytest.raises(StateError, match=r"`b\.bin`"):
            capsule.remove(keep_branch=True)
    assert capsule.remove(force=True) is not None


def test_pointers_that_lead_nowhere_are_reported_and_destroy_nothing(project, owner, git, warnings):
    capsule = project.new("x")
    head = "version https://git-lfs.github.com/spec/v1\\noid sha256:"
    lost, huge = "ab" * 32, "cd" * 32
    sh(
        capsule,
        f"printf '{head}{lost}\\nsize 5\\n' > lost.bin; "
        f"printf '{head}{huge}\\nsize 999999999999999999\\n' > huge.bin; "
        f"printf '{head}../../../../../../tmp/x\\nsize 5\\n' > odd.txt; "
        "git add -A; git commit -qm pointers",
    )
    assert [text for text in warnings if "`lost.bin`" in text and "neither in the capsule" in text]
    assert [text for text in warnings if "huge.bin" in text and "exceeds a limit" in text]
    assert git("show", "atoll/x:odd.txt", cwd=owner).endswith("size 5\n")
    point = capsule.remove(force=True)
    again = project.recover(point, "y")
    assert lost in sh(again, "cat lost.bin")


SPARSE = """\
for n in 1 2 3 4 5; do
  truncate -s 20000000 $TMPDIR/t; printf "%s" $n | dd of=$TMPDIR/t conv=notrunc status=none
  o=$(sha256sum $TMPDIR/t | cut -c 1-64)
  d=.git/lfs/objects/$(echo $o | cut -c 1-2)/$(echo $o | cut -c 3-4); mkdir -p $d
  [ $n -gt WRONG ] || printf x | dd of=$TMPDIR/t conv=notrunc status=none
  mv $TMPDIR/t $d/$o
  p="version https://git-lfs.github.com/spec/v1\\noid sha256:$o\\nsize 20000000\\n"
  b=$(printf "$p" | git hash-object -w --stdin)
  git update-index --add --cacheinfo 100644,$b,s$n.bin
done
git commit -qm sparse
"""


@pytest.mark.parametrize(("wrong", "taken", "left"), [(0, 3, 0), (2, 1, 2), (5, 0, 5)])
def test_the_disk_limit_bounds_what_sparse_objects_cost(
    wrong, taken, left, project, owner, warnings
):
    """Objects that are read and refused count, too."""
    capsule = project.new("x", limits=("disk=64M",))
    sh(capsule, SPARSE.replace("WRONG", str(wrong)))
    objects = [path.stat() for path in (owner / ".git/lfs").rglob("*") if path.is_file()]
    large = [status for status in objects if status.st_size == 20_000_000]
    assert len(large) == taken
    assert sum(status.st_blocks * 512 for status in large) < 1 << 20
    assert [text for text in warnings if "exceeds a limit" in text]
    # The next import has a budget of its own, and reads none of the wrong ones again.
    assert len(capsule.work().large) == left
    capsule.remove(force=True)


RIGHT = b"a" * (2 << 20)
WRONG = f"""\
add() {{
  d=.git/lfs/objects/$(echo $2 | cut -c 1-2)/$(echo $2 | cut -c 3-4); mkdir -p $d; mv o $d/$2
  p="version https://git-lfs.github.com/spec/v1\\noid sha256:$2\\nsize $1\\n"
  b=$(printf "$p" | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$b,$3
}}
truncate -s {2 << 30} o; add {2 << 30} {"ab" * 32} hole.bin
head -c {len(RIGHT)} /dev/zero | tr '\\0' b > o
add {len(RIGHT)} {hashlib.sha256(RIGHT).hexdigest()} wrong.bin
git commit -qm wrong
"""


def test_wrong_objects_are_hashed_once_and_holes_are_not(project, owner, monkeypatch):
    hashed = []

    def pieces(file, read=lfs_objects.pieces):
        hashed.append(os.fstat(file.fileno()).st_size)
        return read(file)

    monkeypatch.setattr(lfs_objects, "pieces", pieces)
    capsule = project.new("x")
    sh(capsule, WRONG)
    for _ in range(2):
        assert capsule.work().large == ("hole.bin", "wrong.bin")
    assert hashed == [len(RIGHT)]
    place = stored(Path(".git/lfs"), RIGHT)
    sh(capsule, f"head -c {len(RIGHT)} /dev/zero | tr '\\0' a > {place}")
    assert capsule.work().large == ("hole.bin",)
    assert stored(owner / ".git/lfs", RIGHT).read_bytes() == RIGHT
    assert hashed == [len(RIGHT)] * 2
    assert capsule.remove(force=True) is not None


def test_an_empty_file_needs_no_object(project, warnings):
    capsule = project.new("x")
    text = "version https://git-lfs.github.com/spec/v1\\noid sha256:"
    sh(capsule, f"b=$(printf '{text}{hashlib.sha256().hexdigest()}\\nsize 0\\n' | "
       "git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$b,empty.bin; "
       "git commit -qm empty")  # fmt: skip
    assert warnings == []
    assert capsule.work().large == ()


def test_a_capsule_does_not_make_the_host_ask_a_server(project, owner, git):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/lfs"
        capsule = project.new("x")
        head = "version https://git-lfs.github.com/spec/v1\\noid sha256:"
        sh(
            capsule,
            f"printf '[lfs]\\n\\turl = {url}\\n' > .lfsconfig; "
            f"printf '{head}{'ab' * 32}\\nsize 5\\n' > lost.bin; git add -A; git commit -qm lost",
        )
        capsule.remove(keep_branch=True)
        other = project.new("y", base="atoll/x")
        assert "ab" * 32 in sh(other, "cat lost.bin")
        with pytest.raises(BlockingIOError):
            server.accept()


@persons.as_user
def test_a_round_trip_as_root_and_as_a_user(person):
    with (person.place / "gitconfig").open("a", encoding="utf-8") as config:
        config.write(FILTER)
    person.write({".gitattributes": ATTRIBUTES})
    person.commit("attributes")
    person.atoll("new", "x")
    person.atoll("run", "x", "--", "sh", "-ec", COMMIT)
    person.atoll("run", "x", "--", "sh", "-ec", "seq 50 > c.bin")
    person.atoll("commit", "x", "-m", "c")
    person.atoll("rm", "x", "--keep-branch")
    person.git("merge", "-q", "atoll/x")
    assert (person.repo / "b.bin").read_bytes() == SECOND
    assert person.git("status", "--short") == ""
