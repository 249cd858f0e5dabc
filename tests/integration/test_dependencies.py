"""Dependency directories arrive whole, whatever the project's ignore rules say, and stay so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import atoll as library


@pytest.fixture(autouse=True)
def level(atoll_home, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")


@pytest.fixture
def shop(make_repo):
    """A project that ignores byte code and nothing else, as flask does."""
    return make_repo(
        files={
            "src/app.py": "1\n",
            "src/deep/er/x.py": "1\n",
            "web/package.json": "{}\n",
            ".gitignore": "__pycache__/\n*.bin\n",
        },
        name="shop",
    )


@pytest.fixture
def starts(shop):
    """`starts("a")`: a new capsule of the project; each asks anew, as a command does."""
    opened = []

    def start(name, **options):
        opened.append(library.open_project(shop, background=False))
        return opened[-1].new(name, **options)

    yield start
    for project in opened[-1:]:
        for capsule in project.capsules():
            capsule.remove(force=True)
    for project in opened:
        project.session.forkserver.close()
        project.session.store.close()


def plant(root, *paths, content="1\n"):
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


def say(capsule, script):
    result = capsule.run(["sh", "-euc", script])
    assert result.exit_code == 0, (result.stdout + result.stderr).decode()
    return result.stdout.decode()


def listed(capsule, *places):
    return set(say(capsule, f"find {' '.join(places)} -type f 2>&1 || true").split("\n")) - {""}


def carried_of(atoll_home):
    [path] = atoll_home.glob("pools/*/carried.json")
    return path, json.loads(path.read_text())


def test_virtual_environment_that_is_not_ignored_works(shop, starts, git, atoll):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=shop, check=True)
    plant(shop, ".venv/lib/__pycache__/x.pyc", "web/node_modules/left-pad/package.json")
    capsule = starts("x")
    script = "import sys; print(sys.prefix, sys.prefix != sys.base_prefix)"
    assert say(capsule, f".venv/bin/python -c '{script}'") == f"{shop}/.venv True\n"
    assert listed(capsule, "web/node_modules") >= {"web/node_modules/left-pad/package.json"}
    # Git outside shows both as untracked; a commit of everything inside must not take them along.
    assert set(git("status", "--short", cwd=shop).split()) >= {".venv/", "web/node_modules/"}
    assert say(capsule, "git status --porcelain") == ""
    say(capsule, "echo 1 > .venv/installed; echo 1 > web/node_modules/installed; echo 1 > src/new")
    assert capsule.work().render() == ["1 untracked: `src/new`"]
    atoll("commit", "x", "-m", "all", cwd=shop)
    assert git("show", "--format=", "--name-only", "atoll/x", cwd=shop) == "src/new\n"


def test_dirty_brings_them_once(shop, starts, atoll_home):
    plant(shop, ".venv/pyvenv.cfg", "notes.txt")
    capsule = starts("x", dirty=True)
    assert listed(capsule, ".venv", "notes.txt") == {
        ".venv/pyvenv.cfg",
        ".venv/.gitignore",
        "notes.txt",
    }
    assert say(capsule, "git status --porcelain") == "?? notes.txt\n"
    about = [json.loads(p.read_text()) for p in atoll_home.glob("pools/*/layers/*/layer.json")]
    assert [one["files"] for one in about if one["kind"] == "dirty"] == [1]


def test_other_untracked_directories_stay_out(shop, starts):
    plant(shop, "build/main.c", "vendor/ours.php", "draft/node_modules/a/package.json")
    capsule = starts("x")
    assert listed(capsule, "build", "vendor", "draft") >= {"draft/node_modules/a/package.json"}
    assert say(capsule, "ls -d build vendor 2>/dev/null || true") == ""


def test_sources_beside_what_a_tool_leaves_are_work(shop, starts, git):
    """As `cmake .` and `python -m venv .` leave it."""
    plant(shop, "newlib/main.c", "newlib/CMakeCache.txt", "tool/pyvenv.cfg", "build/CMakeCache.txt")
    plant(shop, ".venv/pyvenv.cfg")
    capsule = starts("x", dirty=True)
    assert capsule.work().render() == []
    say(
        capsule,
        "echo 2 > newlib/main.c; echo 1 > newlib/other.c; git init -q tool/inner; "
        "echo 1 > build/new.c; mkdir -p build/sub .venv/lib; touch build/x.o build/sub/gen.c; "
        "echo 1 > .venv/lib/installed.py",
    )
    assert set(say(capsule, "git status --short -uall").splitlines()) >= {
        "?? newlib/main.c", "?? newlib/other.c", "?? tool/inner/", "?? build/new.c"
    }  # fmt: skip
    work = capsule.work()
    assert set(work.untracked) == {"newlib/main.c", "newlib/other.c", "build/new.c"}
    assert work.nested == ("tool/inner/",)


def test_rules_that_an_earlier_version_made_beside_sources_hide_nothing(shop, starts):
    capsule = starts("x")
    rules = "# Made by Atoll: the project does not ignore this directory."
    say(
        capsule,
        f"for d in newlib .venv; do mkdir $d; printf '%s\\n*\\n' '{rules}' > $d/.gitignore; "
        "done; mkdir newlib/src; echo 1 > newlib/src/a.c; echo 1 > .venv/a",
    )
    assert "newlib/src/a.c" in capsule.work().untracked
    assert not [path for path in capsule.work().untracked if path.startswith(".venv")]


def test_directory_that_gets_a_rule_of_its_own_is_not_hidden(shop, starts, git, atoll):
    """Its ignored files were a part of the rest, whose next delta hid all of it."""
    plant(shop, *(f"data/{n}.bin" for n in range(4)), *(f"src/{n}.bin" for n in range(9)))
    plant(shop, "data/readme")
    assert len(listed(starts("a"), "data", "src")) == 15
    with (shop / ".gitignore").open("a") as rules:
        rules.write("data/\n")
    git("commit", "--quiet", "--all", "--message", "ignore", cwd=shop)
    capsule = starts("b")
    assert listed(capsule, "data") == {f"data/{n}.bin" for n in range(4)} | {"data/readme"}
    assert "contains all of them" in atoll("warm", "--check", cwd=shop).stderr


def test_removed_and_later_tracked_file_is_not_hidden(shop, starts, git):
    plant(shop, "src/gen.bin", *(f"src/{n}.bin" for n in range(9)))
    starts("a")
    (shop / "src/gen.bin").unlink()
    assert "src/gen.bin" not in listed(starts("b"), "src")
    plant(shop, "src/gen.bin", content="tracked\n")
    git("add", "--force", "src/gen.bin", cwd=shop)
    git("commit", "--quiet", "--message", "track", cwd=shop)
    capsule = starts("c")
    assert say(capsule, "cat src/gen.bin; git status --porcelain") == "tracked\n"
    # Its content changes by a commit, and no frozen copy of it stands in the way.
    plant(shop, "src/gen.bin", content="again\n")
    git("commit", "--quiet", "--all", "--message", "change", cwd=shop)
    assert say(starts("d"), "cat src/gen.bin; git status --porcelain") == "again\n"


def in_place(shop, path, text):
    """Without a change to the directory that holds it."""
    with (shop / path).open("a") as file:
        file.write(text)


RULES = {
    "in the root": lambda shop: in_place(shop, ".gitignore", "*.dat\n"),
    "new and deep": lambda shop: plant(shop, "src/deep/er/.gitignore", content="*.dat\n"),
    "deep": lambda shop: in_place(shop, "src/deep/.gitignore", "*.dat\n"),
    "info/exclude": lambda shop: in_place(shop, ".git/info/exclude", "*.dat\n"),
    "excludes file": lambda shop: in_place(shop.parent, "excludes", "*.dat\n"),
    "settings": lambda shop: subprocess.run(
        ["git", "config", "core.excludesFile", str(shop.parent / "more")], cwd=shop, check=True
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_changed_rule_is_noticed(shop, starts, git, rule):
    plant(shop, "src/deep/.gitignore", content="# nothing\n")
    plant(shop.parent, "more", content="*.dat\n")
    plant(shop.parent, "excludes", content="# nothing\n")
    if rule != "settings":
        git("config", "core.excludesFile", shop.parent / "excludes", cwd=shop)
    git("add", "--all", cwd=shop)
    git("commit", "--quiet", "--message", "rules", cwd=shop)
    plant(shop, "src/deep/er/large.dat", "src/x.bin")
    assert "src/deep/er/large.dat" not in listed(starts("a"), "src")
    RULES[rule](shop)
    assert "src/deep/er/large.dat" in listed(starts("b"), "src")


def test_dependencies_that_appear_in_a_directory_without_any_are_noticed(shop, starts):
    assert not listed(starts("a"), "web/node_modules") & {"web/node_modules/a/package.json"}
    plant(shop, "web/node_modules/a/package.json")
    assert listed(starts("b"), "web/node_modules") >= {"web/node_modules/a/package.json"}


def test_workspaces_of_a_monorepo(make_repo, atoll):
    """As pnpm has it: a store in the root, and directories of links in every package."""
    names = [f"packages/p{n}" for n in range(6)]
    files = {f"{name}/package.json": "{}\n" for name in names}
    root = make_repo(files={".gitignore": "node_modules\n", **files}, name="mono")
    plant(root, "node_modules/.modules.yaml", "node_modules/.pnpm/a@1/node_modules/a/index.js")
    for name in names:
        (root / name / "node_modules").mkdir()
        (root / name / "node_modules/a").symlink_to(
            "../../../node_modules/.pnpm/a@1/node_modules/a"
        )
    atoll("new", "x", cwd=root)
    said = atoll("run", "x", "--", "sh", "-c", "cat packages/*/node_modules/a/index.js", cwd=root)
    assert said.stdout == "1\n" * 6
    atoll("rm", "x", cwd=root)


def test_base_of_an_earlier_version_is_used_and_repaired(shop, starts, atoll_home):
    """It recorded neither rules nor what its deltas hide."""
    plant(shop, ".venv/pyvenv.cfg", *(f"src/{n}.bin" for n in range(9)))
    starts("a")
    (shop / "src/0.bin").unlink()
    starts("b")
    path, known = carried_of(atoll_home)
    assert [len(part[1]) for part in known["parts"]] == [1, 2]
    known["parts"] = [part[:3] for part in known["parts"]]
    for key in ("rules", "watched", "unignored", "own_rules"):
        del known[key]
    path.write_text(json.dumps(known))
    assert listed(starts("c"), ".venv", "src") >= {".venv/pyvenv.cfg", "src/8.bin"}
    # The layer that may hide something was made anew, the other one was not.
    after = carried_of(atoll_home)[1]["parts"]
    assert after[0][1] == known["parts"][0][1]
    assert len(after[1][1]) == 1


def test_check_compares_with_what_a_capsule_contains(shop, starts, atoll, atoll_home):
    plant(shop, *(f"data/{n}.bin" for n in range(4)), *(f"src/{n}.bin" for n in range(9)))
    plant(shop, "data/readme")
    starts("a")
    for path in (shop / "data").glob("*.bin"):
        path.unlink()
    starts("b")
    _, former = carried_of(atoll_home)
    with (shop / ".gitignore").open("a") as rules:
        rules.write("data/\n")
    starts("c")
    # As a base was in which a delta hides a directory, unnoticed.
    path, known = carried_of(atoll_home)
    known["parts"][-1][1] = former["parts"][-1][1]
    known["parts"][-1][3] = []
    path.write_text(json.dumps(known))
    done = atoll("warm", "--check", cwd=shop, check=False)
    assert done.returncode == 1
    assert done.stdout == "missing from new capsules: data/readme\n"
    assert "hint: atoll warm" in done.stderr
    atoll("warm", cwd=shop)
    assert "contains all of them" in atoll("warm", "--check", cwd=shop).stderr
    assert listed(starts("d"), "data") == {"data/readme"}


def test_check_finds_what_no_stamp_shows(shop, starts, atoll):
    places = [f".venv/lib/python3/site-packages/p{n}/a/b/c.py" for n in range(3)]
    plant(shop, ".venv/pyvenv.cfg", *places)
    starts("a")
    Path(shop, places[0]).write_text("changed in place\n")
    done = atoll("warm", "--check", cwd=shop, check=False)
    assert (done.returncode, done.stdout) == (1, f"older in new capsules: {places[0]}\n")
    atoll("warm", cwd=shop)
    assert atoll("warm", "--check", cwd=shop).stdout == ""


def test_what_was_left_out_is_said_in_one_line(shop, atoll):
    plant(shop, "README", "src/app.py", content="changed\n")
    plant(shop, ".env", "keys/id_ed25519", ".venv/pyvenv.cfg")
    line = atoll("new", "a", cwd=shop).stderr.splitlines()[-1]
    assert line == (
        "left out: 3 uncommitted changes (src/app.py, README, keys/), include with --dirty; "
        '1 that looks like a secret (.env), include with --dirty and `carry = ["**", ".env"]` '
        "under [project] in atoll.toml"
    )
    line = atoll("new", "b", "--dirty", cwd=shop).stderr.splitlines()[-1]
    assert line == (
        "left out: 2 that look like secrets (.env, keys/id_ed25519), include with "
        '`carry = ["**", ".env", "keys/id_ed25519"]` under [project] in atoll.toml'
    )
    told = json.loads(atoll("new", "c", "--json", cwd=shop).stdout)["data"][0]["left_out"]
    assert told == {
        "uncommitted": ["src/app.py", "README", "keys/"], "secrets": [".env"], "unreadable": [],
        "submodules": [],
    }  # fmt: skip
    assert atoll("new", "d", "-q", cwd=shop).stderr == ""
    plant(shop, "atoll.toml", content='[project]\ncarry = ["src/*", ".env"]\n')
    atoll("trust", cwd=shop)
    line = atoll("new", "f", "--dirty", cwd=shop).stderr.splitlines()[-1]
    assert '`carry = ["src/*", ".env", "keys/id_ed25519"]` under [project]' in line
    plant(shop, "atoll.toml", content='[project]\ncarry = ["**", ".env", "keys/id_ed25519"]\n')
    atoll("trust", cwd=shop)
    assert "left out" not in atoll("new", "e", "--dirty", cwd=shop).stderr
    assert atoll("run", "e", "--", "cat", ".env", cwd=shop).stdout == "1\n"
    atoll("rm", "a", "b", "c", "d", "e", "f", "--force", cwd=shop)


def change_a_file(git, shop):
    plant(shop, "sub/app.py", content="changed\n")


def stage_a_file(git, shop):
    change_a_file(git, shop)
    git("add", "app.py", cwd=shop / "sub")


def stage_a_commit(git, shop):
    stage_a_file(git, shop)
    git("commit", "-qm", "changed", cwd=shop / "sub")
    git("add", "sub", cwd=shop)


@pytest.mark.parametrize("change", [change_a_file, stage_a_file, stage_a_commit])
@pytest.mark.parametrize("options", [(), ("--dirty",)], ids=["committed", "dirty"])
def test_changes_in_a_submodule_are_mentioned(change, options, shop, atoll, make_repo, git):
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    git(*add, make_repo(name="inner"), "sub", cwd=shop)
    git("commit", "-qm", "submodule", cwd=shop)
    assert "left out" not in atoll("new", "a", *options, cwd=shop).stderr
    change(git, shop)
    done = atoll("new", "b", *options, "--json", cwd=shop)
    line = "left out: changes in 1 submodule (sub), which --dirty does not include"
    assert line in done.stderr.splitlines()
    told = json.loads(done.stdout)["data"][0]["left_out"]
    assert (told["submodules"], told["uncommitted"]) == (["sub"], [])
    atoll("rm", "a", "b", "--force", cwd=shop)


def test_nothing_left_out_is_not_mentioned(shop, atoll, git):
    git("config", "status.showStash", "true", cwd=shop)
    plant(shop, "src/app.py", content="stashed\n")
    git("stash", "-q", cwd=shop)
    plant(shop, ".venv/pyvenv.cfg", "src/x.bin")
    assert "left out" not in atoll("new", "a", cwd=shop).stderr
    atoll("rm", "a", cwd=shop)


def test_port_is_set_without_a_declared_service(person):
    person.atoll("new", "x")
    assert person.sh("x", 'echo "$PORT"') == "3000\n"
    person.write({"atoll.toml": '[services.site]\ncommand = "x"\nport = 8123\n'})
    person.atoll("trust")
    person.atoll("new", "y")
    assert person.sh("y", 'echo "$PORT" "$ATOLL_PORT_SITE"') == "8123 8123\n"
