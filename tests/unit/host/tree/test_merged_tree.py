from __future__ import annotations

import itertools
import os
import random
import shutil
import socket
import stat
from contextlib import suppress

import pytest

from atoll.host import kernel
from atoll.host.files import remove_tree
from atoll.host.kernel import CLONE_NEWNS, CLONE_NEWUSER
from atoll.host.tree.merged_tree import MergedTree, PlainTree
from atoll.keeper.calls import mount
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, Untrusted
from children import NOBODY, exchanging, in_child

PRIVILEGED = "redirect_dir=on,index=off,metacopy=off,volatile"
ROOTLESS = "userxattr,index=off,volatile"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def inside(path):
    return InsidePath(os.fsencode(path))


def whiteout(path):
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def mark(path, name, value=b"y"):
    os.setxattr(path, f"user.overlay.{name}", value)


def lay(root, *paths):
    """Files by their paths, directories by a slash at the end; the content is the layer's name."""
    root.mkdir(exist_ok=True)
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(root.name)
    return root


@pytest.fixture
def bottom(tmp_path):
    return lay(tmp_path / "bottom", "w/a/b/one", "w/a/b/two", "w/a/three", "w/four", "w/d/five")


@pytest.fixture
def top(tmp_path):
    return lay(tmp_path / "top", "w/")


def merged(*layers, own=1):
    return MergedTree(layers, own=own, namespace="user", at="w")


def view(tree):
    """All that a tree shows, by the methods of a `TreeReader`."""
    found, waiting = {}, [None]
    while waiting:
        for path in tree.names(waiting.pop()):
            kind = tree.kind(path)
            found[path.raw] = kind
            if kind == "directory":
                waiting.append(path)
            elif kind == "file":
                found[path.raw] = tree.read(path, limit_bytes=1 << 20)
    return found


def names(tree):
    return sorted(os.fsdecode(path) for path in view(tree))


def listed(paths):
    return sorted(os.fsdecode(path.raw) for path in paths)


def test_upper_files_win_and_lower_ones_show(bottom, top):
    lay(top, "w/a/b/two", "w/a/new")
    with merged(bottom, top) as tree:
        everything = ["a", "a/b", "a/b/one", "a/b/two", "a/new", "a/three", "d", "d/five", "four"]
        assert names(tree) == everything
        assert tree.read(inside("a/b/two"), limit_bytes=10) == b"top"
        assert tree.read(inside("a/b/one"), limit_bytes=10) == b"bottom"
        assert tree.read(inside("a/b/one"), limit_bytes=3) is None
        assert tree.kind(inside("a/b/one/x")) is None
        assert tree.find_file(inside("a/b")) is None
        found = tree.changes()
        assert listed(found.entries) == ["a/b/two", "a/new"]
        assert listed(found.directories) == ["a", "a/b"]
        assert listed(found.hidden) == ["a/b/two"]


def test_what_is_removed_or_replaced_is_hidden(bottom, top):
    lay(top, "w/four/inside", "w/d/six")
    whiteout(top / "w/a")
    mark(top / "w/d", "opaque")
    with merged(bottom, top) as tree:
        assert names(tree) == ["d", "d/six", "four", "four/inside"]
        found = tree.changes()
        assert listed(found.hidden) == ["a", "d", "four"]
        assert listed(found.entries) == ["d/six", "four/inside"]


@pytest.mark.parametrize("value", [b"/w/a", b"a"], ids=["absolute", "relative"])
def test_redirected_directories_show_what_was_moved(bottom, top, value):
    lay(top, "w/moved/b/new")
    mark(top / "w/moved", "redirect", value)
    whiteout(top / "w/a")
    with merged(bottom, top) as tree:
        shown = ["moved", "moved/b", "moved/b/new", "moved/b/one", "moved/b/two", "moved/three"]
        assert names(tree) == ["d", "d/five", "four", *shown]
        found = tree.changes()
        assert listed(found.hidden) == ["a"]
        assert listed(found.entries) == [p for p in shown if p not in ("moved", "moved/b")]
        entry = found.entries[inside("moved/b/one")]
        handle = tree.find_entry(entry)
        assert os.read(handle, 100) == b"bottom"
        os.close(handle)


@pytest.mark.parametrize(
    "value", [b"../../outside", b"/../outside", b"/w/../../outside", b"/", b"", b"a//b", b"//a"]
)
def test_redirects_that_are_no_path_are_refused(bottom, top, tmp_path, value):
    lay(tmp_path / "outside", "secret")
    lay(top, "w/moved/")
    mark(top / "w/moved", "redirect", value)
    with merged(bottom, top) as tree:
        with pytest.raises(StateError, match="redirect"):
            tree.kind(inside("moved"))
        with pytest.raises(StateError, match="redirect"):
            tree.changes()


def test_redirects_resolve_in_lower_layers_without_following_links(bottom, top, tmp_path):
    outside = lay(tmp_path / "outside", "secret")
    os.symlink(outside, bottom / "w/link")
    lay(top, "w/moved/", "w/itself/own")
    mark(top / "w/moved", "redirect", b"/w/link")
    mark(top / "w/itself", "redirect", b"/w/itself")
    with merged(bottom, top) as tree:
        assert tree.names(inside("moved")) == []
        assert listed(tree.names(inside("itself"))) == ["itself/own"]


@pytest.mark.parametrize("name", ["metacopy", "novel", "whiteout"])
def test_marks_that_are_not_supported_are_refused(bottom, top, name):
    lay(top, "w/x/file")
    mark(top / "w/x/file", name, b"")
    with merged(bottom, top) as tree, pytest.raises(StateError, match="does not support"):
        tree.changes()
    os.removexattr(top / "w/x/file", f"user.overlay.{name}")
    mark(top / "w/x", name, b"")
    with merged(bottom, top) as tree, pytest.raises(StateError, match="does not support"):
        tree.find_file(inside("x/file"))
    # In an overlay of the other namespace, and in a plain tree, it is an ordinary attribute.
    with MergedTree([bottom, top], own=1, namespace="trusted", at="w") as tree:
        assert listed(tree.changes().entries) == ["x/file"]
    with PlainTree(top / "w") as tree:
        assert listed(tree.changes().entries) == ["x/file"]


def test_plain_tree_has_no_whiteouts(top):
    lay(top, "w/d/file")
    whiteout(top / "w/gone")
    mark(top / "w/d", "redirect", b"/somewhere")
    os.mkfifo(top / "w/fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / "w/socket"))
    os.symlink("/etc", top / "w/link")
    with PlainTree(top / "w") as tree:
        found = tree.changes()
        assert listed(found.special) == ["fifo", "gone", "socket"]
        assert listed(found.entries) == ["d/file", "link"]
        assert isinstance(found.entries[inside("link")].target, Untrusted)
        assert tree.kind(inside("link")) == "link"
        assert tree.kind(inside("link/passwd")) is None
        assert tree.find_file(inside("link/passwd")) is None
        assert tree.find_file(inside("fifo")) is None
        assert tree.names(inside("link")) == []


def test_skipped_paths_are_not_visited(bottom, top):
    lay(top, "w/.git/config", "w/a/.git/config", "w/a/build/out", "w/a/file")
    asked = []

    def skip(path, is_directory):
        asked.append(path.raw)
        return is_directory and path.name in (b".git", b"build")

    with merged(bottom, top) as tree:
        found = tree.changes(skip=skip)
    assert listed(found.entries) == ["a/file"]
    assert listed(found.directories) == ["a"]
    assert b".git/config" not in asked


def test_numbers_of_entries_are_bounded(bottom, top):
    lay(top, *(f"w/{number}" for number in range(10)))
    with merged(bottom, top) as tree, pytest.raises(StateError, match="more than"):
        tree.changes(limit_entries=5)


def test_stack_has_to_be_complete(bottom, top, tmp_path):
    with pytest.raises(StateError, match="cannot be opened"):
        merged(bottom, tmp_path / "none")
    os.symlink(top, tmp_path / "link")
    with pytest.raises(StateError, match="cannot be opened"):
        merged(bottom, tmp_path / "link")
    with pytest.raises(ValueError, match="own"):
        merged(bottom, top, own=0)
    mark(top / "w", "opaque")
    with pytest.raises(StateError, match="replaced"):
        merged(bottom, top)


def test_paths_that_are_too_deep_are_reported(bottom, top, tmp_path):
    handle = os.open(top / "w", os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=handle)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    try:
        with merged(bottom, top) as tree:
            found = tree.changes()
        assert len(found.closed) == 1
        assert len(found.directories) < 25
    finally:
        remove_tree(top, within=tmp_path)


def test_closed_directories_are_reported(ordinary_user, open_place):
    def check():
        bottom = lay(open_place / "bottom", "w/closed/secret", "w/open/file")
        top = lay(open_place / "top", "w/closed/new", "w/open/new", "w/shut")
        os.chmod(top / "w/closed", 0)
        os.chmod(top / "w/shut", 0)
        try:
            with merged(bottom, top) as tree:
                found = tree.changes()
                assert listed(found.closed) == ["closed"]
                assert listed(found.entries) == ["open/new", "shut"]
                assert tree.find_file(inside("closed/secret")) is None
                assert tree.find_file(inside("shut")) is None
                assert tree.names(inside("closed")) == []
            os.chmod(top / "w", 0)
            with merged(bottom, top) as tree, pytest.raises(StateError, match="root directory"):
                tree.changes()
        finally:
            for path in ("w", "w/closed"):
                os.chmod(top / path, 0o700)

    ordinary_user(check)


# As the kernel shows it


class Churn:
    """Random work in a tree, with a love for moving directories."""

    def __init__(self, root, seed):
        self.root = root
        self.random = random.Random(seed)

    def plant(self):
        for path in itertools.product("abc", "abc", "abc"):
            place = os.path.join(self.root, *path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "w", encoding="utf-8") as stream:
                stream.write("/".join(path))

    def run(self, count):
        acts = [self.write, self.write, self.remove, self.make, self.link, self.rename, self.renew,
                self.special, self.mode, self.move, self.move, self.move, self.move]  # fmt: skip
        for _ in range(count):
            # What is missing cannot be removed, and so on.
            with suppress(OSError):
                self.random.choice(acts)()

    def place(self):
        """A path that leads through no link: this may run as root and must not leave its tree."""
        *parents, name = self.random.choices("abcd", k=self.random.choice([2, 3, 3, 4]))
        place = str(self.root)
        for parent in parents:
            place = os.path.join(place, parent)
            if os.path.islink(place):
                raise NotADirectoryError(place)
        return os.path.join(place, name)

    def write(self):
        flags = os.O_TRUNC | os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
        handle = os.open(self.place(), flags, 0o644)
        os.write(handle, self.random.randbytes(8))
        os.close(handle)

    def remove(self):
        place = self.place()
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
        else:
            os.unlink(place)

    def renew(self):
        place = self.place()
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
            os.mkdir(place)

    def make(self):
        os.makedirs(self.place())

    def link(self):
        os.symlink(self.random.choice(["a", "b/c", "/missing"]), self.place())

    def rename(self):
        os.rename(self.place(), self.place())

    def move(self):
        """Moves a directory that exists into another one."""
        places = sorted(place for place, _, _ in os.walk(self.root) if place != str(self.root))
        source, target = self.random.choices(places, k=2)
        os.rename(source, os.path.join(target, self.random.choice("abcdefg")))

    def special(self):
        os.mkfifo(self.place())

    def mode(self):
        place = self.place()
        if stat.S_ISREG(os.lstat(place).st_mode):
            os.chmod(place, self.random.choice([0o600, 0o644]))


def dump(root):
    """What is shown at a path of the host, in the form of `view`."""
    found: dict[bytes, str | bytes] = {}
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        for name in os.listdir(os.path.join(root, directory)):
            path = os.path.join(directory, name)
            place = os.path.join(root, path)
            mode = os.lstat(place).st_mode
            if stat.S_ISDIR(mode):
                waiting.append(path)
                found[path.encode()] = "directory"
            elif stat.S_ISREG(mode):
                with open(place, "rb") as stream:
                    found[path.encode()] = stream.read()
            else:
                found[path.encode()] = "link" if stat.S_ISLNK(mode) else "special"
    return found


def overlay(place, layers, upper, options):
    for directory in (upper, upper.with_name(f"{upper.name}-work"), place):
        directory.mkdir(exist_ok=True)
    lower = ":".join(str(layer) for layer in reversed(layers))
    dirs = f"lowerdir={lower},upperdir={upper},workdir={upper}-work"
    mount("overlay", str(place), "overlay", 0, f"{dirs},{options}")


def work_in_overlays(place, seed, options):
    """Makes a base and two layers of work upon it; returns what the kernel shows at last."""
    base = place / "base"
    base.mkdir()
    Churn(base, seed).plant()
    layers = [base]
    for number in range(2):
        upper, merged_at = place / f"upper-{number}", place / f"merged-{number}"
        overlay(merged_at, layers, upper, options)
        Churn(merged_at, f"{seed}-{number}").run(60)
        layers.append(upper)
    again = place / "again"
    overlay(again, layers, place / "empty", options)
    return dump(again)


def applied(tree, base):
    """The base with the changes applied, as for a comparison of trees."""
    found = tree.changes()
    assert found.closed == []
    shown = {
        path: what
        for path, what in dump(base).items()
        if what != "directory" and not any(InsidePath(path).is_below(root) for root in found.hidden)
    }
    for path, entry in found.entries.items():
        shown[path.raw] = "link"
        if entry.target is None:
            with os.fdopen(tree.find_entry(entry), "rb") as stream:
                shown[path.raw] = stream.read()
    return {**shown, **{path.raw: "special" for path in found.special}}


def compare_with_kernel(place, seed, *, namespace, user):
    options = PRIVILEGED if namespace == "trusted" else ROOTLESS
    expected = in_child(lambda: work_in_overlays(place, seed, options), user=user, mounts=True)

    def check():
        layers = [place / "base", place / "upper-0", place / "upper-1"]
        for own in (1, 2):
            with MergedTree(layers, own=own, namespace=namespace, at="") as tree:
                assert view(tree) == expected
                if own == 2:
                    without = {p: w for p, w in expected.items() if w != "directory"}
                    assert applied(tree, place / "base") == without

    in_child(check, user=user)
    return expected


@needs_root
@pytest.mark.parametrize("seed", range(25))
def test_view_is_that_of_the_kernel_with_redirects(tmp_path, seed):
    compare_with_kernel(tmp_path, seed, namespace="trusted", user=None)


@pytest.mark.parametrize("seed", range(15))
def test_view_is_that_of_the_kernel_without_root(open_place, seed):
    if said := kernel.can_unshare(CLONE_NEWUSER | CLONE_NEWNS):
        pytest.skip(f"no user namespaces: {said}")
    compare_with_kernel(open_place, seed, namespace="user", user=NOBODY)


@needs_root
def test_random_work_makes_redirects(tmp_path):
    """Shows that the comparison above is about something."""
    found = set()
    for seed in range(5):
        place = tmp_path / str(seed)
        place.mkdir()
        compare_with_kernel(place, seed, namespace="trusted", user=None)
        for upper in ("upper-0", "upper-1"):
            for directory, _, _ in os.walk(place / upper):
                with suppress(OSError):
                    found.add(os.getxattr(directory, "trusted.overlay.redirect"))
    assert len([value for value in found if value.startswith(b"/")]) > 10
    assert [value for value in found if not value.startswith(b"/")]


# While it is being written


@pytest.mark.parametrize("openat2", [True, False], ids=["openat2", "by parts"])
def test_nothing_outside_is_read_through_exchanged_directories(
    bottom, top, tmp_path, monkeypatch, openat2
):
    monkeypatch.setattr(kernel, "_has_openat2", lambda: openat2)
    outside = lay(tmp_path / "outside", "file")
    lay(top, "w/p/file")
    os.symlink(outside, top / "w/q")
    seen: set[object] = set()
    plain: set[object] = set()
    with exchanging(top / "w/p", top / "w/q"), merged(bottom, top) as tree:
        entry = tree.changes().entries.get(inside("p/file"))
        # The control: a plain path does lead outside, sooner or later.
        while b"outside" not in plain or len(seen) < 2:
            with suppress(OSError), open(top / "w/p/file", "rb") as stream:
                plain.add(stream.read())
            seen.add(tree.read(inside("p/file"), limit_bytes=100))
            found = tree.changes()
            entry = found.entries.get(inside("p/file"), entry)
            if entry is not None and (handle := tree.find_entry(entry)) is not None:
                with os.fdopen(handle, "rb") as stream:
                    seen.add(stream.read())
    assert seen == {None, b"top"}


@pytest.mark.parametrize("openat2", [True, False], ids=["openat2", "by parts"])
def test_opening_beneath(tmp_path, monkeypatch, openat2):
    monkeypatch.setattr(kernel, "_has_openat2", lambda: openat2)
    lay(tmp_path / "root", "a/b/file")
    lay(tmp_path / "outside", "file")
    os.symlink("a", tmp_path / "root/link")
    os.symlink("file", tmp_path / "root/a/b/last")
    root = os.open(tmp_path / "root", os.O_PATH)
    try:
        for path in (b"a/b/file", b"a//b/./file"):
            os.close(kernel.open_beneath(root, path, os.O_RDONLY))
        os.close(kernel.open_beneath(root, b"", os.O_PATH | os.O_DIRECTORY))
        made = kernel.open_beneath(root, b"a/new", os.O_WRONLY | os.O_CREAT, 0o600)
        assert stat.S_IMODE(os.fstat(made).st_mode) == 0o600
        os.close(made)
        for path in (
            b"../outside/file", b"a/../../outside/file", b"/etc/passwd", b"link/b/file",
            b"a/b/last", b"missing", b"link", b"a/b/file/x",
        ):  # fmt: skip
            for flags in (os.O_RDONLY, os.O_PATH):
                with pytest.raises(OSError):  # noqa: PT011 - which number depends on the way
                    kernel.open_beneath(root, path, flags)
    finally:
        os.close(root)
