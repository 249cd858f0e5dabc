"""Layers that are refreshed from the watch's list of changes equal those that a walk makes."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

import pytest

from atoll.drivers.layers import base_check, layer_builder, refresh
from atoll.drivers.layers.deltas import DEEPEST, find_manifest
from atoll.drivers.layers.dependency_layers import WatchedChanges, load_carried
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.layers.repository import Source, load_refs
from atoll.host import git
from atoll.host.tree import manifests
from atoll.host.tree.tree_watch import TreeWatch, WatchLost, require_local
from atoll.model.plan import FileSelection
from present import present

SELECTION = FileSelection(carry=None, never=())
WALK = "walk"


class Checkout:
    """A checkout with dependencies, the watch on it, and the layers made of it."""

    def __init__(self, root: Path, pool: Pool) -> None:
        self.root = root
        self.pool = pool
        self.watch = TreeWatch(str(root), limit=1_000)
        self.name = "one"
        self.walk()

    def commit(self):
        return git.find_commit("HEAD", cwd=str(self.root))

    def walk(self):
        watched = WatchedChanges(self.name, self.watch.changes(-1).position)
        order = layer_builder.BuildOrder(self.commit(), deltas=True, thorough=True, watched=watched)
        return layer_builder.freeze_carried(self.pool, str(self.root), SELECTION, order)

    def refresh(self):
        """As `new` does it: without a walk if that is possible. Returns how it was done."""
        known = present(load_carried(self.pool))
        try:
            found = self.watch.changes(known.position)
        except WatchLost:
            self.watch.close()
            self.watch = TreeWatch(str(self.root), limit=1_000)
            self.name += "+"
            return WALK, self.walk()
        watched = WatchedChanges(self.name, found.position, found.paths, is_continued=True)
        git_dir = str(self.root / ".git")
        source = Source(
            checkout=str(self.root),
            repository=git_dir,
            git_dir=git_dir,
            refs=load_refs(str(self.root)),
            commit=self.commit(),
        )
        made = refresh.refresh_carried(self.pool, source, SELECTION, known, watched)
        return ("list", made) if made is not None else (WALK, self.walk())


@pytest.fixture
def checkout(tmp_path, make_repo):
    root = make_repo({".gitignore": "node_modules/\n*.log\n", "src/main.js": "main\n"})
    try:
        require_local(str(root))
    except WatchLost as reason:
        pytest.skip(f"the directory for tests cannot be watched: {reason}")
    for package in ("a", "b", "c"):
        place = root / "node_modules" / package / "lib"
        place.mkdir(parents=True)
        for number in range(4):
            (place / f"f{number}.js").write_text(f"{package} {number}\n")
    (root / "src" / "old.log").write_text("log\n")
    pool = Pool(tmp_path / "home" / "pools" / "one")
    pool.make()
    made = Checkout(root, pool)
    yield made
    made.watch.close()


def shown(pool, layers):
    """What a stack of layers shows, as overlayfs would."""
    found: dict[str, object] = {}
    for layer in layers:
        tree = pool.tree(layer) / WORKSPACE
        for path, status in sorted(manifests.walk(tree)):
            if stat.S_ISCHR(status.st_mode) or not stat.S_ISDIR(status.st_mode):
                for below in [p for p in found if p == path or p.startswith(f"{path}/")]:
                    del found[below]
            if not stat.S_ISCHR(status.st_mode):
                found[path] = content(tree / path)
    return found


def content(path):
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        return ("directory", stat.S_IMODE(status.st_mode))
    if stat.S_ISLNK(status.st_mode):
        return ("link", os.readlink(path))
    return ("file", stat.S_IMODE(status.st_mode), status.st_mtime_ns, path.read_bytes())


def expected(root):
    """What of the checkout is carried."""
    found = {}
    for top in ("node_modules", "src"):
        for path, status in manifests.walk(root / top):
            name = f"{top}/{path}"
            is_log = path.endswith(".log") and not stat.S_ISDIR(status.st_mode)
            if top == "node_modules" or is_log:
                found[name] = content(root / name)
    return found


def files_in(shown_entries):
    return {
        path: entry
        for path, entry in shown_entries.items()
        if path.startswith("node_modules/") or entry[0] != "directory"
    }


def require_equal(checkout, made):
    assert files_in(shown(checkout.pool, made.layers)) == files_in(expected(checkout.root))
    for part in made.parts:
        # What the next walk compares with is as a walk would have found it now.
        entries = manifests.scan(
            checkout.root, below=[part.name] if part.name != "/" else made.rest
        )
        known = present(find_manifest(checkout.pool, part.layers))
        assert manifests.difference(known, entries.entries, strict=True) == ([], [])


# One change each


def test_nothing_changed(checkout):
    before = load_carried(checkout.pool)
    assert checkout.refresh() == ("list", before)


@pytest.mark.parametrize(
    "act",
    [
        lambda root: (root / "node_modules/a/lib/f1.js").write_text("edited in place\n"),
        lambda root: (root / "node_modules/a/lib/new.js").write_text("new\n"),
        lambda root: (root / "node_modules/a/lib/f2.js").unlink(),
        lambda root: (root / "node_modules/a/lib/f3.js").chmod(0o600),
        lambda root: (root / "node_modules/a/lib/f1.js").rename(root / "node_modules/b/moved.js"),
        lambda root: os.symlink("f1.js", root / "node_modules/a/lib/link.js"),
        lambda root: (root / "src/old.log").write_text("another line\n"),
    ],
    ids=["edited", "new", "removed", "mode", "renamed", "link", "rest"],
)
def test_change_of_a_file_needs_no_walk(checkout, act):
    layers = present(load_carried(checkout.pool)).layers
    act(checkout.root)
    how, made = checkout.refresh()
    assert how == "list"
    assert len(made.layers) == len(layers) + 1
    require_equal(checkout, made)
    assert load_carried(checkout.pool) == made


def test_change_of_a_tracked_file_changes_nothing(checkout):
    before = present(load_carried(checkout.pool))
    (checkout.root / "src/main.js").write_text("edited\n")
    (checkout.root / "src/untracked.js").write_text("untracked\n")
    how, made = checkout.refresh()
    assert (how, made.layers) == ("list", before.layers)
    assert checkout.refresh() == ("list", made)


@pytest.mark.parametrize(
    "act",
    [
        lambda root: (root / "node_modules/d").mkdir(),
        lambda root: shutil.rmtree(root / "node_modules/b"),
        lambda root: (root / "node_modules/b").rename(root / "node_modules/e"),
        lambda root: (root / "src/new.log").write_text("ignored, and new\n"),
        lambda root: (root / "src/old.log").unlink(),
        lambda root: (root / ".gitignore").write_text("node_modules/\n*.log\n*.tmp\n"),
        lambda root: (root / "node_modules/a/.env").write_text("TOKEN=1\n"),
        lambda root: (root / "node_modules/a/lib/f1.js").chmod(0o755)
        or (root / "node_modules/a/lib").chmod(0o700),
        lambda root: [(root / f"src/{n}.txt").touch() for n in range(300)],
    ],
    ids=[
        "directory", "removed directory", "renamed directory", "newly ignored", "removed rest",
        "rules", "secret", "mode of a directory", "many",
    ],
)  # fmt: skip
def test_everything_else_is_walked(checkout, act):
    act(checkout.root)
    how, made = checkout.refresh()
    assert how == WALK
    if not (checkout.root / "node_modules/a/.env").exists():
        require_equal(checkout, made)
    else:
        assert "node_modules/a/.env" not in shown(checkout.pool, made.layers)


def test_file_with_another_name_in_the_tree_is_walked(checkout):
    modules = checkout.root / "node_modules"
    os.link(modules / "a/lib/f1.js", modules / "b/lib/alias.js")
    checkout.walk()
    (modules / "a/lib/f1.js").write_text("written under one name, changed under two\n")
    how, made = checkout.refresh()
    assert how == WALK
    require_equal(checkout, made)


def test_deltas_are_made_one_before_they_are_many(checkout):
    lowest = present(load_carried(checkout.pool)).parts[0].layers[0]
    for number in range(DEEPEST + 4):
        (checkout.root / f"node_modules/a/lib/f{number % 4}.js").write_text(f"change {number}\n")
        _, made = checkout.refresh()
        require_equal(checkout, made)
        layers = made.parts[0].layers
        assert layers[0] == lowest, "it was copied whole again"
        assert len(layers) <= DEEPEST + 1
    made = checkout.walk()
    assert len(made.parts[0].layers) <= DEEPEST // 2 + 1
    require_equal(checkout, made)


# Any changes


def random_change(dice, root):
    modules = root / "node_modules"
    places = [p for p in [modules, *modules.rglob("*")] if p.is_dir() and not p.is_symlink()]
    names = [p for p in modules.rglob("*") if p.is_file() or p.is_symlink()]
    place = dice.choice(places)
    fresh = place / f"n{dice.randrange(10**9)}"
    acts = [
        lambda: fresh.write_text(f"new {dice.random()}"),
        lambda: dice.choice(names).unlink(),
        lambda: fresh.symlink_to("anywhere"),
        lambda: dice.choice(names).rename(fresh),
        lambda: (root / "src" / "main.js").write_text(f"{dice.random()}"),
        lambda: (root / "src" / f"{dice.randrange(3)}.log").write_text(f"{dice.random()}"),
        *(3 * [lambda: _append(dice.choice(names))]),
    ]
    if dice.random() < 0.15:
        acts = [
            fresh.mkdir,
            lambda: place.rename(fresh) if place != modules else None,
            lambda: shutil.rmtree(place) if place != modules else None,
            lambda: os.link(dice.choice([n for n in names if n.is_file()]), modules / fresh.name),
        ]
    if names:
        try:
            dice.choice(acts)()
        except (OSError, IndexError):
            # Such as a directory that would be moved into itself.
            return


def _append(path):
    if path.is_file():
        with path.open("a") as stream:
            stream.write("more\n")


@pytest.mark.parametrize("seed", range(6))
def test_any_changes_give_what_a_walk_gives(checkout, seed):
    dice = random.Random(seed)
    ways = set()
    for _ in range(12):
        for _ in range(dice.randrange(1, 4)):
            random_change(dice, checkout.root)
        how, made = checkout.refresh()
        ways.add(how)
        require_equal(checkout, made)
    assert "list" in ways


# Contents that change while size and mtime stay, as with installers that set constant mtimes


def replace_same_stamp(path, text, *, in_place=True):
    """Gives a file another content of the same length and the mtime of before."""
    status = os.stat(path)
    assert len(text) == status.st_size
    if not in_place:
        path.unlink()
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "replaced"])
def test_walk_finds_a_change_of_the_same_size_and_mtime(checkout, in_place):
    replace_same_stamp(checkout.root / "node_modules/a/lib/f1.js", "a 9\n", in_place=in_place)
    made = checkout.walk()
    require_equal(checkout, made)
    # Nothing has changed since: no further layer.
    assert checkout.walk().layers == made.layers


def test_package_laid_down_anew_with_the_same_stamps_is_copied(checkout):
    package = checkout.root / "node_modules/a"
    times = {path: os.stat(path) for path in [package, *package.rglob("*")]}
    shutil.rmtree(package)
    (package / "lib").mkdir(parents=True)
    for number in range(4):
        (package / f"lib/f{number}.js").write_text(f"A {number}\n")
    for path, status in times.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    require_equal(checkout, checkout.walk())


def test_change_of_the_same_stamp_survives_the_collapse_of_deltas(checkout):
    replace_same_stamp(checkout.root / "node_modules/a/lib/f1.js", "a 9\n")
    for number in range(DEEPEST + 3):
        (checkout.root / "node_modules/b/lib/f1.js").write_text(f"b {number}\n")
        _, made = checkout.refresh()
        require_equal(checkout, made)


def test_collapse_takes_what_a_dropped_delta_holds(checkout, monkeypatch):
    """Also without a changed stamp: the watch reports writes within one clock tick."""
    same = manifests.difference
    monkeypatch.setattr(manifests, "difference", lambda old, new, **_: same(old, new))
    test_change_of_the_same_stamp_survives_the_collapse_of_deltas(checkout)


def test_check_reports_a_change_of_the_same_size_and_mtime(checkout):
    made = present(load_carried(checkout.pool))
    frozen = base_check.FrozenFiles(checkout.pool, (), made, None)

    def outdated():
        return base_check.find_gaps(frozen, str(checkout.root), SELECTION, is_fresh=True).outdated

    assert outdated() == []
    replace_same_stamp(checkout.root / "node_modules/a/lib/f1.js", "a 9\n")
    assert outdated() == ["node_modules/a/lib/f1.js"]
