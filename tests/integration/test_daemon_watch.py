"""The daemon freezes a project in the background, and knows what has changed in its checkout."""

from __future__ import annotations

import json

import pytest

from atoll.host.tree.tree_watch import WatchLost, require_local
from persons import as_user

FILE = "node_modules/pkg/lib/file.js"


@pytest.fixture
def watched(person):
    try:
        require_local(str(person.repo))
    except WatchLost as reason:
        pytest.skip(f"the directory for tests cannot be watched: {reason}")
    del person.env["ATOLL_WATCH"]
    person.wants_daemon()
    person.write({".gitignore": "node_modules/\n"})
    person.commit("ignored")
    person.write({FILE: "one\n", "node_modules/pkg/other.js": "other\n"})
    return person


def carried(person):
    """What was frozen last; None when nothing was."""
    for path in person.home.glob("pools/*/carried.json"):
        return json.loads(path.read_text())
    return None


def watch_of(person):
    """The watch under which the project was frozen last, if it is the daemon's and all is done."""
    # It fails while the daemon is being started, for which nothing waits.
    shown = person.atoll("daemon", "status", "--json", check=False)
    status = json.loads(shown.stdout)["data"]
    last = carried(person)
    is_done = status.get("watched") and not status.get("freezing")
    return last["watch"] if is_done and last is not None else None


def made_without_walk(person):
    return len(list(person.home.glob("pools/*/layers/*/changes")))


def append(person, text):
    """As an editor does that writes in place: no directory changes."""
    with (person.repo / FILE).open("a") as stream:
        stream.write(text)


@as_user
def test_project_is_frozen_after_init_and_new_needs_no_walk(watched, wait_for):
    watched.atoll("init")
    wait_for(lambda: watch_of(watched), what="the freeze in the background", timeout_s=60)
    append(watched, "two\n")
    watched.atoll("new", "x")
    assert watched.sh("x", f"cat {FILE}") == "one\ntwo\n"
    assert made_without_walk(watched) == 1
    watched.atoll("new", "y")
    assert watched.sh("y", f"cat {FILE}") == "one\ntwo\n"
    assert made_without_walk(watched) == 1


@as_user
def test_edit_in_place_after_a_directory_was_moved(watched, wait_for):
    watched.atoll("init")
    wait_for(lambda: watch_of(watched), what="the freeze in the background", timeout_s=60)
    (watched.repo / "node_modules/pkg/lib").rename(watched.repo / "node_modules/pkg/moved")
    (watched.repo / "node_modules/pkg/moved").rename(watched.repo / "node_modules/pkg/lib")
    watched.atoll("new", "x")
    append(watched, "two\n")
    watched.atoll("new", "y")
    assert watched.sh("y", f"cat {FILE}") == "one\ntwo\n"


def test_edit_in_place_before_the_watch_was_lost(watched, wait_for):
    watched.atoll("init")
    wait_for(lambda: watch_of(watched), what="the freeze in the background", timeout_s=60)
    append(watched, "two\n")
    watched.atoll("daemon", "stop")
    watched.atoll("new", "x")
    assert watched.sh("x", f"cat {FILE}") == "one\ntwo\n"


def test_change_while_there_was_no_daemon_is_found_by_the_next_one(watched, wait_for):
    watched.atoll("init")
    first = wait_for(lambda: watch_of(watched), what="the freeze in the background", timeout_s=60)
    watched.atoll("daemon", "stop")
    append(watched, "unseen\n")
    watched.atoll("new", "x")
    watched.sh("x", "true")
    wait_for(
        lambda: watch_of(watched) not in (None, "", first), what="the next freeze", timeout_s=60
    )
    watched.atoll("new", "y")
    assert watched.sh("y", f"cat {FILE}") == "one\nunseen\n"
    assert made_without_walk(watched) == 0


def test_switched_off_nothing_is_watched_and_no_daemon_starts(watched):
    watched.env["ATOLL_WATCH"] = "off"
    watched.atoll("init")
    watched.atoll("new", "x")
    assert "not running" in watched.atoll("daemon", "status", check=False).stderr
    assert not (watched.home / "daemon" / "watched").exists()
    watched.sh("x", "true")
    assert watched.answer("daemon", "status")["watched"] == {}
    assert carried(watched)["watch"] == ""
