"""What travels besides the commit: asked of real repositories, with names of every kind."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import stat
import tempfile
import traceback
import warnings
from pathlib import Path

import pytest

from atoll.drivers.layers import carry_selection as carrying
from atoll.drivers.layers.carry_selection import UNREADABLE, dirty_paths, tracked_secrets
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.host.tree import manifests
from atoll.model.errors import DriverError, SpecError

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"
CERTIFICATES = "-----BEGIN CERTIFICATE-----\nMIID\n"
ODD = ["a\nb", "-rf", "two words", "ünï", "quo\"te'", os.fsdecode(b"\xff\xfe"), "[x]", "back\\s"]
NOBODY = 65_534
NESTED = ("packages/a/node_modules", "packages/b/node_modules")


def plant(root, files):
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)


def find_carried(root, *, carry=None, never=(), home=None):
    return carrying.find_carried(str(root), carry=carry, never=never, home=home)


def reasons(left_out):
    return dict(left_out)


def scanned(root, found, *, carry=None, never=()):
    """(paths, left out) of a scan of everything that was found."""
    skip = carrying.skipper(str(root), carry=carry, never=never)
    scan = manifests.scan(root, below=[*found.directories, *found.rest], skip=skip)
    return set(scan.entries), dict(scan.left_out)


@pytest.fixture
def project(make_repo):
    """`project({"a": "…"}, ignore="a\\n")`: a repository with ignored files in it."""

    def make(files, *, ignore, name="repo"):
        tracked = ("src/app.py", "packages/a/index.js", "packages/b/index.js", "web/a.js")
        root = make_repo(files={".gitignore": ignore, **dict.fromkeys(tracked, "1\n")}, name=name)
        plant(root, files)
        return root

    return make


@pytest.fixture
def head(git):
    return lambda root: git("rev-parse", "HEAD", cwd=root).strip()


@pytest.fixture
def ordinary_user():
    """`ordinary_user(function)`: runs it in a child without privileges; what fails there fails."""

    def run(function):
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            said = b"ok"
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                function()
            except BaseException:  # noqa: BLE001 - told to the parent, which fails
                said = traceback.format_exc().encode()
            finally:
                os.write(writer, said)
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            heard = stream.read()
        os.waitpid(pid, 0)
        assert heard == "ok"

    return run


@pytest.fixture
def open_place(atoll_home, monkeypatch):
    """A directory that an ordinary user owns, with git's settings in reach."""
    place = Path(tempfile.mkdtemp(prefix="atoll-test-"))
    plant(place, {"gitconfig": "[user]\n name = a\n email = a@b\n"})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(place / "gitconfig"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))
    monkeypatch.setenv("HOME", str(place))
    yield place
    for directory, names, _ in os.walk(place):
        # Before it goes down there.
        for name in names:
            os.chmod(os.path.join(directory, name), 0o700)
    shutil.rmtree(place)


def hand_over(place):
    """Gives a tree to the ordinary user."""
    if os.geteuid() == 0:
        for directory, _, files in os.walk(place):
            os.chown(directory, NOBODY, NOBODY)
            for name in files:
                os.chown(os.path.join(directory, name), NOBODY, NOBODY, follow_symlinks=False)


# What git calls ignored.


def test_top_level_directories_are_apart_from_the_rest(project):
    root = project(
        {
            "node_modules/p/index.js": "",
            "packages/a/node_modules/q/index.js": "",
            "packages/a/index.js": "",
            "app.log": "",
            "src/x.log": "",
            "target/debug/a": "",
        },
        ignore="node_modules/\n*.log\n/target\n",
    )
    found = find_carried(root)
    assert found.directories == ("node_modules", "target")
    assert found.rest == ("app.log", "packages/a/node_modules", "src/x.log")
    assert found.left_out == ()


def test_nothing_ignored(repo):
    assert find_carried(repo) == ((), (), (), ())


def test_unusual_names(project):
    files = {f"build/{name}/{name}": "" for name in ODD}
    files |= {f"{name}.d/x": "" for name in ODD} | {f"src/{name}.log": "" for name in ODD}
    root = project(files, ignore="*.d/\n*.log\nbuild/\n", name="a\nb ü")
    found = find_carried(root)
    assert set(found.directories) == {"build", *(f"{name}.d" for name in ODD)}
    assert set(found.rest) == {f"src/{name}.log" for name in ODD}
    paths, left_out = scanned(root, found)
    assert {f"build/{name}/{name}" for name in ODD} <= paths
    assert left_out == {}


def test_directory_that_ignores_itself(project):
    root = project({".venv/.gitignore": "*\n", ".venv/lib/a.py": "", ".venv/b/c": ""}, ignore="")
    assert find_carried(root).directories == (".venv",)


def test_directory_of_ignored_files_only(project):
    root = project({"logs/deep/a.log": "", "logs/b.log": ""}, ignore="*.log\n")
    assert find_carried(root).directories == ("logs",)


def test_negated_ignores(project, git):
    root = project(
        {"build/keep.txt": "", "build/out.o": "", "build/sub/x.o": "", "a.log": "", "b.log": ""},
        ignore="/build/*\n!/build/keep.txt\n*.log\n!b.log\n",
    )
    found = find_carried(root)
    assert found.directories == ()
    assert found.rest == ("a.log", "build/out.o", "build/sub")
    assert "b.log" in git("ls-files", "--others", "--exclude-standard", cwd=root)


def test_tracked_file_in_an_ignored_directory(project, git):
    root = project({"dist/keep": "", "dist/out": "", "dist/sub/x": ""}, ignore="/dist\n")
    git("add", "--force", "dist/keep", cwd=root)
    found = find_carried(root)
    assert (found.directories, found.rest) == ((), ("dist/out", "dist/sub"))


def test_nested_gitignore_info_exclude_and_global_excludes(project, git, tmp_path):
    root = project(
        {"web/.gitignore": "/out\n", "web/out/x": "", "web/a.js": "", "local/x": "", "t.swp": ""},
        ignore="",
    )
    (root / ".git/info/exclude").write_text("/local\n")
    plant(tmp_path, {"excludes": "*.swp\n"})
    git("config", "--global", "core.excludesFile", tmp_path / "excludes", cwd=root)
    found = find_carried(root)
    assert (found.directories, found.rest) == (("local",), ("t.swp", "web/out"))


def test_ignored_entry_in_an_untracked_directory(project):
    root = project({"new/a.py": "", "new/node_modules/x/i": ""}, ignore="node_modules\n")
    assert find_carried(root).rest == ("new/node_modules",)


def test_link_to_a_directory_is_a_file(project):
    root = project({"elsewhere/x": ""}, ignore="node_modules\nlinks/\n")
    (root / "node_modules").symlink_to("elsewhere")
    plant(root, {"links/x": ""})
    (root / "links/secret.pem").symlink_to("/etc/passwd")
    found = find_carried(root)
    assert (found.directories, found.rest) == (("links",), ("node_modules",))
    paths, left_out = scanned(root, found)
    assert paths == {"links", "links/x", "links/secret.pem", "node_modules"}
    assert left_out == {}


def test_empty_ignored_directory(project):
    root = project({}, ignore="tmp/\n")
    (root / "tmp").mkdir()
    (root / "empty").mkdir()
    assert find_carried(root).directories == ("tmp",)


@pytest.mark.parametrize("seed", range(12))
def test_every_ignored_file_travels_and_nothing_else(make_repo, git, seed):
    chance = random.Random(seed)
    names = ["a", "b", "c d", "x.log", "é"]

    def path():
        return "/".join(chance.choices(names, k=chance.randint(1, 4)))

    lines = ["*.log", "a/", "/b", "c d/*", "!c d/b", "b/a", "!x.log", "**/é", "/a/*", "!/a/b/"]
    root = make_repo({".gitignore": "\n".join(chance.sample(lines, k=4)) + "\n"})
    for number in range(40):
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            plant(root, {path(): "", f"{path()}/.gitignore": chance.choice(lines) + "\n"})
        if number == 15:
            git("add", "--all", *chance.choices([[], ["--force"]])[0], cwd=root)
    listing = ("ls-files", "--others", "--exclude-standard", "-z")
    ignored = set(git(*listing, "--ignored", cwd=root).split("\0")) - {""}
    paths, left_out = scanned(root, find_carried(root))
    assert left_out == {}
    assert {path for path in paths if (root / path).is_file()} == ignored


def test_linked_worktree_as_the_checkout(project, git, tmp_path):
    root = project({}, ignore="build/\n")
    linked = tmp_path / "linked"
    git("worktree", "add", "--quiet", "--detach", linked, cwd=root)
    plant(linked, {"build/x": ""})
    assert find_carried(linked) == (("build",), (), (), ())


def test_checkout_behind_a_link(project, git, tmp_path):
    root = project({}, ignore=".wt/\n")
    git("worktree", "add", "--quiet", "--detach", root / ".wt", cwd=root)
    (tmp_path / "link").symlink_to(root)
    assert reasons(find_carried(tmp_path / "link").left_out) == {
        ".wt": "a worktree of this repository"
    }


def test_no_repository_is_an_error(tmp_path, atoll_home):
    with pytest.raises(DriverError):
        find_carried(tmp_path)


# What is no part of the project.


def test_worktrees_inside_stay_out(project, git):
    root = project({"trees/notes.txt": ""}, ignore="/trees/\n/wt\n")
    for name in ("trees/a", "trees/b\nc", "wt"):
        git("worktree", "add", "--quiet", "--detach", root / name, cwd=root)
    found = find_carried(root)
    assert found.directories == ("trees",)
    assert reasons(found.left_out) == {"wt": "a worktree of this repository"}
    paths, left_out = scanned(root, found)
    assert paths == {"trees", "trees/notes.txt"}
    assert set(left_out) == {"trees/a", "trees/b\nc"}


def test_forgotten_worktree_is_an_ordinary_directory(project, git):
    root = project({}, ignore="/wt\n")
    git("worktree", "add", "--quiet", "--detach", root / "wt", cwd=root)
    shutil.rmtree(root / "wt")
    plant(root, {"wt/x": ""})
    assert find_carried(root).directories == ("wt",)


@pytest.mark.parametrize("ignore", ["/.atoll/\n", "*.log\n"])
def test_home_inside_stays_out(project, ignore):
    root = project({".atoll/store/a.log": "", "a.log": ""}, ignore=ignore)
    found = find_carried(root, home=str(root / ".atoll"))
    assert reasons(found.left_out) == {".atoll": "Atoll's home directory"}
    assert found.directories == ()


def test_home_around_the_checkout_changes_nothing(project, tmp_path):
    root = project({"build/x": ""}, ignore="build/\n")
    assert find_carried(root, home=str(tmp_path)).directories == ("build",)
    assert find_carried(root, home=str(root)).directories == ("build",)


def test_git_directory_that_was_put_inside(project, git):
    root = project({}, ignore="/repo.git/\n")
    git("init", "--quiet", "--separate-git-dir", "repo.git", cwd=root)
    found = find_carried(root)
    assert found.directories == ()
    assert reasons(found.left_out) == {"repo.git": "git's own directory"}


def test_ignored_repository_travels_with_its_history(project, git):
    root = project({"deps/lib/a.ex": ""}, ignore="/deps/\n/own/\n")
    git("init", "--quiet", "deps/lib", cwd=root)
    git("init", "--quiet", "own", cwd=root)
    plant(root, {"deps/priv/.git/config": "[remote]\nurl = https://me:token@example.org/x\n"})
    plant(root, {"deps/linked/.git": "gitdir: /home/owner/other/.git/worktrees/x\n"})
    found = find_carried(root)
    assert found.directories == ("deps", "own")
    paths, left_out = scanned(root, found)
    assert {"deps/lib/.git/HEAD", "deps/lib/.git/config", "own/.git/HEAD", "deps/linked"} <= paths
    assert left_out == {
        "deps/priv/.git/config": "settings with a password or token",
        "deps/linked/.git": "a link to a repository elsewhere",
    }


# Secrets.


def test_secrets_stay_out_on_every_level(project):
    root = project(
        {
            ".env": "A=1",
            ".env.example": "A=",
            "cfg/.env.local": "",
            "cfg/settings.py": "",
            "certs/server.pem": KEY,
            "certs/ca.pem": CERTIFICATES,
            "certs/server.key": KEY,
            ".npmrc": "//r/:_authToken=x",
            "web/.npmrc": "save-exact=true",
            ".aws/credentials": "",
            "node_modules/p/.env": "",
            "node_modules/p/i.js": "",
            "node_modules/p/test/id_rsa": "",
            ".venv/lib/certifi/cacert.pem": CERTIFICATES * 9000,
            "secrets/token.txt": "",
            "cfg/secrets/token.txt": "",
            ".venv/lib/azure/secrets/__init__.py": "",
            "node_modules/p/secrets/v1/index.js": "",
        },
        ignore="/.venv\n.env*\n/cfg\n/certs\n.npmrc\n.aws/\nnode_modules\nsecrets/\n",
    )
    found = find_carried(root)
    assert found.directories == (".venv", "certs", "cfg", "node_modules")
    assert found.rest == (".env.example", "web/.npmrc")
    assert reasons(found.left_out) == {
        ".aws": "credentials of a cloud",
        ".env": "an environment file",
        ".npmrc": "settings with a password or token",
        "secrets": "secrets",
    }
    paths, left_out = scanned(root, found)
    assert left_out == {
        "certs/server.key": "a key",
        "certs/server.pem": "a private key",
        "cfg/.env.local": "an environment file",
        "cfg/secrets": "secrets",
        "node_modules/p/.env": "an environment file",
        "node_modules/p/test/id_rsa": "a private key",
    }
    assert {"certs/ca.pem", ".venv/lib/certifi/cacert.pem", "cfg/settings.py"} <= paths
    assert {".venv/lib/azure/secrets/__init__.py", "node_modules/p/secrets/v1/index.js"} <= paths


def test_virtual_environment_may_be_called_env(project):
    root = project(
        {
            ".env/pyvenv.cfg": "",
            ".env/bin/python": "",
            "src/.env/conda-meta/x": "",
            "packages/.env/prod": "",
            "empty/.env/x": "",
        },
        ignore=".env\n",
    )
    found = find_carried(root)
    # Git lists the directory above when it holds nothing else.
    assert (found.directories, found.rest) == ((".env", "empty"), ("src/.env",))
    assert reasons(found.left_out) == {"packages/.env": "environment files"}
    paths, left_out = scanned(root, found)
    assert ".env/bin/python" in paths
    assert left_out == {"empty/.env": "environment files"}


def test_ignored_file_in_a_secret_directory(project):
    root = project({".aws/cli/cache.log": ""}, ignore="*.log\n")
    assert reasons(find_carried(root).left_out) == {".aws": "credentials of a cloud"}


def test_docker_settings_mean_something_in_their_place_only(project):
    files = {"x/.docker/config.json": '{"auth": "x"}', "x/app/config.json": '{"auth": "x"}'}
    root = project(files, ignore="/x\n")
    paths, left_out = scanned(root, find_carried(root))
    assert list(left_out) == ["x/.docker/config.json"]
    assert "x/app/config.json" in paths


def test_what_is_no_file_is_never_opened(project):
    root = project({"x/a": ""}, ignore="/x\n")
    os.mkfifo(root / "x/pipe.pem")
    with socket.socket(socket.AF_UNIX) as server:
        place = os.open(root / "x", os.O_PATH)
        server.bind(f"/proc/self/fd/{place}/s.key")
        os.close(place)
    (root / "x/loop.key").symlink_to("loop.key")
    paths, left_out = scanned(root, find_carried(root))
    assert paths == {"x", "x/a", "x/loop.key"}
    assert set(left_out) == {"x/pipe.pem", "x/s.key"}
    skip = carrying.skipper(str(root), carry=None, never=())
    with os.scandir(root / "x") as listing:
        assert all(skip(f"x/{entry.name}", entry) is None for entry in listing)


def test_entry_that_is_gone_is_no_error(project):
    root = project({"x/a": "", "x/b": ""}, ignore="/x\n")
    skip = carrying.skipper(str(root), carry=None, never=())
    with os.scandir(root / "x") as listing:
        entries = list(listing)
    shutil.rmtree(root / "x")
    assert [skip(f"x/{entry.name}", entry) for entry in entries] == [None, None]


def test_never_adds_to_the_list(project):
    root = project(
        {
            "a.log": "",
            "b.dump": "",
            "x/prod.yml": "",
            "x/y/prod.yml": "",
            "x/Q.DUMP": "",
            "p/a": "",
        },
        ignore="*.log\n*.dump\n/x\n/p\n",
    )
    never = ["*.dump", "x/prod.yml", "p/"]
    found = find_carried(root, never=never)
    assert (found.directories, found.rest) == (("x",), ("a.log",))
    assert reasons(found.left_out) == {
        "b.dump": "`*.dump` is in `project.never`",
        "p": "`p/` is in `project.never`",
    }
    paths, left_out = scanned(root, found, never=never)
    assert set(left_out) == {"x/prod.yml", "x/Q.DUMP"}
    assert "x/y/prod.yml" in paths


def test_never_bars_what_lies_below(project):
    root = project({"a/b/c.log": "", "d.log": ""}, ignore="*.log\n")
    found = find_carried(root, never=["a/b"])
    assert found.rest == ("d.log",)
    # Git lists the directory above, which holds nothing else.
    assert found.directories == ("a",)
    assert scanned(root, found, never=["a/b"])[0] == {"a", "d.log"}


# The list.


@pytest.fixture
def listed(project):
    return project(
        {
            "node_modules/p/.env": "",
            "node_modules/p/i.js": "",
            "packages/a/node_modules/x": "",
            "packages/b/node_modules/x": "",
            "vendor/a/x": "",
            "vendor/b/x": "",
            ".env": "",
            ".aws/config": "",
            ".aws/sso/token": "",
            "cfg/master.key": "0123456789abcdef",
            "cfg/ca.pem": KEY,
            "cfg/x.ini": "",
            "app.log": "",
            "draft.txt": "",
        },
        ignore="node_modules\n/vendor\n.env\n/.aws\n/cfg\n*.log\n",
    )


@pytest.mark.parametrize(
    ("carry", "directories", "rest"),
    [
        ([], (), ()),
        (["node_modules"], ("node_modules",), ()),
        (["./node_modules/"], ("node_modules",), ()),
        (["**/node_modules"], ("node_modules",), NESTED),
        (["packages/*/node_modules"], (), NESTED),
        (["packages"], (), NESTED),
        (["vendor/a"], (), ("vendor/a",)),
        (["vendor/*"], (), ("vendor/a", "vendor/b")),
        (["vendor", "vendor/a"], ("vendor",), ()),
        (["vendor/a", "vendor/a/x"], (), ("vendor/a",)),
        (["nothing", "vendor/nothing", "draft.txt", "src"], (), ()),
        ([".env"], (), (".env",)),
        ([".env*"], (), (".env",)),
        (["*"], ("cfg", "node_modules", "vendor"), ("app.log", *NESTED)),
        (["cfg/master.key"], (), ("cfg/master.key",)),
        (["cfg/*.pem"], (), ("cfg/ca.pem",)),
        (["cfg/*"], (), ("cfg/x.ini",)),
        ([".aws"], (".aws",), ()),
        ([".aws/config"], (), (".aws/config",)),
        ([".*"], (), ()),
    ],
)  # fmt: skip
def test_only_what_is_listed(listed, carry, directories, rest):
    found = find_carried(listed, carry=carry)
    assert (found.directories, found.rest) == (directories, rest)


def test_pattern_finds_what_lies_in_a_directory_without_tracked_files(project):
    root = project(
        {"apps/a/node_modules/x": "", "apps/b/x.log": ""}, ignore="node_modules\n*.log\n"
    )
    assert find_carried(root).directories == ("apps",)
    for pattern in ("apps/*/node_modules", "apps/a"):
        found = find_carried(root, carry=[pattern])
        assert (found.directories, found.left_out) == ((), ())
        assert found.rest == ("apps/a" if pattern == "apps/a" else "apps/a/node_modules",)


def test_secret_is_carried_only_when_it_is_named(listed):
    listing = ["node_modules", "node_modules/p/.env", "cfg", ".aws"]
    paths, left_out = scanned(listed, find_carried(listed, carry=listing), carry=listing)
    assert {"node_modules/p/.env", ".aws/config", ".aws/sso/token"} <= paths
    assert set(left_out) == {"cfg/master.key", "cfg/ca.pem"}


def test_never_is_stronger_than_the_list(listed):
    found = find_carried(listed, carry=[".env", ".aws"], never=[".env", ".aws"])
    assert (found.directories, found.rest) == ((), ())
    assert reasons(found.left_out)[".env"] == "`.env` is in `project.never`"
    found = find_carried(listed, carry=["cfg/master.key"], never=["cfg"])
    assert found.rest == ()
    assert reasons(found.left_out)["cfg"] == "`cfg` is in `project.never`"


def test_what_is_not_listed_is_reported(listed):
    told = reasons(find_carried(listed, carry=["vendor/a", "draft.txt", "src/app.py"]).left_out)
    assert told["node_modules"] == "not listed in `project.carry`"
    assert told["draft.txt"] == "not ignored by git, so only `--dirty` copies it"
    assert "vendor" not in told
    assert "src/app.py" not in told


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc", "a/../../b", "~/x", ".git", "a/.GIT/config", ".", "", "a\nb", "\x1b[2J"],
)
def test_bad_list_is_refused(listed, path):
    with pytest.raises(SpecError, match=r"`project\.carry`: ") as caught:
        find_carried(listed, carry=["node_modules", path])
    assert caught.value.message.isprintable()
    with pytest.raises(SpecError):
        carrying.skipper(str(listed), carry=[path], never=())


def test_list_never_leads_out_through_a_link(project, tmp_path):
    plant(tmp_path, {"outside/file": "", "outside/d/file": ""})
    root = project({"x/a": ""}, ignore="/x\nlink\n")
    (root / "x/out").symlink_to(tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    for carry in (["x/out/file"], ["x/*/file"], ["x/out/d"], ["link/file"], ["link/*"]):
        found = find_carried(root, carry=carry)
        assert (found.directories, found.rest) == ((), ()), carry
    assert find_carried(root, carry=["x/out", "link"]).rest == ("link", "x/out")


def test_list_never_finds_a_git_directory(project, git):
    root = project({}, ignore="/x\n")
    git("init", "--quiet", "x", cwd=root)
    assert find_carried(root, carry=["x/.g*", ".g*"]).rest == ()


# What cannot be read.


@pytest.fixture
def guarded(open_place, git, ordinary_user):
    """A checkout of an ordinary user with things that its owner may not read."""
    root = open_place / "repo"
    plant(
        root,
        {
            ".gitignore": "/locked\n/build\n*.key\n*.log\n",
            "src/a.py": "1",
            "locked/x": "",
            "build/in/x": "",
            "build/y": "",
            "build/z": "",
            "a.key": "0123456789abcdef",
            "a.log": "",
            "new/x": "",
        },
    )
    hand_over(open_place)

    def commit():
        git("init", "--quiet", cwd=root)
        git("add", ".gitignore", "src", cwd=root)
        git("commit", "--quiet", "--message", "first", cwd=root)

    ordinary_user(commit)
    for name in ("locked", "build/in", "build/z", "a.key", "a.log", "new"):
        (root / name).chmod(0)
    return root


def test_unreadable_entries_are_reported(guarded, ordinary_user):
    def ask():
        found = find_carried(guarded)
        assert (found.directories, found.rest) == (("build",), ())
        assert reasons(found.left_out) == dict.fromkeys(["a.key", "a.log", "locked"], UNREADABLE)
        paths, left_out = scanned(guarded, found)
        assert paths == {"build", "build/y"}
        assert left_out == dict.fromkeys(["build/in", "build/z"], UNREADABLE)
        assert set(fingerprint(str(guarded), found.directories, ["locked"])) == {
            ROOT,
            REST,
            "build",
        }

    ordinary_user(ask)


def test_unreadable_untracked_directory_is_reported(guarded, ordinary_user, git):
    def ask():
        commit = git("rev-parse", "HEAD", cwd=guarded).strip()
        dirty = dirty_paths(str(guarded), commit, carry=None, never=())
        assert (dirty.changed, dirty.removed) == ((), ())
        assert reasons(dirty.left_out) == {"new": UNREADABLE}

    ordinary_user(ask)


def test_unreadable_tracked_directory_loses_nothing(guarded, ordinary_user, git):
    (guarded / "src").chmod(0)

    def ask():
        commit = git("rev-parse", "HEAD", cwd=guarded).strip()
        dirty = dirty_paths(str(guarded), commit, carry=None, never=())
        assert dirty.removed == ()

    ordinary_user(ask)


# The dirty ones.


def dirty_of(root, commit, *, carry=None, never=(), home=None):
    return dirty_paths(str(root), commit, carry=carry, never=never, home=home)


def test_clean_checkout(repo, head):
    assert dirty_of(repo, head(repo)) == ((), (), ())


def test_changed_staged_added_removed_and_untracked(make_repo, git, head):
    root = make_repo(dict.fromkeys(("edit", "stage", "gone", "rm", "mode", "both", "same"), "1\n"))
    commit = head(root)
    plant(
        root, {"edit": "2\n", "stage": "2\n", "both": "2\n", "added": "", "new/x": "", "intent": ""}
    )
    git("add", "stage", "both", "added", cwd=root)
    git("add", "--intent-to-add", "intent", cwd=root)
    plant(root, {"both": "3\n"})
    git("rm", "--quiet", "rm", cwd=root)
    (root / "gone").unlink()
    (root / "mode").chmod(0o755)
    os.utime(root / "same", (1, 1))
    dirty = dirty_of(root, commit)
    assert dirty.changed == ("added", "both", "edit", "intent", "mode", "new/x", "stage")
    assert dirty.removed == ("gone", "rm")
    assert dirty.left_out == ()


def test_difference_to_another_commit(repo, git, head):
    first = git("rev-parse", "HEAD~1", cwd=repo).strip()
    assert dirty_of(repo, first).changed == ("README.md",)
    with pytest.raises(DriverError):
        dirty_of(repo, "0" * 40)
    with pytest.raises(DriverError):
        dirty_of(repo, "--output=stolen")
    assert not (repo / "stolen").exists()


def content_of(root):
    """Every file and link below, with what it holds."""
    found: dict[str, Path | bytes] = {}
    for directory, directories, files in os.walk(root):
        directories[:] = [name for name in directories if name != ".git"]
        for name in {*files, *directories} - {".git"}:
            place = Path(directory, name)
            if place.is_symlink():
                found[str(place.relative_to(root))] = place.readlink()
            elif not place.is_dir():
                found[str(place.relative_to(root))] = place.read_bytes()
    return found


def bring(source, target, dirty):
    """Copies what `Dirty` lists."""
    for path in dirty.removed:
        (target / path).unlink()
    for path in dirty.changed:
        place = target / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        shutil.copy(source / path, place, follow_symlinks=False)


def change(root, chance):
    """One random act of an owner."""
    names = ["a", "b", "c d", "é"]
    place, other = (root.joinpath(*chance.choices(names, k=chance.randint(1, 3))) for _ in "12")
    with contextlib.suppress(OSError):
        match chance.choice(["write", "write", "remove", "link", "move"]):
            case "write":
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(str(chance.random()))
            case "remove" if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            case "remove":
                place.unlink()
            case "link":
                place.symlink_to(chance.choice(names))
            case "move":
                place.rename(other)


@pytest.mark.parametrize("seed", range(12))
def test_commit_and_dirty_files_make_the_checkout(make_repo, git, head, tmp_path, seed):
    chance = random.Random(seed)
    root = make_repo({"z": ""})
    for number in range(60):
        change(root, chance)
        if number in {25, 40}:
            git("add", "--all", cwd=root)
        if number == 25:
            git("commit", "--quiet", "--allow-empty", "--message", "second", cwd=root)
    copy = tmp_path / "copy"
    git("worktree", "add", "--quiet", "--detach", copy, "HEAD", cwd=root)
    bring(root, copy, dirty_of(root, head(root)))
    assert content_of(copy) == content_of(root)


def test_unusual_names_of_dirty_files(make_repo, git, head):
    root = make_repo({f"d/{name}": "1\n" for name in ODD})
    plant(root, {f"d/{name}": "2\n" for name in ODD[::2]} | {f"n/{name}": "" for name in ODD})
    for name in ODD[1::2]:
        (root / "d" / name).unlink()
    dirty = dirty_of(root, head(root))
    assert set(dirty.changed) == {f"d/{name}" for name in ODD[::2]} | {f"n/{name}" for name in ODD}
    assert set(dirty.removed) == {f"d/{name}" for name in ODD[1::2]}


def test_rename_is_a_removal_and_an_addition(repo, git, head):
    git("config", "diff.renames", "copies", cwd=repo)
    git("mv", "app.py", "main.py", cwd=repo)
    assert dirty_of(repo, head(repo)) == (("main.py",), ("app.py",), ())


def test_kinds_that_changed(make_repo, head):
    root = make_repo({"file": "1", "dir/a": "1", "dir/b": "1", "to-link": "1", "tree/x": "1"})
    (root / "file").unlink()
    plant(root, {"file/inner": "", "elsewhere/x": "1"})
    shutil.rmtree(root / "dir")
    plant(root, {"dir": "now a file"})
    (root / "to-link").unlink()
    (root / "to-link").symlink_to("nowhere")
    shutil.rmtree(root / "tree")
    (root / "tree").symlink_to("elsewhere")
    dirty = dirty_of(root, head(root))
    assert dirty.changed == ("dir", "elsewhere/x", "file/inner", "to-link", "tree")
    # `tree/x` can be seen through the link, and is gone all the same.
    assert dirty.removed == ("dir/a", "dir/b", "file", "tree/x")


def test_removed_from_the_index_only(repo, git, head):
    commit = head(repo)
    git("rm", "--quiet", "--cached", "app.py", "src/calc.py", cwd=repo)
    with (repo / ".git/info/exclude").open("a") as exclude:
        exclude.write("/src/calc.py\n")
    # One is untracked now, the other ignored: both are there.
    assert dirty_of(repo, commit) == (("app.py", "src/calc.py"), (), ())


def test_conflict(repo, git, head):
    git("checkout", "--quiet", "-b", "other", "HEAD~1", cwd=repo)
    plant(repo, {"README.md": "other\n"})
    git("commit", "--quiet", "--all", "--message", "other", cwd=repo)
    commit = head(repo)
    git("merge", "--quiet", "main", cwd=repo, check=False)
    assert "<<<<" in (repo / "README.md").read_text()
    assert dirty_of(repo, commit).changed == ("README.md",)


def test_dirty_secrets_stay_out(make_repo, git, head):
    root = make_repo({".env": "A=1", "web/.env": "", "gone/.env": "", "cfg/a.pem": CERTIFICATES})
    plant(root, {".env": "A=secret", "web/.env": "x", "cfg/a.pem": KEY, ".npmrc": "_auth=x"})
    plant(root, {".aws/a/b": "", ".aws/c": "", "q/id_rsa": "", "q/ok": "", "src/secrets/x.py": ""})
    (root / "gone/.env").unlink()
    git("add", "web", cwd=root)
    dirty = dirty_of(root, head(root))
    assert dirty.changed == ("q/ok", "src/secrets/x.py")
    assert dirty.removed == ("gone/.env",)
    assert reasons(dirty.left_out) == {
        ".env": "an environment file",
        "web/.env": "an environment file",
        "cfg/a.pem": "a private key",
        ".npmrc": "settings with a password or token",
        ".aws": "credentials of a cloud",
        "q/id_rsa": "a private key",
    }
    named = dirty_of(root, head(root), carry=["web/.env", ".aws"], never=["q"])
    assert named.changed == (".aws/a/b", ".aws/c", "src/secrets/x.py", "web/.env")
    assert reasons(named.left_out)["q"] == "`q` is in `project.never`"


def test_repositories_inside_stay_out(make_repo, git, head):
    library = make_repo(name="library")
    root = make_repo(name="main")
    git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", library, "lib", cwd=root)
    git("commit", "--quiet", "--message", "with a submodule", cwd=root)
    commit = head(root)
    assert dirty_of(root, commit) == ((), (), ())
    plant(root, {"lib/app.py": "changed\n", "home/store": ""})
    git("config", "diff.ignoreSubmodules", "all", cwd=root)
    git("init", "--quiet", "own/repo", cwd=root)
    plant(root, {"own/repo/x": "", "own/y": ""})
    git("worktree", "add", "--quiet", "--detach", root / "tree", cwd=root)
    dirty = dirty_of(root, commit, home=str(root / "home"))
    assert (dirty.changed, dirty.removed) == (("own/y",), ())
    assert reasons(dirty.left_out) == {
        "home": "Atoll's home directory",
        "lib": "a submodule",
        "own/repo": "a nested repository",
        "tree": "a worktree of this repository",
    }


def test_no_program_of_the_owners_settings_is_run(repo, git, head, tmp_path):
    plant(tmp_path, {"spy": f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n"})
    (tmp_path / "spy").chmod(0o755)
    git("config", "diff.external", tmp_path / "spy", cwd=repo)
    git("config", "diff.spy.textconv", tmp_path / "spy", cwd=repo)
    git("config", "diff.spy.command", tmp_path / "spy", cwd=repo)
    git("config", "core.fsmonitor", tmp_path / "spy", cwd=repo)
    git("config", "color.ui", "always", cwd=repo)
    plant(repo, {".gitattributes": "* diff=spy\n", "app.py": "2\n"})
    index = (repo / ".git/index").read_bytes()
    assert dirty_of(repo, head(repo)).changed == (".gitattributes", "app.py")
    find_carried(repo)
    assert not (tmp_path / "ran").exists()
    assert (repo / ".git/index").read_bytes() == index


def test_tracked_secrets_are_reported(make_repo, git):
    root = make_repo(
        {
            ".env.test": "",
            "a/.ssh/known": "",
            "cfg/a.pem": KEY,
            "cfg/b.pem": CERTIFICATES,
            "c.pem": KEY,
            "app.py": "",
        }
    )
    (root / "c.pem").unlink()
    (root / ".env.test").unlink()
    assert tracked_secrets(str(root)) == [
        (".env.test", "an environment file, which git tracks"),
        ("a/.ssh/known", "keys, which git tracks"),
        ("cfg/a.pem", "a private key, which git tracks"),
    ]


# The stamp.


@pytest.fixture
def installed(project):
    root = project(
        {
            **{f"node_modules/p{number}/index.js": "" for number in range(40)},
            "node_modules/@scope/a/index.js": "",
            "node_modules/.package-lock.json": "{}",
            "node_modules/.cache/tool/x": "",
            ".venv/pyvenv.cfg": "",
            ".venv/lib/python3.12/site-packages/a-1.dist-info/METADATA": "",
            "target/debug/deps/a.o": "",
            "packages/a/node_modules/x/index.js": "",
            "a.log": "",
            "package-lock.json": "{}",
            "requirements-dev.txt": "",
        },
        ignore="node_modules\n.venv\n/target\n*.log\n",
    )
    found = find_carried(root)
    assert found.directories == (".venv", "node_modules", "target")

    def stamps():
        return fingerprint(str(root), found.directories, found.rest)

    return root, stamps


def test_stamp_stays_when_nothing_changes(installed):
    root, stamps = installed
    before = stamps()
    assert set(before) == {ROOT, REST, ".venv", "node_modules", "target"}
    scanned(root, find_carried(root))
    assert stamps() == before


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("node_modules", lambda root: plant(root, {"node_modules/new/index.js": ""})),
        ("node_modules", lambda root: shutil.rmtree(root / "node_modules/p7")),
        ("node_modules", lambda root: plant(root, {"node_modules/@scope/b/index.js": ""})),
        ("node_modules", lambda root: plant(root, {"node_modules/p3/extra.js": ""})),
        ("node_modules", lambda root: plant(root, {"node_modules/.package-lock.json": '{"a":1}'})),
        (".venv", lambda root: plant(root, {".venv/pyvenv.cfg": "version = 3\n"})),
        ("target", lambda root: plant(root, {"target/debug/deps/b.o": ""})),
        ("target", lambda root: shutil.rmtree(root / "target")),
        (REST, lambda root: plant(root, {"packages/a/node_modules/y/index.js": ""})),
        (REST, lambda root: plant(root, {"packages/a/other.log": ""})),
        (REST, lambda root: plant(root, {"a.log": "more"})),
        (ROOT, lambda root: plant(root, {"dist/x": ""})),
        (ROOT, lambda root: plant(root, {"package-lock.json": '{"a":1}'})),
        (ROOT, lambda root: plant(root, {"requirements-dev.txt": "x"})),
        (ROOT, lambda root: plant(root, {".gitignore": "node_modules\n"})),
    ],
)  # fmt: skip
def test_stamp_tells_what_changed(installed, key, change):
    root, stamps = installed
    before = stamps()
    change(root)
    after = stamps()
    assert after.keys() == before.keys()
    assert after[key] != before[key]


def test_stamp_tells_an_updated_package(installed):
    root, stamps = installed
    before = stamps()
    # As npm and pip do it: the new one is put beside the old one, which is then replaced.
    plant(root, {"node_modules/.p5-x/index.js": "2"})
    shutil.rmtree(root / "node_modules/p5")
    (root / "node_modules/.p5-x").rename(root / "node_modules/p5")
    packages = root / ".venv/lib/python3.12/site-packages"
    (packages / "a-1.dist-info").rename(packages / "a-2.dist-info")
    after = stamps()
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"node_modules", ".venv"}


def test_stamp_overlooks_caches_and_tracked_files(installed):
    root, stamps = installed
    before = stamps()
    plant(root, {"node_modules/.cache/tool2/y": "", "src/other.py": ""})
    assert stamps() == before


def test_stamp_of_what_is_gone(tmp_path):
    assert set(fingerprint(str(tmp_path / "no"), ["a"], ["b"])) == {ROOT, REST, "a"}


def test_stamp_looks_at_a_bounded_number(project, monkeypatch):
    root = project({}, ignore="node_modules\n")
    for number in range(1500):
        (root / f"node_modules/p{number}").mkdir(parents=True)
        if number < 900:
            (root / f"packages/p{number}/node_modules").mkdir(parents=True)
    calls = []
    real = os.lstat

    def counted(path, **options):
        calls.append(path)
        return real(path, **options)

    monkeypatch.setattr(os, "lstat", counted)
    rest = [f"packages/p{number}/node_modules" for number in range(900)]
    first = fingerprint(str(root), ["node_modules"], rest)
    assert len(calls) < 2500
    assert fingerprint(str(root), ["node_modules"], rest) == first
    assert stat.S_ISDIR(real(calls[0]).st_mode)
