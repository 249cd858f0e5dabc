"""Levels with layers from the command line, as their user meets them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from matches import matching

ATOLL = (sys.executable, "-m", "atoll")


@pytest.fixture(autouse=True, params=["clone", "sandbox"])
def level(request, monkeypatch, atoll_home):
    """What holds at level `clone` holds behind walls, too."""
    monkeypatch.setenv("ATOLL_LEVEL", request.param)
    return request.param


@pytest.fixture
def shop(make_repo):
    """A project with dependencies, a secret and something that git cannot carry."""
    repo = make_repo(
        {"app.py": "print('hello')\n", ".gitignore": "node_modules/\n.env\n*.log\n"}, name="shop"
    )
    package = repo / "node_modules" / "left-pad"
    package.mkdir(parents=True)
    (package / "index.js").write_text("module.exports = 1\n")
    (repo / ".env").write_text("TOKEN=canary\n")
    (repo / "debug.log").write_text("log\n")
    return repo


def eventually(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_new_capsule_is_complete_and_private(atoll, shop):
    atoll("new", "x", cwd=shop)
    script = "cat node_modules/left-pad/index.js debug.log; ls -a; git status --porcelain; pwd"
    said = atoll("run", "x", "--", "sh", "-c", script, cwd=shop).stdout
    assert "module.exports" in said
    assert "log\n" in said
    assert ".env\n" not in said
    assert said.endswith(f"\n{shop}\n")
    atoll("run", "x", "--", "sh", "-c", "echo 2 > node_modules/left-pad/index.js", cwd=shop)
    assert (shop / "node_modules/left-pad/index.js").read_text() == "module.exports = 1\n"


def test_what_was_left_out_is_reported(atoll, shop):
    assert "no base exists yet" in atoll("show", "--base", cwd=shop).stderr
    atoll("warm", cwd=shop)
    base = json.loads(atoll("show", "--base", "--json", cwd=shop).stdout)["data"]
    assert [e["path"] for e in base["left_out"]] == [".env"]
    assert {layer["kind"] for layer in base["layers"]} == {"commit", "git", "dependencies"}


def test_changed_project_makes_a_delta(atoll, shop, git, atoll_home):
    atoll("warm", cwd=shop)
    layers = set(os.listdir(next(atoll_home.glob("pools/*/layers"))))
    (shop / "node_modules" / "right-pad").mkdir()
    (shop / "node_modules" / "right-pad" / "index.js").write_text("new\n")
    (shop / "app.py").write_text("print('changed')\n")
    git("commit", "-qam", "two", cwd=shop)
    atoll("new", "x", cwd=shop)
    said = atoll("run", "x", "--", "sh", "-c", "cat app.py node_modules/*/index.js; git status -s",
                 cwd=shop).stdout  # fmt: skip
    assert said == "print('changed')\nmodule.exports = 1\nnew\n"
    pool = next(atoll_home.glob("pools/*/layers"))
    fresh = [p for p in pool.iterdir() if p.name not in layers and p.name[0] in "cd"]
    for layer in fresh:
        about = json.loads((layer / "layer.json").read_text())
        assert about["below"], f"{about['about']} was copied whole"
        held = [p.name for p in (layer / "tree").rglob("*") if p.is_file() and p.name != "index"]
        assert held in (["app.py"], ["index.js"])


def test_dirty_brings_what_is_not_committed(atoll, shop):
    (shop / "app.py").write_text("print('dirty')\n")
    (shop / "fresh.txt").write_text("fresh\n")
    (shop / "gone.txt").write_text("")
    atoll("new", "clean", cwd=shop)
    atoll("new", "dirty", "--dirty", cwd=shop)
    script = ("sh", "-c", "cat app.py; ls fresh.txt; git status --porcelain")
    assert "hello" in atoll("run", "clean", "--", *script, cwd=shop, check=False).stdout
    said = atoll("run", "dirty", "--", *script, cwd=shop).stdout
    assert "print('dirty')\nfresh.txt\n M app.py\n?? fresh.txt" in said


def test_path_shows_live_content(atoll, shop):
    atoll("new", "x", cwd=shop)
    place = Path(atoll("path", "x", cwd=shop).stdout.strip())
    atoll("run", "x", "--", "sh", "-c", "echo live > seen.txt", cwd=shop)
    assert (place / "seen.txt").read_text() == "live\n"
    (place / "written.txt").write_text("from outside\n")
    assert atoll("run", "x", "--", "cat", "written.txt", cwd=shop).stdout == "from outside\n"
    assert not (shop / "seen.txt").exists()
    assert not (shop / "written.txt").exists()


def test_edit_has_the_owner_s_environment_in_the_capsule_s_view(atoll, shop, monkeypatch, level):
    monkeypatch.setenv("MY_EDITOR_SETTING", "kept")
    atoll("new", "x", cwd=shop)
    if level == "sandbox" and os.geteuid() == 0:
        refused = atoll("edit", "x", "--", "touch", "app.py", cwd=shop, check=False)
        assert (refused.returncode, "file ownership" in refused.stderr) == (4, True)
        return
    atoll("run", "x", "--", "sh", "-c", "echo inside > app.py", cwd=shop)
    said = atoll("edit", "x", "--", "sh", "-c", "echo $MY_EDITOR_SETTING; cat app.py", cwd=shop)
    assert said.stdout == "kept\ninside\n"


def test_background_run_is_brought_out_when_it_ends(atoll, shop, git):
    atoll("new", "x", cwd=shop)
    atoll("run", "x", "-d", "--", "sh", "-c", "sleep 0.5; echo 1 > f; git add f; git commit -qm f",
          cwd=shop)  # fmt: skip
    eventually(lambda: "atoll/x" in git("branch", "--list", "atoll/x", cwd=shop))
    assert git("log", "-1", "--format=%s", "atoll/x", cwd=shop) == "f\n"


def test_snapshots_are_taken_before_every_run(atoll, shop):
    atoll("new", "x", cwd=shop)
    atoll("snapshot", "x", "--auto", cwd=shop)
    for number in range(3):
        atoll("run", "x", "--", "sh", "-c", f"echo {number} > f", cwd=shop)
    found = json.loads(atoll("snapshots", "x", "--json", cwd=shop).stdout)["data"]
    assert [s["automatic"] for s in found] == [False, True, True]
    atoll("rollback", "x", str(found[1]["number"]), cwd=shop)
    assert atoll("run", "x", "--", "cat", "f", cwd=shop).stdout == "0\n"


def test_home_inside_of_the_project_is_refused(atoll, shop, monkeypatch):
    monkeypatch.setenv("ATOLL_HOME", str(shop / "node_modules" / "home"))
    result = atoll("new", "x", cwd=shop, check=False)
    assert result.returncode == 3
    assert "is inside the project" in result.stderr


def test_damaged_layer_is_found_and_made_again(atoll, shop, atoll_home):
    atoll("warm", cwd=shop)
    [broken] = atoll_home.glob("pools/*/layers/d*/tree/workspace/node_modules/left-pad/index.js")
    broken.write_text("tampered\n")
    result = atoll("warm", "--check", cwd=shop, check=False)
    assert result.returncode == 1
    assert "left-pad/index.js" in result.stdout
    atoll("new", "x", cwd=shop)
    said = atoll("run", "x", "--", "cat", "node_modules/left-pad/index.js", cwd=shop).stdout
    assert said == "module.exports = 1\n"
    assert atoll("warm", "--check", cwd=shop).returncode == 0


def test_ctrl_c_in_the_middle_of_the_first_freeze_leaves_nothing(shop, atoll_home, start_cli):
    for number in range(16000):
        place = shop / "node_modules" / f"p{number % 40}" / f"f{number}"
        place.parent.mkdir(exist_ok=True)
        place.write_text("x" * 2000)
    child = start_cli("new", "x", cwd=shop)
    eventually(lambda: matching(atoll_home, "pools/*/layers/.new-*/tree/workspace/node_modules/p*"))
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == 130
    assert list(atoll_home.glob("pools/*/layers/.new-*")) == []
    assert list(atoll_home.glob("pools/*/layers/d*")) == []
