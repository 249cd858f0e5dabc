"""The watch on a checkout, on the real kernel: it reports every change, or that it cannot."""

from __future__ import annotations

import os
import shutil

import pytest

from atoll.host.tree import tree_watch
from atoll.host.tree.tree_watch import TreeWatch, WatchLost, require_local, watch_limit


@pytest.fixture
def root(tmp_path):
    made = tmp_path / "tree"
    (made / "src" / "deep").mkdir(parents=True)
    (made / ".git" / "objects").mkdir(parents=True)
    (made / "src" / "deep" / "file").write_text("one")
    try:
        require_local(str(made))
    except WatchLost as reason:
        pytest.skip(f"the directory for tests cannot be watched: {reason}")
    return made


@pytest.fixture
def watch(root):
    made = TreeWatch(str(root), limit=100)
    yield made
    made.close()


def changed(watch, since=0):
    return set(watch.changes(since).paths)


def test_every_directory_but_gits_is_watched(watch):
    assert len(watch) == 3


def test_what_was_done_before_the_question_is_in_the_answer(root, watch):
    (root / "src" / "deep" / "file").write_text("two")
    (root / "src" / "new").write_text("new")
    os.symlink("new", root / "src" / "link")
    assert changed(watch) == {"src/deep/file", "src/new", "src/link"}


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.chmod(0o600),
        lambda path: path.unlink(),
        lambda path: os.utime(path, (1, 1)),
        lambda path: path.rename(path.with_name("other")),
        lambda path: os.truncate(path, 1),
    ],
    ids=["mode", "removed", "time", "renamed", "shortened"],
)
def test_change_of_a_file(root, watch, act):
    act(root / "src" / "deep" / "file")
    assert "src/deep/file" in changed(watch)


def test_only_what_came_after_the_position(root, watch):
    (root / "a").write_text("a")
    first = watch.changes(0)
    (root / "b").write_text("b")
    second = watch.changes(first.position)
    assert second.paths == ("b",)
    assert watch.changes(second.position).paths == ()
    assert changed(watch) == {"a", "b"}


def test_position_of_the_future_is_unknown(watch):
    assert watch.changes(5).paths is None
    assert watch.changes(-1).paths is None


def test_new_directory_is_reported_and_watched_with_all_below_it(root, watch):
    (root / "src" / "made" / "below").mkdir(parents=True)
    found = watch.changes(0)
    assert "src/made/" in found.paths
    (root / "src" / "made" / "below" / "file").write_text("x")
    assert "src/made/below/file" in changed(watch, found.position)


def test_removed_directory_is_reported(root, watch):
    shutil.rmtree(root / "src" / "deep")
    assert "src/deep/" in changed(watch)


def test_git_at_work_is_not_reported(root, watch):
    (root / ".git" / "index").write_text("x")
    assert changed(watch) == set()


def test_skipped_directory_is_not_watched(root):
    watch = TreeWatch(str(root), limit=100, skipped=(str(root / "src"),))
    try:
        (root / "src" / "deep" / "file").write_text("two")
        assert changed(watch) == set()
    finally:
        watch.close()


def test_link_to_a_directory_is_not_followed(root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    os.symlink(outside, root / "src" / "out")
    watch = TreeWatch(str(root), limit=100)
    try:
        (outside / "file").write_text("x")
        assert changed(watch) == set()
    finally:
        watch.close()


def test_many_changes_are_not_kept(root, watch, monkeypatch):
    monkeypatch.setattr(tree_watch, "_PATHS", 3)
    for number in range(5):
        (root / f"f{number}").write_text("x")
    found = watch.changes(0)
    assert found.paths is None
    (root / "later").write_text("x")
    assert "later" in changed(watch, found.position)


def test_overflow_of_the_queue_is_a_loss(root, watch):
    most = int((tree_watch._LIMIT_FILE.parent / "max_queued_events").read_text())
    if most > 50_000:
        pytest.skip("the queue for events is too long to be filled here")
    one, two = root / "one", root / "two"
    one.touch()
    two.touch()
    for _ in range(most // 2 + 10):
        os.utime(one)
        os.utime(two)
    with pytest.raises(WatchLost, match="lost"):
        watch.drain()


def test_renamed_directory_is_a_loss(root, watch):
    (root / "src" / "deep").rename(root / "src" / "moved")
    with pytest.raises(WatchLost, match="moved"):
        watch.drain()


@pytest.mark.parametrize("above", [False, True])
def test_another_directory_in_its_place_is_a_loss(tmp_path, root, watch, above):
    place = tmp_path if above else root
    aside = place.with_name(f"{place.name}-aside")
    place.rename(aside)
    try:
        root.mkdir(parents=True)
        with pytest.raises(WatchLost):
            watch.drain()
    finally:
        shutil.rmtree(place)
        aside.rename(place)


def test_removed_checkout_is_a_loss(root, watch):
    shutil.rmtree(root)
    with pytest.raises(WatchLost):
        watch.drain()


def test_too_many_directories_are_not_watched(root):
    with pytest.raises(WatchLost, match="more than 2 directories"):
        TreeWatch(str(root), limit=2)


def test_too_many_new_directories_are_a_loss(root):
    watch = TreeWatch(str(root), limit=3)
    try:
        (root / "one-more").mkdir()
        with pytest.raises(WatchLost, match="more than 3"):
            watch.drain()
    finally:
        watch.close()


def test_limit_leaves_most_watches_to_others():
    allowed = int(tree_watch._LIMIT_FILE.read_text())
    assert 0 < watch_limit() <= allowed // 4


@pytest.mark.parametrize("kind", ["nfs4", "9p", "fuse.sshfs", "cifs", "overlay"])
def test_only_local_file_systems_are_watched(root, monkeypatch, kind):
    monkeypatch.setattr(tree_watch, "_mounts", lambda: [("/", "ext4"), (str(root), kind)])
    with pytest.raises(WatchLost, match=kind):
        TreeWatch(str(root), limit=100)


def test_file_system_mounted_in_the_tree_is_a_loss(root, watch, monkeypatch):
    mounts = [("/", "ext4"), (str(root / "src"), "ext4")]
    monkeypatch.setattr(tree_watch, "_mounts", lambda: mounts)
    with pytest.raises(WatchLost, match="mount point"):
        watch.drain()


def test_descriptor_is_closed_after_a_failure(root):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WatchLost):
        TreeWatch(str(root), limit=1)
    assert len(os.listdir("/proc/self/fd")) == before
