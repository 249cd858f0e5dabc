"""Commits with a known secret are refused, wherever it is; what the owner has is no news."""

from __future__ import annotations

import base64

import pytest

from atoll.host.intake import secret_scan
from atoll.host.intake.quarantine import OwnerStore
from atoll.host.intake.transfer import LIMITS, Transfer
from atoll.model.errors import DriverError, StateError
from atoll.model.lfs import Pointer
from atoll.model.secretvalues import SecretSearch

VALUE = b"sk-canary-5f21-value"
SEARCH = SecretSearch([("API_KEY", VALUE)])


@pytest.fixture
def world(repo, git):
    return World(repo, git)


class World:
    """A repository whose detached HEAD is the capsule's work."""

    def __init__(self, root, git):
        self.root, self._git = root, git
        self.base = self.git("rev-parse", "HEAD").strip()
        self.git("checkout", "--quiet", "--detach")

    def git(self, *args):
        return self._git(*args, cwd=self.root)

    def commit(self, message="work", **files):
        for name, content in files.items():
            path = self.root / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(content)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD").strip()

    def check(self, *tips, search=SEARCH, known=()):
        store = OwnerStore.open(str(self.root / ".git"))
        transfer = Transfer.start(tips, LIMITS, search=search, known=known)
        secret_scan.require_clean(store.program, transfer)

    def refusal(self, *tips):
        with pytest.raises(StateError) as caught:
            self.check(*tips)
        assert VALUE.decode() not in str(caught.value) + caught.value.message
        return caught.value.message


def test_the_commit_that_added_it_is_named(world):
    world.commit(clean=b"x")
    bad = world.commit(src__config=b"a\nb\nkey = " + VALUE + b"\n")
    tip = world.commit(src__other=b"y")
    expected = f"commit {bad[:10]} (`src/config`, line 3) contains the secret `API_KEY`"
    assert world.refusal(tip).startswith(expected)
    # Removing it in a later commit does not help: it is in the history.
    world.git("rm", "--quiet", "src/config")
    assert world.refusal(world.commit("clean up")).startswith(expected)


@pytest.mark.parametrize(
    "content",
    [VALUE, base64.b64encode(b"user:" + VALUE), VALUE.hex().encode(), b"x" * 200_000 + VALUE],
)
def test_forms(world, content):
    bad = world.commit(f=content)
    assert f"commit {bad[:10]} (`f`, line 1)" in world.refusal(bad)


def test_messages_and_names(world):
    bad = world.commit(f"the key is {VALUE.decode()}")
    assert f"commit {bad[:10]} (its message)" in world.refusal(bad)
    world.git("reset", "--quiet", "--hard", world.base)
    bad = world.commit(**{f"d__{VALUE.decode()}": b"x"})
    assert f"commit {bad[:10]} (the name of a file in `d`)" in world.refusal(bad)
    world.git("reset", "--quiet", "--hard", world.base)
    bad = world.commit(**{f"{VALUE.decode()}__d__f": b"x"})
    assert f"commit {bad[:10]} (the name of a file" in world.refusal(bad)


def test_the_author_is_not_called_the_message(world):
    world.git("config", "user.name", f"A {VALUE.decode()}")
    bad = world.commit("fine")
    assert f"commit {bad[:10]} (its author)" in world.refusal(bad)
    world.git("tag", "--annotate", "--message", "fine", "marked", world.base)
    named = world.git("rev-parse", "refs/tags/marked").strip()
    world.git("update-ref", "-d", "refs/tags/marked")
    assert "the tagger of a tag" in world.refusal(named)
    world.git("config", "user.name", "A")
    world.git("reset", "--quiet", "--hard", world.base)
    tree = world.git("rev-parse", "HEAD^{tree}").strip()
    text = f"tree {tree}\nauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\nx {VALUE.decode()}\n\nm\n"
    (world.root / "made").write_text(text)
    bad = world.git("hash-object", "-t", "commit", "-w", "--literally", "made").strip()
    assert f"commit {bad[:10]} (its header)" in world.refusal(bad)


def test_a_new_name_of_old_content(world):
    (world.root / VALUE.decode()).write_bytes((world.root / "app.py").read_bytes())
    bad = world.commit()
    assert "the name of a file at the top" in world.refusal(bad)


def test_hostile_names_are_shown_harmlessly(world):
    bad = world.commit(**{"a\x1b[2J\nb": VALUE})
    message = world.refusal(bad)
    assert "\x1b" not in message
    assert "\n" not in message


def test_what_the_owner_has_is_no_news(world):
    first = world.commit(f=VALUE)
    tip = world.commit(g=b"x")
    world.check(tip, known=[first])
    world.git("branch", "theirs", first)
    world.check(tip)
    world.git("branch", "-D", "theirs")
    # A recovery point has everything, and makes nothing known.
    world.git("update-ref", "refs/atoll/recovery/x", first)
    assert "(`f`, line 1)" in world.refusal(tip)


def test_nothing_to_search_for(world):
    bad = world.commit(f=VALUE)
    world.check(bad, search=None)
    world.check(bad, search=SecretSearch([("SHORT", b"sk")]))


def test_many_objects(world):
    files = {f"d{number % 7}__f{number}": b"%d\n" % number * 50 for number in range(500)}
    world.check(world.commit(**files))
    bad = world.commit(d3__f499=b"\n\n" + VALUE)
    assert f"commit {bad[:10]} (`d3/f499`, line 3)" in world.refusal(bad)


def test_a_broken_history_is_not_passed(world):
    bad = world.commit(f=b"content")
    blob = world.git("rev-parse", f"{bad}:f").strip()
    (world.root / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(DriverError, match="missing blob"):
        world.check(bad)


def test_content_of_lfs():
    pointer = Pointer("0" * 64, 5)
    pieces = [b"one\ntwo", VALUE[:4], VALUE[4:]]
    assert list(secret_scan.searched(pieces, None, pointer.oid)) == pieces
    passed: list[bytes] = []
    with pytest.raises(StateError, match="Git LFS file `a/b`, line 2") as caught:
        passed += secret_scan.searched(pieces, SEARCH, "a/b")
    assert VALUE.decode() not in str(caught.value)
