"""Commits come out of a capsule through a quarantine: whole and sound, or not at all.

The inner repository is the agent's: every file in it may be hostile, and its git is never asked.
Each refusal has to leave the owner's repository byte for byte as it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.host import git as host_git
from atoll.host import process, programs
from atoll.host.intake.commit_import import Imported, import_objects
from atoll.host.intake.transfer import ImportSize, TransferLimits
from atoll.model.errors import DriverError, StateError
from atoll.model.untrusted import ObjectId
from readers import DirectoryReader

if TYPE_CHECKING:
    from collections.abc import Callable

ZERO = "0" * 40
TESTS = str(Path(__file__).parents[1])
NOTHING = ImportSize(objects=0, size_bytes=0)


class Pair:
    """An owner's repository and the private one of a capsule, which borrows its objects."""

    def __init__(self, owner: Path, inner: Path, git: Callable[..., str]) -> None:
        self.owner, self.inner, self._git = owner, inner, git
        self.reader = DirectoryReader(inner)
        self.base = self.git("rev-parse", "HEAD", cwd=owner)

    def git(self, *args: str, cwd: Path | None = None) -> str:
        return self._git(*args, cwd=cwd or self.inner).strip()

    def commit(self, *args: str, **files: str) -> str:
        """Commits files (`a_txt="…"` is `a.txt`) inside; returns the new tip."""
        for name, content in files.items():
            (self.inner / name.replace("_", ".")).write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", " ".join(files) or "x", *args)
        return self.git("rev-parse", "HEAD")

    def commits(self, count: int) -> str:
        """Many commits on top of the inner HEAD; returns the new tip."""
        stream = [f"reset refs/heads/many\nfrom {self.git('rev-parse', 'HEAD')}\n\n"]
        for number in range(count):
            text = f"{number}\n" * 20
            stream.append(
                "commit refs/heads/many\n"
                f"committer A <a@example.org> {1_700_000_000 + number} +0000\n"
                f"data 1\nx\nM 100644 inline f{number % 50}\ndata {len(text)}\n{text}\n"
            )
        feed(["git", "fast-import", "--quiet"], "".join(stream).encode(), cwd=self.inner)
        return self.git("rev-parse", "refs/heads/many")

    def put(self, kind: str, body: bytes) -> str:
        """Stores an object inside that git itself would refuse to make."""
        data = f"{kind} {len(body)}\0".encode() + body
        name = hashlib.sha1(data).hexdigest()
        path = self.inner / ".git" / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(zlib.compress(data))
        return name

    def put_commit(self, tree: str, *parents: str) -> str:
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        who = "A <a@example.org> 1700000000 +0000"
        return self.put(
            "commit", "\n".join([*lines, f"author {who}", f"committer {who}", "", "x"]).encode()
        )

    def bring(self, *tips: str, known: tuple[str, ...] | None = None, **options: Any) -> ImportSize:
        imported = self.imported(*tips, known=known, **options)
        return ImportSize(imported.objects, imported.size_bytes)

    def imported(
        self, *tips: str, known: tuple[str, ...] | None = None, **options: Any
    ) -> Imported:
        return import_objects(
            self.reader,
            str(self.owner / ".git"),
            tuple(map(ObjectId, tips)),
            known=(self.base,) if known is None else known,
            **options,
        )

    def keep(self, tip: str) -> None:
        """What the caller does with what was brought."""
        host_git.move_ref("refs/heads/atoll/x", tip, old=None, cwd=str(self.owner))

    def loose(self, name: str) -> Path:
        return self.inner / ".git" / "objects" / name[:2] / name[2:]

    def lose(self, *names: str) -> None:
        for name in names:
            self.loose(name).unlink()

    def new(self, *tips: str) -> list[str]:
        """The objects that the owner lacks, as git counts them."""
        return self.git(
            "rev-list", "--objects", "--no-object-names", *tips, f"^{self.base}"
        ).split()

    def put_pack(self, data: bytes, name: str = "pack-1.pack") -> Path:
        """Plants a file as a pack, without an index."""
        path = self.inner / ".git" / "objects" / "pack" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    def state(self) -> dict[str, bytes]:
        """Every file of the owner's git directory."""
        root = self.owner / ".git"
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    def objects_below(self, tip: str) -> set[str]:
        return set(self.git("rev-list", "--objects", "--no-object-names", tip).split())

    def check(self) -> None:
        """The owner's repository is sound, and nothing of a quarantine is left."""
        assert problems(self.owner) == ""
        assert list((self.owner / ".git" / "objects").glob("tmp_*")) == []


def feed(argv: list[str], data: bytes, *, cwd: Path) -> bytes:
    done = subprocess.run(argv, input=data, cwd=cwd, capture_output=True, timeout=60, check=True)
    return done.stdout


def problems(repository: Path) -> str:
    """What is wrong with a repository, also with what nothing refers to."""
    said = ask("fsck", "--full", "--strict", "--no-progress", "--no-dangling", cwd=repository)
    everything = ask(
        "cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=repository
    )
    # Git's fsck does not look at what an unreachable object refers to.
    said += ask("rev-list", "--objects", "--quiet", "--stdin", cwd=repository, given=everything)
    packs = repository / ".git" / "objects" / "pack"
    lonely = [path for path in packs.glob("*.idx") if not path.with_suffix(".pack").exists()]
    return said + "".join(f"{path} has no pack\n" for path in lonely)


def ask(*args: str, cwd: Path, given: str = "") -> str:
    argv = ["git", "-c", "core.warnAmbiguousRefs=false", *args]
    done = subprocess.run(
        argv, cwd=cwd, input=given, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def entry(mode: str, name: str, target: str) -> bytes:
    return f"{mode} {name}\0".encode() + bytes.fromhex(target)


def borrow(owner: Path, inner: Path, git: Callable[..., str], *options: str) -> None:
    """A private repository as Atoll makes it: own refs, and the owner's objects as alternates."""
    git("init", "--quiet", *options, inner, cwd=owner)
    (inner / ".git" / "objects" / "info" / "alternates").write_bytes(
        b'"%s"\n' % os.fsencode(owner / ".git" / "objects")
        .replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    )  # fmt: skip
    if (owner / ".git" / "shallow").exists():
        shutil.copy(owner / ".git" / "shallow", inner / ".git")
    git("reset", "--quiet", "--hard", git("rev-parse", "HEAD", cwd=owner).strip(), cwd=inner)


@pytest.fixture
def pair_of(tmp_path, git):
    """`pair_of(owner)`: with a fresh private repository beside it."""

    def make(owner: Path, *options: str, name: str = "inner") -> Pair:
        borrow(owner, tmp_path / name, git, *options)
        return Pair(owner, tmp_path / name, git)

    return make


@pytest.fixture
def pair(repo, pair_of, processes_with):
    found = pair_of(repo)
    yield found
    marker = f"GIT_DIR={found.owner}"
    assert process.wait_until(lambda: processes_with(marker) == [], timeout_s=5)


@pytest.fixture
def refused(pair):
    """`refused("says", tip)`: it fails with that message, and the owner notices nothing."""

    def check(message: str, *tips: str, error: type[Exception] = StateError, **options: Any) -> str:
        before = pair.state()
        with pytest.raises(error, match=message) as caught:
            pair.bring(*tips, **options)
        assert pair.state() == before
        pair.check()
        text = str(caught.value)
        assert text.isprintable()
        assert len(text) < 1500
        if error is StateError:
            assert text.endswith("; nothing was imported")
            assert caught.value.hint  # type: ignore[attr-defined]
        return text

    return check


# What is brought.


def test_commits_come_over(pair):
    pair.commit(a_txt="one\n")
    tip = pair.commit(b_txt="two\n")
    brought = pair.bring(tip)
    assert brought.objects == 6
    assert 100 < brought.size_bytes < 1000
    pair.check()
    pair.keep(tip)
    assert pair.git("log", "--format=%s", "atoll/x", cwd=pair.owner).split() == [
        "b_txt", "a_txt", "second", "first"
    ]  # fmt: skip
    assert pair.git("show", "atoll/x:a.txt", cwd=pair.owner) == "one"
    assert pair.bring(tip) == NOTHING


def test_nothing_new_reads_nothing(pair):
    tip = pair.commit(a_txt="one\n")
    pair.bring(tip)
    pair.reader.opened.clear()
    assert pair.bring(tip) == NOTHING
    assert pair.bring(pair.base, tip) == NOTHING
    assert pair.bring() == NOTHING
    assert pair.reader.opened == []
    pair.check()


def test_commit_without_its_history_is_not_had(pair):
    """An object that lies around in the owner's store does not vouch for what it needs."""
    tip = pair.commit(a_txt="one\n")
    pair.bring(tip)
    blob = pair.git("rev-parse", f"{tip}:a.txt")
    (pair.owner / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert pair.bring(tip).objects == 3
    pair.check()


def test_amended_commit_comes_over(pair):
    first = pair.commit(a_txt="one\n")
    pair.bring(first)
    second = pair.commit("--amend", a_txt="better\n")
    assert second != first
    assert pair.bring(second, known=(first, pair.base)).objects == 3
    pair.keep(second)
    pair.check()


def test_several_tips_and_merges_come_over(pair):
    left = pair.commit(a_txt="left\n")
    pair.git("checkout", "--quiet", "-b", "right", pair.base)
    right = pair.commit(b_txt="right\n")
    pair.git("merge", "--quiet", "--no-ff", "--message", "both", left)
    both = pair.git("rev-parse", "HEAD")
    assert pair.bring(left, right, both).objects == 8
    pair.keep(both)
    pair.check()


def test_no_change_but_a_new_commit(pair):
    tip = pair.commit("--allow-empty")
    assert pair.bring(tip).objects == 1


def test_unrelated_history_comes_over(pair):
    pair.git("checkout", "--quiet", "--orphan", "alone")
    tip = pair.commit(a_txt="one\n")
    assert pair.bring(tip).objects >= 3
    pair.keep(tip)
    pair.check()


def test_only_the_difference_travels(pair):
    numbers = [f"{random.random()}\n" for _ in range(10_000)]
    base = pair.commit(big_txt="".join(numbers))
    pair.bring(base)
    pair.keep(base)
    tip = pair.commit(big_txt="".join([*numbers[:5000], "changed\n", *numbers[5000:]]))
    brought = pair.bring(tip, known=(base,))
    assert brought.objects == 3
    pair.check()
    text = pair.git("show", f"{tip}:big.txt", cwd=pair.owner)
    assert len(text.splitlines()) == 10_001


def test_few_objects_are_stored_singly(pair):
    packs = pair.owner / ".git" / "objects" / "pack"
    pair.bring(pair.commits(3))
    assert list(packs.glob("*")) == []
    pair.check()


def test_many_objects_are_stored_as_one_pack(pair):
    packs = pair.owner / ".git" / "objects" / "pack"
    shutil.rmtree(packs)
    tip = pair.commits(500)
    assert pair.bring(tip).objects > 1000
    assert sorted(path.suffix for path in packs.iterdir()) in (
        [".idx", ".pack"], [".idx", ".pack", ".rev"]
    )  # fmt: skip
    assert pair.git("rev-list", "--count", f"{pair.base}..{tip}", cwd=pair.owner) == "500"
    pair.check()
    assert pair.bring(tip) == NOTHING


def test_large_objects_are_stored_as_a_pack(pair):
    (pair.inner / "big").write_bytes(os.urandom(2 << 20))
    tip = pair.commit()
    assert pair.bring(tip).size_bytes > 2 << 20
    assert list((pair.owner / ".git" / "objects" / "pack").glob("*.idx")) != []
    pair.check()


@pytest.mark.parametrize("shared", ["group", "0660", "umask"])
@pytest.mark.parametrize("count", [3, 500])
def test_modes_are_those_of_the_repository(make_repo, pair_of, git, shared, count):
    owner = make_repo(files={}, name="owner")
    git("init", "--quiet", f"--shared={shared}", cwd=owner)
    (owner / "a.txt").write_text("one\n")
    git("add", "--all", cwd=owner)
    git("commit", "--quiet", "--message", "first", cwd=owner)
    objects = owner / ".git" / "objects"
    own = {kind(path) for path in objects.rglob("*")}
    pair = pair_of(owner)
    pair.bring(pair.commits(count))
    assert {kind(path) for path in objects.rglob("*")} == own


def kind(path: Path) -> tuple[bool, str]:
    return path.is_dir(), stat.filemode(path.stat().st_mode)


def test_path_with_anything_in_it(make_repo, pair_of):
    pair = pair_of(make_repo(name='it\'s: "odd"\\\n é -x:y'), name='in\n":side')
    for tip in (pair.commit(a_txt="one\n"), pair.commits(300)):
        assert pair.bring(tip) != NOTHING
        pair.check()


def test_bytes_that_are_no_text_in_a_path(make_repo, pair_of):
    pair = pair_of(make_repo(name=os.fsdecode(b"caf\xe9")))
    assert pair.bring(pair.commit(a_txt="one\n")).objects == 3


@pytest.mark.parametrize("is_relative", [False, True])
def test_owner_that_borrows_objects_itself(repo, tmp_path, git, pair_of, is_relative):
    owner = tmp_path / "borrower"
    git("clone", "--quiet", "--shared", repo, owner, cwd=tmp_path)
    if is_relative:
        alternates = owner / ".git" / "objects" / "info" / "alternates"
        alternates.write_text(f"../../../{repo.name}/.git/objects\n")
    pair = pair_of(owner)
    for tip in (pair.commit(app_py="print(2)\n"), pair.commits(300)):
        assert pair.bring(tip) != NOTHING
        pair.check()
    assert len(list((repo / ".git" / "objects" / "pack").glob("*"))) == 0


def test_linked_worktree_and_its_half_made_neighbour(pair, git):
    """Git itself gives up when it meets the record of a worktree that is just being made."""
    git("worktree", "add", "--quiet", "--detach", pair.owner.parent / "half", cwd=pair.owner)
    (pair.owner / ".git" / "worktrees" / "half" / "commondir").write_bytes(b"")
    assert pair.bring(pair.commit(a_txt="one\n")).objects == 3


def test_sha256(tmp_path, git, pair_of):
    owner = tmp_path / "owner"
    git("init", "--quiet", "--object-format=sha256", owner, cwd=tmp_path)
    (owner / "a.txt").write_text("one\n")
    git("add", "--all", cwd=owner)
    git("commit", "--quiet", "--message", "first", cwd=owner)
    pair = pair_of(owner, "--object-format=sha256")
    tip = pair.commit(b_txt="two\n")
    with pytest.raises(StateError, match="is not in it"):
        pair.bring(tip[:40])
    for new in (tip, pair.commits(300)):
        assert len(new) == 64
        assert pair.bring(new) != NOTHING
        pair.check()


def test_object_of_the_wrong_format(pair, refused):
    refused("is not in it", pair.commit(a_txt="one\n") + ZERO[:24])


@pytest.mark.parametrize("count", [3, 500])
def test_shallow_owner(repo, tmp_path, git, pair_of, count):
    git("clone", "--quiet", "--depth=1", f"file://{repo}", tmp_path / "shallow", cwd=tmp_path)
    pair = pair_of(tmp_path / "shallow")
    tip = pair.commits(count)
    assert pair.bring(tip) != NOTHING
    pair.keep(tip)
    pair.check()


def test_shallow_history_does_not_come_over(pair, refused, git, tmp_path, make_repo):
    """What an agent fetched with `--depth` has no complete history."""
    other = make_repo(name="other")
    for message in ("strange", "stranger"):
        git("commit", "--quiet", "--allow-empty", "--message", message, cwd=other)
    pair.git("fetch", "--quiet", "--depth=1", f"file://{other}", "main")
    refused("is incomplete", pair.git("rev-parse", "FETCH_HEAD"))


def test_partial_clone_fetches_nothing(repo, tmp_path, git, pair_of):
    git("config", "uploadpack.allowFilter", "true", cwd=repo)
    owner = tmp_path / "partial"
    git("clone", "--quiet", "--filter=blob:none", f"file://{repo}", owner, cwd=tmp_path)
    canary = tmp_path / "canary"
    pair = pair_of(owner)
    tips = [pair.commit(app_py="print(2)\n"), pair.commits(300)]
    git("config", "remote.origin.uploadpack", f"touch {canary};", cwd=owner)
    for tip in tips:
        assert pair.bring(tip) != NOTHING
    assert not canary.exists()


def test_replaced_objects_are_seen_as_they_are(pair):
    tip = pair.commit(a_txt="one\n")
    pair.bring(tip)
    blob = pair.git("rev-parse", f"{tip}:a.txt")
    (pair.owner / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    pair.git("replace", tip, pair.base, cwd=pair.owner)
    assert pair.bring(tip).objects == 3


# What both have.


def test_known_commit_that_the_capsule_lacks(pair):
    (pair.owner / "own.txt").write_text("the owner goes on\n")
    pair.git("add", "--all", cwd=pair.owner)
    pair.git("commit", "--quiet", "--message", "own", cwd=pair.owner)
    ahead = pair.git("rev-parse", "HEAD", cwd=pair.owner)
    tip = pair.commit(a_txt="one\n")
    assert pair.bring(tip, known=(ahead, pair.base)).objects == 3
    pair.check()


def test_known_commit_that_the_owner_lacks_is_not_assumed(pair):
    first = pair.commit(a_txt="one\n")
    tip = pair.commit(b_txt="two\n")
    assert pair.bring(tip, known=(first, pair.base)).objects == 6
    pair.check()


def test_nothing_known(pair):
    """The owner's objects are not in the capsule's repository, so they do not travel anyway."""
    tip = pair.commit(a_txt="one\n")
    assert pair.bring(tip, known=()).objects == 3
    pair.check()


@pytest.mark.parametrize(
    "name",
    ["", "HEAD", "main", "--all", "-x", "0" * 39, "0" * 41, "A" * 40, f"{ZERO}\n", f"^{ZERO}",
     f"{ZERO}^", f"{ZERO}:a", "--stdin\n"],
)  # fmt: skip
def test_only_object_ids_are_names(pair, name):
    with pytest.raises(ValueError, match="not an object id"):
        pair.bring(name)
    with pytest.raises(ValueError, match="not an object id"):
        pair.bring(pair.base, known=(name,))


# Objects that git must not take.


def good_blob(pair: Pair) -> str:
    return pair.put("blob", b"content\n")


HOSTILE_NAMES = (
    "..", ".", ".git", ".GIT", ".giT", "git~1", ".git ", ".g\u200cit", "a/b", "../x", "/etc"
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
@pytest.mark.parametrize("mode", ["100644", "40000", "160000"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_hostile_tree_names(pair, refused, name, mode, is_packed):
    target = good_blob(pair)
    if mode == "40000":
        target = pair.put("tree", entry("100644", "config", target))
    if mode == "160000":
        target = "1" * 40
    tree = pair.put("tree", entry(mode, name, target))
    tip = pair.put_commit(tree, pair.base)
    if is_packed:
        data = pack_of(pair, *pair.new(tip))
        pair.lose(*pair.new(tip))
        pair.put_pack(data)
    refused("rejected by git: .*object", tip)


@pytest.mark.parametrize(
    "make",
    [
        lambda blob: entry("0100644", "a", blob),
        lambda blob: entry("100644", "a", blob) + entry("100644", "a", blob),
        lambda blob: entry("100644", "b", blob) + entry("100644", "a", blob),
        lambda blob: entry("100644", "a", blob) + entry("100755", "a", blob),
        lambda blob: entry("100644", "", blob),
        lambda _: entry("100644", "a", ZERO),
        lambda blob: entry("100644", "a", blob)[:-1],
        lambda _: b"100644 a",
        lambda _: b"no tree at all",
    ],
    ids=[
        "padded",
        "twice",
        "unsorted",
        "two-modes",
        "nameless",
        "null",
        "short",
        "cut",
        "nonsense",
    ],
)
def test_malformed_trees(pair, make):
    before = pair.state()
    tip = pair.put_commit(pair.put("tree", make(good_blob(pair))), pair.base)
    with pytest.raises(StateError, match="rejected by git"):
        pair.bring(tip)
    assert pair.state() == before


def test_symbolic_link_as_gitmodules(pair, refused):
    tree = pair.put("tree", entry("120000", ".gitmodules", pair.put("blob", b"/etc/passwd")))
    refused("gitmodulesSymlink", pair.put_commit(tree, pair.base))


@pytest.mark.parametrize(
    "line",
    ["url = -u./payload", "url = ../../../../x\\n", "path = -x", "update = !touch /tmp/canary"],
)
def test_malicious_gitmodules(pair, refused, line):
    text = f'[submodule "x"]\n\tpath = x\n\t{line}\n'
    if "\\n" in line:
        text = '[submodule "x"]\n\tpath = x\n\turl = "https://example.org/\\n.git"\n'
    tree = pair.put("tree", entry("100644", ".gitmodules", pair.put("blob", text.encode())))
    refused("gitmodules", pair.put_commit(tree, pair.base))


def test_gitmodules_with_endless_mistakes(pair, refused):
    text = "".join(f'[submodule "../{number}"]\n\turl = -u./payload\n' for number in range(30_000))
    tree = pair.put("tree", entry("100644", ".gitmodules", pair.put("blob", text.encode())))
    refused("rejected by git: .*gitmodules", pair.put_commit(tree, pair.base))


def test_submodule_name_that_climbs(pair, refused):
    text = b'[submodule "../../x"]\n\tpath = x\n\turl = https://example.org/x.git\n'
    tree = pair.put("tree", entry("100644", ".gitmodules", pair.put("blob", text)))
    refused("gitmodulesName", pair.put_commit(tree, pair.base))


def test_gitmodules_that_the_owner_has_as_a_harmless_blob(pair, refused):
    """The blob does not travel: only its new name makes it dangerous."""
    text = '[submodule "x"]\n\tpath = x\n\turl = -u./payload\n'
    first = pair.commit(harmless_txt=text)
    pair.bring(first)
    pair.keep(first)
    blob = pair.git("rev-parse", f"{first}:harmless.txt")
    tree = pair.put("tree", entry("100644", ".gitmodules", blob))
    refused("gitmodulesUrl", pair.put_commit(tree, first), known=(first,))


def test_owner_may_not_have_relaxed_the_rules(pair, refused):
    for key in ("fsck.hasDotdot", "receive.fsck.hasDotdot", "fetch.fsck.hasDotdot"):
        pair.git("config", key, "ignore", cwd=pair.owner)
    tree = pair.put("tree", entry("100644", "..", good_blob(pair)))
    refused("hasDotdot", pair.put_commit(tree, pair.base))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b"author A ", b"author A\0"),
        lambda body: body.replace(b"tree ", b"twig "),
        lambda body: body.replace(b"1700000000", b"99999999999999999999999"),
        lambda body: body.replace(b"<a@example.org>", b"a@example.org"),
    ],
)
def test_malformed_commits(pair, change):
    before = pair.state()
    tree = pair.git("rev-parse", "HEAD^{tree}")
    body = feed(
        ["git", "cat-file", "commit", pair.put_commit(tree, pair.base)], b"", cwd=pair.inner
    )
    tip = pair.put("commit", change(body))
    with pytest.raises(StateError, match="rejected by git"):
        pair.bring(tip)
    assert pair.state() == before


def test_tip_that_is_no_commit(pair, refused):
    tip = pair.commit(a_txt="one\n")
    pair.git("tag", "--annotate", "--message", "x", "v1", f"{tip}^{{tree}}")
    for name, what in [("HEAD^{tree}", "tree"), ("HEAD:a.txt", "blob"), ("v1", "tree")]:
        refused(f"is a {what} and not a commit", pair.git("rev-parse", name))
        refused(f"is a {what} and not a commit", tip, pair.git("rev-parse", name))
    names = [pair.git("rev-parse", name) for name in ("HEAD^{tree}", "HEAD", "v1")]
    assert pair.imported(*names, commits_only=True).commits == {tip: tip}


@pytest.mark.parametrize("is_packed", [False, True])
def test_tags_are_peeled(pair, is_packed):
    tip = pair.commit(a_txt="one\n")
    for name, target in [("new", tip), ("old", pair.base), ("twice", "new")]:
        pair.git("tag", "--annotate", "--message", "x", name, target)
    tags = {name: pair.git("rev-parse", name) for name in ("new", "old", "twice")}
    if is_packed:
        pair.git("repack", "-a", "-d", "-l", "--quiet")
    found = pair.imported(*tags.values())
    assert found.objects == 3
    assert found.commits == {tags["new"]: tip, tags["old"]: pair.base, tags["twice"]: tip}
    pair.check()


def test_tip_that_is_not_there(pair, refused):
    tip, other = pair.commit(a_txt="one\n"), pair.commit(b_txt="two\n")
    pair.lose(other)
    refused(f"`{other}` is not in it", other)
    refused(f"`{other}` is not in it", tip, other)


# Incomplete exports.


def pack_of(pair: Pair, *names: str) -> bytes:
    given = "".join(f"{name}\n" for name in names).encode()
    return feed(["git", "pack-objects", "--stdout", "-q"], given, cwd=pair.inner)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("missing", ["commit^{tree}", "blob", "parent", "subtree"])
def test_missing_objects(pair, refused, missing, is_packed):
    parent = pair.commit(a_txt="one\n")
    (pair.inner / "deep").mkdir()
    (pair.inner / "deep" / "c.txt").write_text("deep\n")
    tip = pair.commit(b_txt="two\n")
    left_out = pair.git(
        "rev-parse",
        {
            "commit^{tree}": f"{tip}^{{tree}}",
            "blob": f"{tip}:deep/c.txt",
            "subtree": f"{tip}:deep",
            "parent": parent,
        }[missing],
    )
    sent = set(pair.new(tip))
    assert left_out in sent
    content = pair.loose(left_out).read_bytes()
    data = pack_of(pair, *(sent - {left_out}))
    pair.lose(*(sent if is_packed else [left_out]))
    if is_packed:
        pair.put_pack(data)
    refused("is incomplete", tip)
    # A loose object below packed ones is found, too.
    pair.loose(left_out).write_bytes(content)
    assert pair.bring(tip).objects == len(sent)
    pair.check()


def test_object_that_no_tip_needs_may_be_broken(pair):
    tip = pair.commit(a_txt="one\n")
    pair.put("tree", entry("100644", "..", "1" * 40))
    stray = pair.put("blob", b"something\n")
    pair.loose(stray).chmod(0o644)
    pair.loose(stray).write_bytes(b"not compressed at all")
    pair.put_pack(b"PACK nonsense")
    assert pair.bring(tip).objects == 3
    pair.check()
    other = pair.commit(b_txt="two\n")
    data = pack_of(pair, *pair.new(other))
    pair.lose(*pair.new(other))
    bad = pair.put("tree", entry("100644", "..", good_blob(pair)))
    pair.put_pack(data)
    pair.put_pack(pack_of(pair, bad, good_blob(pair)), "pack-2.pack")
    pair.put_pack(data[:-30], "pack-3.pack")
    assert pair.bring(other).objects == 6
    pair.check()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda _: b"",
        lambda _: zlib.compress(b"blob 3\0two\n"),
        lambda _: zlib.compress(b"blob 5\0two\n"),
        lambda _: zlib.compress(b"blob 4\0one\n"),
        lambda _: zlib.compress(b"tree 4\0two\n"),
        lambda _: zlib.compress(b"blob 04\0two\n"),
        lambda _: zlib.compress(b"blob " + b"9" * 60 + b"\0two\n"),
        lambda _: zlib.compress(b"blob 999999999999999\0two\n"),
        lambda _: zlib.compress(b"x" * 1000),
        lambda _: b"\x78\x01" + os.urandom(50),
    ],
    ids=[
        "cut",
        "empty",
        "short",
        "long",
        "other",
        "kind",
        "zero",
        "digits",
        "huge",
        "text",
        "noise",
    ],
)
def test_loose_object_that_is_not_what_its_name_says(pair, refused, change):
    tip = pair.commit(b_txt="two\n")
    path = pair.loose(pair.git("rev-parse", f"{tip}:b.txt"))
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(change(good))
    refused("is incomplete|is larger than", tip)
    path.write_bytes(good)
    assert pair.bring(tip).objects == 3
    pair.check()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "parent-link"])
def test_loose_object_that_is_no_file(pair, refused, kind):
    tip = pair.commit(b_txt="two\n")
    path = pair.loose(pair.git("rev-parse", f"{tip}:b.txt"))
    aside = path.rename(pair.inner.parent / "aside")
    if kind == "link":
        path.symlink_to(aside)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        place = path.parent.rename(pair.inner.parent / "place")
        aside.rename(place / path.name)
        path.parent.symlink_to(place)
    refused("is incomplete|is not in it", tip)


def test_indexes_alternates_and_the_like_have_no_effect(pair, refused, tmp_path):
    """What is only in an alternate of the agent's is not in its repository."""
    tip = pair.commit(a_txt="one\n")
    objects = pair.inner / ".git" / "objects"
    (tmp_path / "elsewhere").mkdir()
    blob = pair.git("rev-parse", f"{tip}:a.txt")
    content = pair.loose(blob).read_bytes()
    (tmp_path / "elsewhere" / blob[:2]).mkdir()
    pair.loose(blob).rename(tmp_path / "elsewhere" / blob[:2] / blob[2:])
    with (objects / "info" / "alternates").open("a") as file:
        file.write(f"{tmp_path / 'elsewhere'}\n")
    assert pair.git("cat-file", "-t", blob) == "blob"
    refused("is incomplete", tip)
    pair.loose(blob).write_bytes(content)
    for name in (
        "pack/pack-1.idx",
        "pack/pack-1.rev",
        "pack/multi-pack-index",
        "info/commit-graph",
    ):
        (objects / name).write_bytes(b"nonsense" * 200)
    (pair.inner / ".git" / "shallow").write_text(f"{tip}\n")
    (pair.inner / ".git" / "info" / "grafts").write_text(f"{tip}\n")
    assert pair.bring(tip).objects == 3
    pair.check()


def test_replaced_objects_of_the_agent_have_no_effect(pair):
    tip = pair.commit(a_txt="one\n")
    other = pair.commit(a_txt="two\n")
    pair.git("replace", tip, other)
    assert pair.bring(tip).objects == 3
    assert pair.git("show", f"{tip}:a.txt", cwd=pair.owner) == "one"
    pair.check()


# Exports that are no pack.

HEAD = b"PACK" + struct.pack(">II", 2, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not in it"),
        (b"PACK", "is not in it"),
        (HEAD[:11], "is not in it"),
        (b"fatal: something is wrong here\n", "is not in it"),
        (b"\0" * 4096, "is not in it"),
        (b"PACK" + struct.pack(">II", 4, 3), "is not in it"),
        (b"PACK" + struct.pack(">II", 2, 0xFFFFFFFF), "is larger than"),
        (HEAD, "is not in it"),
        (HEAD + b"\xff" * 4096, "is not in it"),
        (b"PACK" + struct.pack(">II", 2, 0), "is not in it"),
    ],
    ids=["empty", "magic", "short", "text", "zeros", "version", "count", "head", "junk", "none"],
)
def test_what_is_no_pack(pair, refused, data, message):
    tip = pair.commit(a_txt="one\n")
    pair.lose(tip)
    pair.put_pack(data)
    refused(message, tip)


def test_truncated_and_damaged_packs(pair, refused):
    tip = pair.commit(a_txt="one\n", b_txt="two\n")
    data = pack_of(pair, *pair.new(tip))
    pair.lose(*pair.new(tip))
    for size in range(12, len(data), 97):
        pair.put_pack(data[:size])
        refused("is not in it", tip)
        hurt = bytearray(data)
        hurt[size] ^= 0x40
        pair.put_pack(bytes(hurt))
        refused("is not in it|is larger", tip)
    pair.put_pack(data + b"more")
    refused("is not in it", tip)
    pair.put_pack(data)
    assert pair.bring(tip).objects == 4
    pair.check()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_pack_that_is_no_file(pair, refused, kind):
    tip = pair.commit(a_txt="one\n")
    data = pack_of(pair, *pair.new(tip))
    pair.lose(*pair.new(tip))
    path = pair.put_pack(data)
    aside = path.rename(pair.inner.parent / "aside")
    if kind == "link":
        path.symlink_to(aside)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    refused("is not in it", tip)


def test_thin_pack_on_an_object_that_the_owner_lacks(pair, refused):
    base = pair.commit(a_txt="".join(f"{number}\n" for number in range(5000)))
    tip = pair.commit(a_txt="".join(f"{number}\n" for number in range(5001)))
    request = f"{tip}\n^{base}\n".encode()
    data = feed(
        ["git", "pack-objects", "--revs", "--stdout", "--thin", "-q"], request, cwd=pair.inner
    )
    pair.lose(*pair.new(tip))
    pair.put_pack(data)
    refused("is not in it", tip)


# Exports without end.


def test_size_limit(pair, refused):
    (pair.inner / "big").write_bytes(os.urandom(100_000))
    tip = pair.commit()
    refused("is larger than 64K", tip, limits=TransferLimits(size_bytes=64 << 10))
    assert pair.bring(tip, limits=TransferLimits(size_bytes=128 << 10)).size_bytes > 100_000


def test_object_limit(pair, refused):
    tip = pair.commits(10)
    refused("has more than 1 objects", tip, limits=TransferLimits(objects=1))
    count = len(pair.objects_below(tip) - pair.objects_below(pair.base))
    refused(f"has more than {count - 1} objects", tip, limits=TransferLimits(objects=count - 1))
    assert pair.bring(tip, limits=TransferLimits(objects=count)).objects == count


@pytest.mark.parametrize("count", [1, 200])
def test_time_limit(pair, refused, count):
    refused("took longer than 1ms", pair.commits(count), limits=TransferLimits(seconds=0.001))


def test_loose_objects_that_unfold(pair, refused):
    """A small file that unfolds to much more than may come out."""
    tip = pair.put_commit(
        pair.put("tree", entry("100644", "zeros", pair.put("blob", bytes(32 << 20)))), pair.base
    )
    refused("is larger than 2M", tip, limits=TransferLimits(size_bytes=2 << 20))
    assert pair.bring(tip, limits=TransferLimits(size_bytes=5 << 20)).size_bytes < 1 << 20
    pair.check()


def test_pack_over_the_limit_matters_only_when_it_is_needed(pair, refused):
    tip = pair.commit(a_txt="one\n")
    data = pack_of(pair, *pair.new(tip))
    pair.lose(*pair.new(tip))
    pair.put_pack(data)
    pair.put_pack(data + bytes(1 << 20), "pack-2.pack")
    assert pair.bring(tip, limits=TransferLimits(size_bytes=1 << 19)).objects == 3
    other = pair.commit(b_txt="two\n")
    pair.lose(other)
    refused("is larger than 512K", other, limits=TransferLimits(size_bytes=1 << 19))


def variable(number: int) -> bytes:
    """A size as deltas write it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def packed(code: int, body: bytes, between: bytes = b"") -> bytes:
    size = len(body)
    head = bytearray([code << 4 | size & 0x0F])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head) + between + zlib.compress(body, 9)


def test_delta_that_unfolds(pair, refused):
    """Some kilobytes that would take gigabytes of memory."""
    tip = pair.commit(a_txt="one\n")
    base = bytes(0xFFFFFF)
    name = hashlib.sha1(b"blob %d\0" % len(base) + base).digest()
    copies = 128
    delta = variable(len(base)) + variable(len(base) * copies) + b"\xf0\xff\xff\xff" * copies
    data = b"PACK" + struct.pack(">II", 2, 2) + packed(3, base) + packed(7, delta, name)
    data += hashlib.sha1(data).digest()
    assert len(data) < 20_000
    began = time.monotonic()
    pair.lose(tip)
    pair.put_pack(data)
    refused("is not in it", tip, limits=TransferLimits(memory_bytes=512 << 20))
    assert time.monotonic() - began < 30


# What an agent plants does not run on the host.


def test_planted_config_never_runs_on_the_host(pair, tmp_path):
    canary = tmp_path / "canary"
    script = tmp_path / "planted"
    script.write_text(f'#!/bin/sh\necho "${{MARKER:-host}}" >> {canary}\n')
    script.chmod(0o755)
    hooks = pair.inner / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-commit", "post-update", "pre-auto-gc"):
        shutil.copy(script, hooks / name)
    tips = [pair.commit(a_txt="one\n"), pair.commits(300)]
    included = tmp_path / "included"
    included.write_text(f"[core]\n\tfsmonitor = {script}\n")
    for key, value in {
        "core.fsmonitor": script,
        "core.hooksPath": hooks,
        "core.sshCommand": script,
        "core.pager": script,
        "core.alternateRefsCommand": script,
        "uploadpack.packObjectsHook": script,
        "alias.index-pack": f"!{script}",
        "alias.pack-objects": f"!{script}",
        "include.path": included,
        "filter.x.clean": script,
        "diff.external": script,
        "gpg.program": script,
        "credential.helper": script,
        "gc.auto": "1",
    }.items():
        pair.git("config", key, str(value))
    (pair.inner / ".gitattributes").write_text("* filter=x diff=x\n")
    canary.unlink()
    for tip in tips:
        assert pair.bring(tip) != NOTHING
    pair.check()
    assert not canary.exists()
    # Control: a git that opens the repository runs what is planted.
    pair.git("status")
    assert "host" in canary.read_text()


@pytest.mark.parametrize("count", [3, 150])
def test_no_git_of_the_host_opens_what_the_agent_can_write(pair, require_tool, tmp_path, count):
    strace = require_tool("strace")
    tip = pair.commits(count)
    log = tmp_path / "log"
    argv = [strace, "-f", "-qq", "-s", "4096", "-e", "trace=%file", "-o", str(log)]
    argv += [sys.executable, "-c", KILLED_CHILD, "never", "0", str(pair.owner / ".git")]
    subprocess.run(
        [*argv, tip, pair.base, str(pair.inner)],
        env={**os.environ, "PYTHONPATH": TESTS},
        check=True,
        timeout=120,
    )
    lines = log.read_text(errors="replace").splitlines()
    gits = {line.split()[0] for line in lines if 'execve("' in line and '/git", ["git"' in line}
    touched = {line.split()[0] for line in lines if f"{pair.inner}/" in line}
    assert len(gits) >= 4
    # Control: whoever reads the objects is seen.
    assert touched
    assert not touched & gits
    pair.check()


def test_hooks_of_the_owner_do_not_run(pair, tmp_path):
    canary = tmp_path / "canary"
    hooks = pair.owner / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-update", "pre-auto-gc", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {canary}\n")
        (hooks / name).chmod(0o755)
    pair.bring(pair.commit(a_txt="one\n"))
    pair.bring(pair.commits(300))
    assert not canary.exists()


def test_refs_of_the_owner_are_not_touched(pair):
    before = pair.git("for-each-ref", cwd=pair.owner), pair.git("reflog", cwd=pair.owner)
    pair.bring(pair.commit(a_txt="one\n"))
    pair.bring(pair.commits(300))
    assert (pair.git("for-each-ref", cwd=pair.owner), pair.git("reflog", cwd=pair.owner)) == before


def test_every_command_is_reported(pair, monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(process, "on_command", heard.append)
    pair.bring(pair.commit(a_txt="one\n"))
    verbs = ["cat-file", "index-pack", "rev-list", "unpack-objects"]
    assert len(heard) == len(verbs)
    for line, verb in zip(heard, verbs, strict=True):
        assert re.search(rf"&& git .*\b{verb} ", line)


# At the same time, and killed.


def test_four_at_a_time(repo, pair_of):
    pairs = [pair_of(repo, name=f"inner-{number}") for number in range(4)]
    tips = [[pair.commit(a_txt=f"{pair.inner}\n"), pair.commits(150)] for pair in pairs]
    errors = []

    def work(pair: Pair, tips: list[str]) -> None:
        try:
            for tip in tips:
                assert pair.bring(tip) != NOTHING
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=pair) for pair in zip(pairs, tips, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    for pair, (first, second) in zip(pairs, tips, strict=True):
        pair.check()
        assert pair.bring(first, second) == NOTHING


KILLED_CHILD = """
import os, signal, sys
from pathlib import Path
from atoll.host import process
from atoll.host.intake import transfer
from atoll.host.intake import commit_import, loose_objects
from readers import DirectoryReader

kind, number, repository, tip, base, inner = sys.argv[1:]
left = int(number)

def trap(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def trapping(act):
    def trapped(*args, **kwargs):
        trap()
        return act(*args, **kwargs)
    return trapped

if kind == "command":
    process.on_command = trap
elif kind == "chunk":
    transfer.Incoming.take = trapping(transfer.Incoming.take)
    loose_objects.PackWriter._write = trapping(loose_objects.PackWriter._write)
elif kind == "disk":
    for name in ("mkdir", "rename", "fsync", "unlink", "rmdir"):
        setattr(os, name, trapping(getattr(os, name)))
commit_import.import_objects(DirectoryReader(Path(inner)), repository, [tip], known=[base])
"""


def bring_and_die(pair: Pair, tip: str, kind: str, number: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", KILLED_CHILD, kind, str(number), str(pair.owner / ".git")]
    return subprocess.Popen(
        [*argv, tip, pair.base, str(pair.inner)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": TESTS},
    )


def await_end(
    pair: Pair, wait_for: Callable[..., None], processes_with: Callable[..., Any]
) -> None:
    wait_for(lambda: not processes_with(f"GIT_DIR={pair.owner}"), what="the end of the tools")
    # One that has just been forked, or that is about to be gone, shows no environment.
    places = list((pair.owner / ".git" / "objects").glob("tmp_*"))
    wait_for(lambda: all(is_free(place) for place in places), what="the end of what had no name")


def is_free(place: Path) -> bool:
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def check_survival(pair: Pair, tip: str, refs: str) -> None:
    """After a kill the owner's repository is sound, has its refs, and is ready for another try."""
    assert problems(pair.owner) == ""
    assert pair.git("for-each-ref", cwd=pair.owner) == refs
    pair.bring(tip)
    pair.check()
    assert pair.bring(tip) == NOTHING


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 150])
@pytest.mark.parametrize("kind", ["command", "chunk", "disk"])
def test_killed_at_every_step(pair, wait_for, processes_with, kind, count):
    refs = pair.git("for-each-ref", cwd=pair.owner)
    tip = pair.commits(count)
    objects = pair.owner / ".git" / "objects"
    shutil.copytree(objects, pair.owner.parent / "before")
    for number in range(1, 200):
        with bring_and_die(pair, tip, kind, number) as child:
            code = child.wait(60)
        # Its tools end by themselves when their input does.
        await_end(pair, wait_for, processes_with)
        assert code in (0, -signal.SIGKILL), number
        check_survival(pair, tip, refs)
        shutil.rmtree(objects)
        shutil.copytree(pair.owner.parent / "before", objects)
        if code == 0:
            break
    assert number > {"command": 4, "chunk": 1, "disk": 4}[kind]


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 150])
def test_killed_with_its_tools_at_any_time(pair, wait_for, processes_with, count):
    refs = pair.git("for-each-ref", cwd=pair.owner)
    tip = pair.commits(count)
    objects = pair.owner / ".git" / "objects"
    shutil.copytree(objects, pair.owner.parent / "before")
    chance = random.Random(count)
    for _ in range(15):
        with bring_and_die(pair, tip, "never", 0) as child:
            wait_for(lambda: list(objects.glob("tmp_*")) or child.poll() is not None)
            process.pause(chance.uniform(0, 0.05))
            child.kill()
            for pid in processes_with(f"GIT_DIR={pair.owner}"):
                os.kill(pid, signal.SIGKILL)
        await_end(pair, wait_for, processes_with)
        check_survival(pair, tip, refs)
        shutil.rmtree(objects)
        shutil.copytree(pair.owner.parent / "before", objects)


@pytest.mark.slow
def test_killed_between_two_single_objects(pair, require_tool, tmp_path, monkeypatch):
    """Git writes an object after those that it refers to: each beginning of them is sound."""
    strace = require_tool("strace")
    tip = pair.commits(4)
    objects = pair.owner / ".git" / "objects"
    shutil.copytree(objects, tmp_path / "before")
    real = shutil.which("git")
    tools = tmp_path / "tools"
    tools.mkdir()
    shimmed = (str(tools), *programs.SYSTEM_DIRECTORIES)
    monkeypatch.setattr(programs, "SYSTEM_DIRECTORIES", shimmed)
    for number in range(1, 100):
        (tools / "git").write_text(
            f'#!/bin/sh\ncase " $* " in *" unpack-objects "*) exec {strace} -f -qq -o /dev/null '
            f"-e trace=link,linkat,rename,renameat,renameat2 "
            f"-e inject=link,linkat,rename,renameat,renameat2:signal=KILL:when={number} "
            f'{real} "$@";; esac\nexec {real} "$@"\n'
        )
        (tools / "git").chmod(0o755)
        try:
            pair.bring(tip)
        except DriverError as error:
            assert "unpack-objects" in error.message  # noqa: PT017
        else:
            break
        assert problems(pair.owner) == ""
        shutil.rmtree(objects)
        shutil.copytree(tmp_path / "before", objects)
    assert number > 10


def test_leftover_is_swept_by_the_owners_git(pair):
    left = pair.owner / ".git" / "objects" / "tmp_objdir-atoll-0123456789ab"
    (left / "pack").mkdir(parents=True)
    (left / "pack" / "tmp_pack_x").write_bytes(b"half")
    (left / "incoming").write_bytes(b"half")
    pair.git("gc", "--quiet", cwd=pair.owner)
    assert left.exists()
    old = time.time() - 15 * 24 * 3600
    os.utime(left, (old, old))
    pair.git("gc", "--quiet", cwd=pair.owner)
    assert not left.exists()


def test_leftover_is_swept_by_the_next_import_unless_a_process_works_in_it(pair):
    left = pair.owner / ".git" / "objects" / "tmp_objdir-atoll-0123456789ab"
    (left / "pack").mkdir(parents=True)
    handle = os.open(left, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    pair.bring(pair.commit(a_txt="one\n"))
    assert left.exists()
    os.close(handle)
    pair.bring(pair.base)
    assert not left.exists()
    pair.check()


def test_store_that_cannot_be_written(pair):
    objects = pair.owner / ".git" / "objects"
    tip = pair.commit(a_txt="one\n")
    moved = objects.rename(objects.with_name("aside"))
    objects.write_text(str(moved))
    with pytest.raises(DriverError, match="cannot be written"):
        pair.bring(tip)


@pytest.mark.parametrize(
    ("size_bytes", "message"),
    [(100, "cannot be written: .*File too large"), (1000, "`git index-pack` .* exit code -")],
)
def test_disk_that_takes_no_more(pair, refused, size_bytes, message):
    tip = pair.commit(a_txt="one\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        with pytest.raises(DriverError, match=message):
            pair.bring(tip)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    pair.check()
    assert pair.bring(tip, limits=TransferLimits(seconds=None)).objects == 3
