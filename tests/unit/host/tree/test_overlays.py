from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import random
import shutil
import socket
import stat
import subprocess
import traceback
import warnings
from contextlib import suppress
from typing import Any

import pytest

from atoll.host.files import remove_tree
from atoll.host.kernel import CLONE_NEWNS, unshare
from atoll.host.tree.layer_copy import copy_changes, copy_entries
from atoll.host.tree.manifests import LeftOut, difference, scan
from atoll.host.tree.overlays import changes, compose, is_whiteout, shows
from atoll.model.errors import StateError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount an overlay")


def whiteout(path):
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def opaque(path, namespace="user"):
    os.setxattr(path, f"{namespace}.overlay.opaque", b"y")


def is_opaque(path):
    with suppress(OSError):
        return os.getxattr(path, "user.overlay.opaque") == b"y"
    return False


def dump(root):
    """Everything that counts, special files excepted; a name without a file is a ghost."""
    found: dict[str, Any] = {}
    linked: dict[int, set[str]] = {}
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        for name in os.listdir(os.path.join(root, directory)):
            path = os.path.join(directory, name)
            try:
                status = os.lstat(os.path.join(root, path))
            except FileNotFoundError:
                found[path] = "a ghost"
                continue
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            if is_whiteout(status):
                found[path] = "a whiteout"
            elif not stat.S_ISFIFO(status.st_mode):
                found[path] = describe(os.path.join(root, path), status)
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    linked.setdefault(status.st_ino, set()).add(path)
    for group in linked.values():
        # A name that another layer hides is none.
        for path in group if len(group) > 1 else ():
            found[path] = (*found[path], sorted(group))
    return found


def describe(place, status):
    content, extended = None, {}
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(place)
    else:
        extended = {
            name: os.getxattr(place, name)
            for name in os.listxattr(place)
            if name.startswith("user.") and ".overlay." not in name
        }
    if stat.S_ISREG(status.st_mode):
        with open(place, "rb") as stream:
            content = hashlib.sha256(stream.read()).hexdigest()
    owner = (status.st_uid, status.st_gid)
    # No copy of a file keeps a set-id bit.
    mode = status.st_mode if stat.S_ISDIR(status.st_mode) else status.st_mode & ~0o6000
    return mode, status.st_mtime_ns, owner, content, extended


def names(root):
    return sorted(dump(root))


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
    return lay(tmp_path / "bottom", "a/b/one", "a/b/two", "a/three", "four", "d/five")


@pytest.fixture
def top(tmp_path):
    return lay(tmp_path / "top")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


# Merging by hand-made layers


def test_upper_files_win_and_lower_ones_shine_through(bottom, top, target):
    lay(top, "a/b/two", "a/new")
    (top / "a").chmod(0o700)
    result = compose([bottom, top], target, whiteouts=False)
    everything = ["a", "a/b", "a/b/one", "a/b/two", "a/new", "a/three", "d", "d/five", "four"]
    assert names(target) == everything
    assert sorted(result.manifest) == everything
    assert (target / "a/b/two").read_text() == "top"
    assert (target / "a/b/one").read_text() == "bottom"
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o700
    assert (target / "a").stat().st_mtime_ns == (top / "a").stat().st_mtime_ns
    assert target.stat().st_mtime_ns == top.stat().st_mtime_ns
    assert result.left_out == []


def test_whiteouts_hide(bottom, top, target):
    lay(top, "a/b/")
    whiteout(top / "a/b/one")
    whiteout(top / "d")
    whiteout(top / "never-was")
    compose([bottom, top], target, whiteouts=False)
    assert names(target) == ["a", "a/b", "a/b/two", "a/three", "four"]


@pytest.mark.parametrize("namespace", ["user", "trusted"])
def test_opaque_directories_hide(bottom, top, target, namespace):
    if namespace == "trusted" and os.geteuid() != 0:
        pytest.skip("needs root, to set trusted attributes")
    lay(top, "a/mine")
    opaque(top / "a", namespace)
    compose([bottom, top], target, whiteouts=False)
    assert names(target) == ["a", "a/mine", "d", "d/five", "four"]
    assert os.listxattr(target / "a") == []


def test_kinds_replace_each_other(bottom, top, target):
    lay(top, "a", "four/inside")
    os.symlink("a", top / "d")
    compose([bottom, top], target, whiteouts=False)
    assert names(target) == ["a", "d", "four", "four/inside"]
    assert os.readlink(target / "d") == "a"


@pytest.mark.parametrize("barrier", ["file", "link", "whiteout", "fifo"])
def test_nothing_shines_through_what_is_no_directory(tmp_path, bottom, top, target, barrier):
    middle = lay(tmp_path / "middle")
    place = middle / "a"
    make = {
        "file": os.mknod,
        "link": lambda path: os.symlink("d", path),
        "whiteout": whiteout,
        "fifo": os.mkfifo,
    }
    make[barrier](place)
    lay(top, "a/mine")
    compose([bottom, middle, top], target, whiteouts=False)
    assert names(target) == ["a", "a/mine", "d", "d/five", "four"]
    # Over something unknown the same can only be said by a mark.
    compose([middle, top], target.with_name("layer"), whiteouts=True)
    assert is_opaque(target.with_name("layer") / "a")


def test_links_are_not_followed(tmp_path, bottom, top, target):
    outside = lay(tmp_path / "outside", "secret")
    os.symlink(outside, top / "a")
    os.symlink(outside, bottom / "link")
    lay(top, "link/mine")
    compose([bottom, top], target, whiteouts=False)
    assert os.readlink(target / "a") == str(outside)
    assert names(target) == ["a", "d", "d/five", "four", "link", "link/mine"]


def test_special_files_are_left_out_and_still_hide(bottom, top, target):
    os.mkfifo(top / "four")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / "socket"))
    result = compose([bottom, top], target, whiteouts=False)
    assert sorted(result.left_out) == [LeftOut("four", "a fifo"), LeftOut("socket", "a socket")]
    assert "four" not in names(target)
    layer = target.with_name("layer")
    compose([top], layer, whiteouts=True, below=[bottom])
    assert names(layer) == ["four"]
    assert is_whiteout(os.lstat(layer / "four"))


def test_what_is_hidden_is_not_even_read(bottom, top, target):
    lay(bottom, "a/closed")
    os.setxattr(bottom / "a/closed", "user.overlay.metacopy", b"")
    whiteout(top / "a")
    compose([bottom, top], target, whiteouts=False)
    assert names(target) == ["d", "d/five", "four"]


def test_layer_keeps_what_it_hides(tmp_path, bottom, top, target):
    middle = lay(tmp_path / "middle", "d/")
    whiteout(middle / "a")
    whiteout(middle / "four")
    opaque(middle / "d")
    lay(top, "four", "d/six")
    whiteout(top / "d/seven")
    compose([middle, top], target, whiteouts=True)
    assert names(target) == ["a", "d", "d/six", "four"]
    assert is_whiteout(os.lstat(target / "a"))
    assert (target / "four").read_text() == "top"
    assert is_opaque(target / "d")


def test_whiteouts_over_nothing_are_dropped(bottom, top, target):
    lay(top, "a/b/", "d/")
    for path in ("a/b/one", "a/b/never", "never", "d/five"):
        whiteout(top / path)
    compose([top], target, whiteouts=True, below=[bottom])
    assert names(target) == ["a", "a/b", "a/b/one", "d", "d/five"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", True),
        ("a/b/one", True),
        ("a/three", False),
        ("a/mine", True),
        ("four", False),
        ("four/x", False),
        ("d/five", False),
        ("d", True),
        ("d/six", True),
        ("e/f", False),
        ("e", True),
        ("missing/x", False),
    ],
)
def test_what_shows(bottom, top, path, expected):
    lay(top, "a/mine", "d/six", "e")
    lay(bottom, "e/f")
    whiteout(top / "a/three")
    whiteout(top / "four")
    opaque(top / "d")
    assert shows([bottom, top], path) is expected


@pytest.mark.parametrize(
    ("mark", "message"),
    [("redirect", "renamed by a redirect"), ("metacopy", "metacopy"), ("novel", "unknown")],
)
def test_marks_that_are_not_understood_are_refused(bottom, top, target, mark, message):
    lay(top, "x/file")
    os.setxattr(top / "x/file", f"user.overlay.{mark}", b"/a")
    with pytest.raises(StateError, match=message):
        compose([bottom, top], target, whiteouts=False)
    os.removexattr(top / "x/file", f"user.overlay.{mark}")
    os.setxattr(top / "x", f"user.overlay.{mark}", b"/a")
    with pytest.raises(StateError, match=message):
        compose([bottom, top], target, whiteouts=False)
    assert not target.exists()


def test_other_kind_of_opaque_is_refused(bottom, top, target):
    lay(top, "a/")
    os.setxattr(top / "a", "user.overlay.opaque", b"x")
    with pytest.raises(StateError, match="unknown"):
        compose([bottom, top], target, whiteouts=False)


def test_what_the_kernel_notes_for_itself_is_dropped(bottom, top, target):
    lay(top, "a/file")
    for mark in ("origin", "impure", "nlink", "overlay.opaque"):
        os.setxattr(top / "a", f"user.overlay.{mark}", b"y")
        os.setxattr(top / "a/file", f"user.overlay.{mark}", b"y")
    compose([bottom, top], target, whiteouts=True)
    assert os.listxattr(target / "a") == os.listxattr(target / "a/file") == []
    assert "a/three" in names(target)


def test_number_of_entries_is_bounded(bottom, top, target):
    with pytest.raises(StateError, match="more than 5 entries"):
        compose([bottom, top], target, whiteouts=False, limit_entries=5)
    assert not target.exists()


def test_layer_that_is_too_deep(bottom, top, target, tmp_path):
    handle = os.open(top, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=handle)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    try:
        with pytest.raises(StateError, match="nested too deeply"):
            compose([bottom, top], target, whiteouts=False)
        assert changes(top).files == 0
    finally:
        remove_tree(top, within=tmp_path)


def test_layer_has_to_be_there(bottom, target, tmp_path):
    with pytest.raises(StateError, match="cannot be read"):
        compose([bottom, tmp_path / "none"], target, whiteouts=False)


def test_names_of_an_agent_are_shown_harmlessly(bottom, top, target):
    name = "\x1b[2Jx"
    lay(top, f"{name}/file")
    os.setxattr(top / name, "user.overlay.redirect", b"/a")
    with pytest.raises(StateError, match="redirect") as caught:
        compose([bottom, top], target, whiteouts=False)
    assert "\x1b" not in caught.value.message


def test_composing_as_an_ordinary_user(ordinary_user, open_place):
    def check():
        bottom = lay(open_place / "bottom", "a/one", "a/two", "b/three")
        top = lay(open_place / "top", "a/", "b/four")
        whiteout(top / "a/one")
        opaque(top / "b")
        compose([bottom, top], open_place / "plain", whiteouts=False)
        assert names(open_place / "plain") == ["a", "a/two", "b", "b/four"]
        compose([top], open_place / "layer", whiteouts=True, below=[bottom])
        assert dump(open_place / "layer") == dump(top)
        assert is_opaque(open_place / "layer" / "b")

    ordinary_user(check)


# Merging as the kernel does


def in_private_mounts(function):
    """What `function` returns in a child with private mounts, which end with it."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The child runs nothing but the function, and ends without unwinding.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            unshare(CLONE_NEWNS)
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            answer = ("ok", function())
        except BaseException:  # noqa: BLE001 - told to the parent, which fails
            answer = ("failed", traceback.format_exc())
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(answer, stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        kind, value = pickle.load(stream)
    os.waitpid(pid, 0)
    if kind != "ok":
        pytest.fail(value)
    return value


class Overlay:
    """A real overlay: `layers` bottom first, and an upper one to write to if there is a name."""

    def __init__(self, place, layers, upper=None, *, user):
        self.merged = place / "merged"
        self.merged.mkdir(exist_ok=True)
        options = ["lowerdir=" + ":".join(str(layer) for layer in reversed(layers))]
        if upper is not None:
            work = upper.with_name(f"{upper.name}-work")
            upper.mkdir()
            work.mkdir()
            options += [f"upperdir={upper}", f"workdir={work}"]
        if user:
            options.append("userxattr")
        self.command = ["mount", "-t", "overlay", "overlay", "-o", ",".join(options), self.merged]

    def __enter__(self):
        subprocess.run(self.command, check=True)
        return self.merged

    def __exit__(self, *_):
        subprocess.run(["umount", self.merged], check=True)


def mounted(place, layers, *, user):
    with Overlay(place, layers, user=user) as merged:
        return dump(merged)


DEEPER = (1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4)


class Churn:
    """Random work in a tree: what agents and package managers do to theirs."""

    def __init__(self, root, seed):
        self.root = root
        self.random = random.Random(seed)

    def plant(self):
        """Something to work on."""
        for path in itertools.product("abcd", "abcd", "abc"):
            place = os.path.join(self.root, *path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "w", encoding="utf-8") as stream:
                stream.write("/".join(path))
        self.run(60)

    def run(self, count):
        for _ in range(count):
            act = self.random.choice(ACTS)
            # A directory of a lower layer cannot be renamed, what is missing not be removed.
            with suppress(OSError):
                act(self)

    def place(self, depths=(1, 2, 2, 3, 3, 4)):
        """A path that leads through no link: this runs as root, and must not leave its tree."""
        *parents, name = self.random.choices("abcd", k=self.random.choice(depths))
        place = str(self.root)
        for parent in parents:
            place = os.path.join(place, parent)
            if os.path.islink(place):
                raise NotADirectoryError(place)
        return os.path.join(place, name)

    def write(self, how=os.O_TRUNC):
        # A fifo would block.
        how |= os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
        handle = os.open(self.place(), how, 0o644)
        os.write(handle, self.random.randbytes(self.random.choice([0, 10, 5000])))
        os.close(handle)

    def append(self):
        self.write(os.O_APPEND)

    def remove(self):
        place = self.place(DEEPER)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
        else:
            os.unlink(place)

    def replace(self):
        self.remove()
        self.random.choice([self.make, self.write, self.link, self.special])()

    def renew(self):
        """Removes a directory and makes it again: opaque, or over a whiteout."""
        place = self.place(DEEPER)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
            os.mkdir(place)
            os.mknod(os.path.join(place, self.random.choice("abcd")))

    def make(self):
        os.makedirs(self.place())

    def link(self):
        os.symlink(self.random.choice(["a", "b/c", "/missing"]), self.place())

    def hard_link(self):
        os.link(self.place(), self.place(), follow_symlinks=False)

    def rename(self):
        os.rename(self.place(), self.place())

    def mode(self):
        place = self.place()
        if not os.path.islink(place):
            os.chmod(place, self.random.choice([0o600, 0o755, 0o000, 0o4755, 0o1777]))

    def owner(self):
        os.chown(self.place(), 1000, self.random.choice([0, 1000]), follow_symlinks=False)

    def attribute(self):
        os.setxattr(self.place(), "user.note", self.random.randbytes(3), follow_symlinks=False)

    def touch(self):
        moment = self.random.randrange(10**18)
        os.utime(self.place(), ns=(moment, moment), follow_symlinks=False)

    def special(self):
        os.mkfifo(self.place())


ACTS = [
    Churn.write, Churn.write, Churn.write, Churn.append, Churn.remove, Churn.remove, Churn.replace,
    Churn.renew, Churn.renew, Churn.make, Churn.make, Churn.make, Churn.link, Churn.hard_link,
    Churn.rename, Churn.rename, Churn.mode, Churn.owner, Churn.attribute, Churn.touch,
    Churn.special,
]  # fmt: skip


def without_ghosts(found):
    return {path: entry for path, entry in found.items() if entry != "a ghost"}


@needs_root
@pytest.mark.parametrize("user", [True, False], ids=["userxattr", "trusted"])
@pytest.mark.parametrize("seed", range(15))
def test_composition_is_what_the_kernel_shows(tmp_path, seed, user):
    base = tmp_path / "base"
    base.mkdir()
    Churn(base, seed).plant()
    uppers = [tmp_path / f"upper-{number}" for number in range(4)]

    def work():
        lower = [base]
        for number, upper in enumerate(uppers):
            with Overlay(tmp_path, lower, upper, user=user) as merged:
                Churn(merged, f"{seed}-{number}").run(60)
                expected = dump(merged)
            lower.append(upper)
        assert expected == mounted(tmp_path, lower, user=user)
        compose(lower, tmp_path / "plain", whiteouts=False)
        assert dump(tmp_path / "plain") == expected
        for split in range(1, 4):
            below, above = lower[:split], lower[split:]
            layer, alone = tmp_path / f"layer-{split}", tmp_path / f"alone-{split}"
            compose(above, layer, whiteouts=True, below=below)
            assert mounted(tmp_path, [*below, layer], user=user) == expected
            compose(above, alone, whiteouts=True)
            seen = mounted(tmp_path, [*below, alone], user=user)
            assert without_ghosts(seen) == expected
            # And what was composed can be composed.
            compose([*below, alone], tmp_path / f"again-{split}", whiteouts=False)
            assert dump(tmp_path / f"again-{split}") == expected

    in_private_mounts(work)


@needs_root
@pytest.mark.parametrize("seed", range(15))
def test_deltas_are_what_the_kernel_shows(tmp_path, seed):
    source = tmp_path / "source"
    source.mkdir()
    churn = Churn(source, seed)
    churn.plant()

    def work():
        entries = scan(source).entries
        copy_entries(source, tmp_path / "base", entries)
        layers = [tmp_path / "base"]
        for number in range(4):
            churn.run(60)
            new = scan(source).entries
            layers.append(tmp_path / f"delta-{number}")
            copy_changes(source, layers[-1], difference(entries, new), new)
            entries = new
            seen = mounted(tmp_path, layers, user=bool(seed % 2))
            assert "a ghost" not in seen.values()
            assert without_times(seen) == without_times(dump(source))
        compose(layers, tmp_path / "plain", whiteouts=False)
        assert dump(tmp_path / "plain") == seen
        compose(layers[1:], tmp_path / "layer", whiteouts=True, below=layers[:1])
        assert mounted(tmp_path, [layers[0], tmp_path / "layer"], user=bool(seed % 2)) == seen

    in_private_mounts(work)


def without_times(found):
    """A directory's time alone is no change, and so it may be older; links and owners likewise."""
    return {
        path: (entry[0], entry[3], None if stat.S_ISDIR(entry[0]) else entry[1])
        for path, entry in found.items()
    }


# Summaries


def test_changes_of_a_layer(top):
    lay(top, "a/b/one", "a/two", "empty/")
    os.link(top / "a/two", top / "a/linked")
    os.symlink("x", top / "link")
    whiteout(top / "a/gone")
    found = changes(top)
    assert found.files == 4
    assert found.removed == 1
    assert found.bytes == sum((top / path).stat().st_blocks * 512 for path in ("a/b/one", "a/two"))
    assert found.paths == ["link", "a/gone", "a/linked", "a/two", "a/b/one"]
    assert found.is_complete
    assert changes(top, limit_paths=2).paths == ["link", "a/gone"]
    assert changes(top, limit_paths=2).files == 4


def test_changes_visit_no_more_than_the_limit(top):
    lay(top, *(f"{number:03}" for number in range(50)))
    found = changes(top, limit_entries=10)
    assert found.files == 10
    assert not found.is_complete
    assert changes(top, limit_entries=50).is_complete


def test_changes_of_nothing(tmp_path):
    assert changes(tmp_path / "none") == (0, 0, 0, [], True)
