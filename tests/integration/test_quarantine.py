"""Commits come out of a capsule through a quarantine: whole and sound, or not at all.

The inner repository is the agent's: its config, its objects and even its git may be hostile. Each
refusal has to leave the owner's repository byte for byte as it was.
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
from atoll.host.quarantine import Brought, Limits, bring
from atoll.model.errors import DriverError, StateError
from atoll.model.plan import Enclosure

if TYPE_CHECKING:
    from collections.abc import Callable

ZERO = "0" * 40
NOTHING = Brought(objects=0, size_bytes=0)


class Pair:
    """An owner's repository and the private one of a capsule, which borrows its objects."""

    def __init__(self, owner: Path, inner: Path, git: Callable[..., str]) -> None:
        self.owner, self.inner, self._git = owner, inner, git
        self.marker = f"MARKER={inner}"
        self.inside = Enclosure(
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(inner.parent / "inner-home"),
                "MARKER": str(inner),
            },
            cwd=str(inner),
        )
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

    def bring(self, *tips: str, known: tuple[str, ...] | None = None, **options: Any) -> Brought:
        options = {"inside": self.inside, "place": str(self.inner), **options}
        return bring(
            str(self.owner / ".git"),
            tips,
            known=(self.base,) if known is None else known,
            **options,
        )

    def keep(self, tip: str) -> None:
        """What the caller does with what was brought."""
        host_git.move_ref("refs/heads/atoll/x", tip, old=None, cwd=str(self.owner))

    def acting(self, code: str, *arguments: str) -> Enclosure:
        """An inside whose git is a program of the agent's; it gets the real command, too."""
        return self.inside._replace(prefix=(sys.executable, "-c", code, *arguments))

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
    assert process.wait_until(lambda: processes_with(found.marker) == [], timeout_s=5)


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
            assert text.endswith("; nothing was taken")
            assert caught.value.hint
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


def test_nothing_new_asks_nobody_inside(pair):
    tip = pair.commit(a_txt="one\n")
    pair.bring(tip)
    assert pair.bring(tip, inside=pair.acting("1 / 0")) == NOTHING
    assert pair.bring(pair.base, tip, inside=pair.acting("1 / 0")) == NOTHING
    assert pair.bring(inside=pair.acting("1 / 0")) == NOTHING
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
    assert brought.size_bytes < 1000
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
    refused(
        "not a pack|incomplete|refused|not what was asked",
        pair.commit(a_txt="one\n") + ZERO[:24],
        inside=pair.acting("import sys; sys.stdout.buffer.write(b'PACK\\0\\0\\0\\2\\0\\0\\0\\0')"),
    )


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


def test_missing_known_commit_costs_only_data(pair):
    (pair.owner / "own.txt").write_text("the owner goes on\n")
    pair.git("add", "--all", cwd=pair.owner)
    pair.git("commit", "--quiet", "--message", "own", cwd=pair.owner)
    # The inner repository reads the owner's objects: it has to lack one really.
    ahead = pair.git("rev-parse", "HEAD", cwd=pair.owner)
    shutil.copytree(pair.owner / ".git" / "objects", pair.owner.parent / "copy")
    (pair.owner.parent / "copy" / ahead[:2] / ahead[2:]).unlink()
    alternates = pair.inner / ".git" / "objects" / "info" / "alternates"
    alternates.write_text(f"{pair.owner.parent / 'copy'}\n")
    tip = pair.commit(a_txt="one\n")
    assert pair.bring(tip, known=(pair.base, ahead)).objects == 3
    other = pair.commit(b_txt="two\n")
    whole = len(pair.objects_below(other))
    assert pair.bring(other, known=(ahead, pair.base)).objects == whole
    pair.check()


def test_known_commit_that_the_owner_lacks_is_not_assumed(pair):
    first = pair.commit(a_txt="one\n")
    tip = pair.commit(b_txt="two\n")
    assert pair.bring(tip, known=(first, pair.base)).objects == 6
    pair.check()


def test_nothing_known(pair):
    tip = pair.commit(a_txt="one\n")
    assert pair.bring(tip, known=()).objects == len(pair.objects_below(tip))


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
@pytest.mark.parametrize("mode", ["100644", "40000"])
def test_hostile_tree_names(pair, refused, name, mode):
    target = good_blob(pair)
    if mode == "40000":
        target = pair.put("tree", entry("100644", "config", target))
    tree = pair.put("tree", entry(mode, name, target))
    refused("refused by git: .*object", pair.put_commit(tree, pair.base))


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
    code = PACK_THESE
    trees = [pair.git("cat-file", "-p", tip).split()[1], good_blob(pair), tip]
    with pytest.raises(StateError, match="refused by git"):
        pair.bring(tip, inside=pair.acting(code, *trees))
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
    refused("refused by git: .*gitmodules", pair.put_commit(tree, pair.base))


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
    with pytest.raises(StateError, match="refused by git"):
        pair.bring(tip, inside=pair.acting(PACK_THESE, tip))
    assert pair.state() == before


def test_tip_that_is_no_commit(pair, refused):
    tip = pair.commit(a_txt="one\n")
    pair.git("tag", "--annotate", "--message", "x", "v1")
    for name, what in [("HEAD^{tree}", "tree"), ("HEAD:a.txt", "blob"), ("v1", "tag")]:
        refused(f"is a {what} and not a commit", pair.git("rev-parse", name))
        refused(f"is a {what} and not a commit", tip, pair.git("rev-parse", name))


def test_tip_that_was_not_sent(pair, refused):
    tip, other = pair.commit(a_txt="one\n"), pair.commit(b_txt="two\n")
    lie = pair.acting(PACK_THESE, *pair.objects_below(tip))
    refused(f"`{other}` is not in it", other, inside=lie)


# Incomplete exports: an inner git of the agent's sends exactly the objects that it likes.

PACK_THESE = """
import subprocess, sys
wanted = [word for word in sys.argv[1:] if len(word) in (40, 64)]
subprocess.run(["git", "pack-objects", "--stdout", "-q"], input="\\n".join(wanted).encode())
"""


@pytest.mark.parametrize("missing", ["commit^{tree}", "blob", "parent", "subtree"])
def test_missing_objects(pair, refused, missing):
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
    sent = set(pair.git("rev-list", "--objects", "--no-object-names", tip, f"^{pair.base}").split())
    assert left_out in sent
    lie = pair.acting(PACK_THESE, *(sent - {left_out}))
    refused("is incomplete", tip, inside=lie)
    assert pair.bring(tip).objects == len(sent)
    pair.check()


def test_object_lost_inside_is_an_error_of_the_inner_git(pair, refused):
    tip = pair.commit(a_txt="one\n")
    blob = pair.git("rev-parse", f"{tip}:a.txt")
    (pair.inner / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    text = refused("`git pack-objects` in .* failed", tip, error=DriverError)
    assert blob in text


def test_unreachable_object_with_a_broken_link(pair, refused):
    """Also what no tip needs has to be sound: the owner's fsck looks at everything."""
    tip = pair.commit(a_txt="one\n")
    stray = pair.put("tree", entry("100644", "a", "1" * 40))
    sent = pair.git("rev-list", "--objects", "--no-object-names", tip, f"^{pair.base}").split()
    refused("is incomplete", tip, inside=pair.acting(PACK_THESE, *sent, stray))


# Exports that are no pack.

SAY = "import sys; sys.stdout.buffer.write(bytes.fromhex(sys.argv[1]))"
HEAD = b"PACK" + struct.pack(">II", 2, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a pack"),
        (b"PACK", "is not a pack"),
        (HEAD[:11], "is not a pack"),
        (b"fatal: something is wrong here\n", "is not a pack"),
        (b"\0" * 4096, "is not a pack"),
        (b"PACK" + struct.pack(">II", 4, 3), "is not a pack"),
        (b"PACK" + struct.pack(">II", 2, 0xFFFFFFFF), "has more than 1,000,000 objects"),
        (HEAD, "refused by git: .*early EOF"),
        (HEAD + b"\xff" * 4096, "refused by git"),
        (b"PACK" + struct.pack(">II", 2, 0), "refused by git|is not in it"),
    ],
    ids=["empty", "magic", "short", "text", "zeros", "version", "count", "head", "junk", "none"],
)
def test_what_is_no_pack(pair, refused, data, message):
    tip = pair.commit(a_txt="one\n")
    refused(message, tip, inside=pair.acting(SAY, data.hex()))


def real_pack(pair: Pair, tip: str) -> bytes:
    request = f"{tip}\n^{pair.base}\n".encode()
    return feed(
        ["git", "pack-objects", "--revs", "--stdout", "--thin", "-q"], request, cwd=pair.inner
    )


def test_truncated_and_damaged_packs(pair, refused):
    tip = pair.commit(a_txt="one\n", b_txt="two\n")
    data = real_pack(pair, tip)
    for size in range(12, len(data), 23):
        refused("refused by git", tip, inside=pair.acting(SAY, data[:size].hex()))
        hurt = bytearray(data)
        hurt[size] ^= 0x40
        refused("refused by git|is incomplete", tip, inside=pair.acting(SAY, hurt.hex()))
    refused("junk", tip, inside=pair.acting(SAY, (data + b"more").hex()))
    assert pair.bring(tip, inside=pair.acting(SAY, data.hex())).size_bytes == len(data)


def test_thin_pack_on_an_object_that_the_owner_lacks(pair, refused):
    base = pair.commit(a_txt="".join(f"{number}\n" for number in range(5000)))
    tip = pair.commit(a_txt="".join(f"{number}\n" for number in range(5001)))
    request = f"{tip}\n^{base}\n".encode()
    data = feed(
        ["git", "pack-objects", "--revs", "--stdout", "--thin", "-q"], request, cwd=pair.inner
    )
    refused("is incomplete", tip, inside=pair.acting(SAY, data.hex()))


# Exports without end.


def test_size_limit(pair, refused):
    (pair.inner / "big").write_bytes(os.urandom(100_000))
    tip = pair.commit()
    refused("is larger than 64K", tip, limits=Limits(size_bytes=64 << 10))
    assert pair.bring(tip, limits=Limits(size_bytes=128 << 10)).size_bytes > 100_000


def test_object_limit(pair, refused):
    tip = pair.commits(10)
    refused("has more than 1 objects", tip, limits=Limits(objects=1))
    count = len(pair.objects_below(tip) - pair.objects_below(pair.base))
    refused(f"has more than {count - 1} objects", tip, limits=Limits(objects=count - 1))
    assert pair.bring(tip, limits=Limits(objects=count)).objects == count


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(1000)",
        "import subprocess; subprocess.run(['sleep', '1000'])",
        "import os, time; os.close(1); os.close(2); time.sleep(1000)",
        "import sys, time; sys.stdout.write('PACK'); sys.stdout.flush(); time.sleep(1000)",
        "from signal import *\nfor n in (1, 2, 15): signal(n, SIG_IGN)\nwhile True: pause()",
        "import subprocess, sys, time\nsubprocess.run(sys.argv[1:], check=True)\ntime.sleep(1000)",
    ],
    ids=["sleeps", "child", "closed", "begins", "deaf", "stays"],
)
def test_export_that_does_not_end(pair, refused, code):
    tip = pair.commit(a_txt="one\n")
    began = time.monotonic()
    refused("took longer than 500ms", tip, inside=pair.acting(code), limits=Limits(seconds=0.5))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("number", [1, 2])
def test_flood(pair, refused, number):
    tip = pair.commit(a_txt="one\n")
    code = f"import os\nos.write(1, {HEAD!r})\nwhile True: os.write({number}, b'x' * 9999)"
    began = time.monotonic()
    refused("is larger than 1M", tip, inside=pair.acting(code), limits=Limits(size_bytes=1 << 20))
    assert time.monotonic() - began < 30


def test_failing_inner_git_is_told_harmlessly(pair, refused):
    tip = pair.commit(a_txt="one\n")
    code = "import sys; sys.stderr.write('\\x1b[2J' + 'x' * 9999 + '\\nEND\\x07\\n'); sys.exit(3)"
    text = refused("failed with exit code 3", tip, error=DriverError, inside=pair.acting(code))
    assert text.endswith(r"END\x07")
    late = "import subprocess, sys; subprocess.run(sys.argv[1:]); sys.exit(9)"
    refused("failed with exit code 9", tip, error=DriverError, inside=pair.acting(late))
    (pair.inner / ".git").rename(pair.inner / "hidden")
    refused("not a git repository", tip, error=DriverError)


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
    refused(
        "refused by git: .*[Mm]emory",
        tip,
        inside=pair.acting(SAY, data.hex()),
        limits=Limits(memory_bytes=512 << 20),
    )
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
    assert not canary.exists() or "host" not in canary.read_text()


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


def test_no_descriptor_goes_inside(pair, tmp_path):
    tip = pair.commit(a_txt="one\n")
    code = (
        "import os, subprocess, sys\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(' '.join(os.listdir('/proc/self/fd')))\n"
        "subprocess.run(sys.argv[1:])"
    )
    with host_git.turn(str(pair.owner / ".git")) as handle:
        pair.bring(tip, inside=pair.acting(code), keep_fds=(handle,))
        assert str(handle) not in (tmp_path / "seen").read_text().split()[:-1]


def test_refs_of_the_owner_are_not_touched(pair):
    before = pair.git("for-each-ref", cwd=pair.owner), pair.git("reflog", cwd=pair.owner)
    pair.bring(pair.commit(a_txt="one\n"))
    pair.bring(pair.commits(300))
    assert (pair.git("for-each-ref", cwd=pair.owner), pair.git("reflog", cwd=pair.owner)) == before


def test_every_command_is_told(pair, monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(process, "on_command", heard.append)
    pair.bring(pair.commit(a_txt="one\n"))
    verbs = ["cat-file", "pack-objects", "index-pack", "cat-file", "rev-list", "unpack-objects"]
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
        assert pair.bring(first, second, inside=pair.acting("1 / 0")) == NOTHING


KILLED_CHILD = """
import os, signal, sys
from atoll.host import process, quarantine
from atoll.model.plan import Enclosure

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
    quarantine._Incoming.take = trapping(quarantine._Incoming.take)
elif kind == "disk":
    for name in ("mkdir", "rename", "fsync", "unlink", "rmdir"):
        setattr(os, name, trapping(getattr(os, name)))
inside = Enclosure(env={"PATH": os.environ["PATH"], "MARKER": inner}, cwd=inner)
quarantine.bring(repository, [tip], known=[base], inside=inside, place=inner)
"""


def bring_and_die(pair: Pair, tip: str, kind: str, number: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", KILLED_CHILD, kind, str(number), str(pair.owner / ".git")]
    return subprocess.Popen(
        [*argv, tip, pair.base, str(pair.inner)], stderr=subprocess.DEVNULL, env=dict(os.environ)
    )


def await_end(
    pair: Pair, wait_for: Callable[..., None], processes_with: Callable[..., Any]
) -> None:
    wait_for(lambda: not processes_with(f"GIT_DIR={pair.owner}"), what="the end of the tools")
    wait_for(lambda: not processes_with(pair.marker), what="the end of the inner git")
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
    assert number > {"command": 5, "chunk": 1, "disk": 4}[kind]


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


def test_leftover_is_swept_by_the_next_import_unless_somebody_works_in_it(pair):
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
    assert pair.bring(tip, limits=Limits(seconds=None)).objects == 3
