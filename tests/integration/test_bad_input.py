"""Wrong input: each mistake gets a clear error with the right code, and nothing is lost or left."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from persons import ONLY

BAD_NAMES = ["a/b", "..", "-x", "a" * 300, "🦀", "Upper", "x y", "", "a_b", "a\nb", "a-", "é"]


def fails(result, code, *words):
    assert result.returncode == code, result.stderr
    assert any(line.startswith("error: ") for line in result.stderr.splitlines())
    for word in words:
        assert word in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert "bug in atoll" not in result.stderr


def test_not_a_repository(atoll, tmp_path):
    fails(atoll("new", "x", cwd=tmp_path, check=False), 4, "not in a git repository", "git init")


def test_no_commit(atoll, make_repo):
    fails(atoll("new", "x", cwd=make_repo(files={}), check=False), 4, "no commit yet", "hint:")


def test_bare_repository(atoll, git, tmp_path):
    git("init", "--bare", "--quiet", "bare.git", cwd=tmp_path)
    fails(atoll("new", "x", cwd=tmp_path / "bare.git", check=False), 4, "bare repository")


def test_no_such_directory(atoll, tmp_path):
    fails(atoll("ls", "--project", tmp_path / "gone", check=False), 4, "no directory")


@pytest.mark.parametrize("name", ["with space", "quo'te\"s", "new\nline", "ünï-東京", "$(touch x)"])
def test_an_odd_project_path_just_works(name, atoll, make_repo, git):
    root = make_repo(name=name)
    atoll("new", "x", cwd=root)
    assert atoll("run", "x", "--", "git", "status", "--porcelain", cwd=root).stdout == ""
    atoll("run", "x", "--", "sh", "-c", "echo 1 > made", cwd=root)
    assert "made" in atoll("diff", "x", cwd=root).stdout
    atoll("rm", "x", "--force", cwd=root)
    atoll("recover", "x", cwd=root)
    assert atoll("run", "x", "--", "cat", "made", cwd=root).stdout == "1\n"
    assert git("fsck", "--no-dangling", cwd=root) == ""


def test_a_path_that_is_not_utf8_is_refused(atoll, tmp_path):
    root = os.fsencode(tmp_path) + b"/na\xefve"
    os.mkdir(root)
    subprocess.run(["git", "init", "--quiet", root], check=True)
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "1"], cwd=root, check=True)
    result = atoll("new", "x", "--project", os.fsdecode(root), check=False)
    fails(result, 2, "not UTF-8")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused(name, atoll, repo, atoll_home):
    fails(atoll("new", "--", name, cwd=repo, check=False), 2, "not usable")
    assert not list((atoll_home / "projects").glob("*/*"))


def test_a_name_that_exists(atoll, repo):
    atoll("new", "x", cwd=repo)
    fails(atoll("new", "x", cwd=repo, check=False), 4, "already", "atoll show x")


def test_a_branch_that_exists_is_not_touched(atoll, repo, git):
    git("branch", "atoll/x", cwd=repo)
    before = git("rev-parse", "atoll/x", cwd=repo)
    fails(atoll("new", "x", cwd=repo, check=False), 4, "branch `atoll/x` exists")
    assert git("rev-parse", "atoll/x", cwd=repo) == before
    git("worktree", "add", "--quiet", "../elsewhere", "atoll/x", cwd=repo)
    fails(atoll("new", "x", cwd=repo, check=False), 4, "checked out at", "elsewhere")


@pytest.mark.parametrize(
    "ref", ["nosuch", "--upload-pack=touch x", "-h", "HEAD\n", "a..b", "@{1000}"]
)
def test_a_ref_that_names_nothing(ref, atoll, repo):
    result = atoll("new", "x", f"--from={ref}", cwd=repo, check=False)
    fails(result, 4, "ambiguous revision")


@pytest.mark.parametrize("level", ["container", "vm"])
def test_a_level_that_does_not_exist_never_runs(level, atoll, repo, git, monkeypatch):
    monkeypatch.delenv("ATOLL_LEVEL")
    result = atoll("new", "x", "--level", level, cwd=repo, check=False)
    fails(result, 6, "is not implemented yet", "hint:")
    assert git("branch", "--list", "atoll/*", cwd=repo) == ""
    (repo / "atoll.toml").write_text(f'[capsule]\nlevel = "{level}"\n')
    atoll("trust", cwd=repo)
    assert atoll("new", "x", cwd=repo, check=False).returncode == 6


def test_the_whole_example_file_is_understood_and_refused_as_a_whole(atoll, repo):
    (repo / "atoll.toml").write_text(
        '[capsule]\nnetwork = "allow"\nlimits = { memory = "4G", time = "1h" }\n'
    )
    atoll("trust", cwd=repo)
    result = atoll("new", "x", cwd=repo, check=False)
    fails(result, 6, "limit `memory`", "network")
    atoll("new", "x", "--network", "open", "--limit", "memory=none", cwd=repo)


def test_the_path_of_a_project_moves_no_cursor(atoll, make_repo):
    root = make_repo(name="p\x1b]0;x\x07")
    (root / "atoll.toml").write_text('[capsule]\nsetup = ["true"]\n')
    said = [atoll(word, cwd=root) for word in ("trust", "untrust")]
    (root / "atoll.toml").unlink()
    said.append(atoll("new", "x", "--level", "none", "--dry-run", cwd=root))
    atoll("new", "x", "--level", "none", cwd=root)
    said += [atoll("rm", "x", "--dry-run", cwd=root), atoll("show", "x", cwd=root)]
    for one in said:
        assert (one.stdout + one.stderr).replace("\n", "").isprintable(), one
    assert "\\x1b]0;x\\x07" in said[-1].stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[capsule]\nlevl = 'x'\n", ["capsule.levl", "did you mean `level`"]),
        ("not toml at all", ["atoll.toml:1"]),
        ("[capsule]\nsetup = 'x'\n[nope]\n", ["capsule.setup", "nope"]),
        ("\x00\x1b]52;c;x\x07", ["atoll.toml"]),
        ("a." * 5000 + "b = 1", ["atoll.toml"]),
        ("x = " + "[" * 20000, ["atoll.toml"]),
    ],
)
def test_a_bad_project_file_is_reported_and_does_not_block_the_rest(text, words, atoll, repo):
    atoll("new", "before", cwd=repo)
    (repo / "atoll.toml").write_text(text)
    result = atoll("new", "x", cwd=repo, check=False)
    fails(result, 2, *words)
    assert "\x1b" not in result.stderr
    atoll("ls", cwd=repo)
    atoll("rm", "before", cwd=repo)


def test_a_hostile_project_file_is_not_followed(atoll, repo, tmp_path):
    (repo / "atoll.toml").symlink_to("/etc/passwd")
    fails(atoll("new", "x", cwd=repo, check=False), 4, "symbolic link")
    (repo / "atoll.toml").unlink()
    os.mkfifo(repo / "atoll.toml")
    fails(atoll("new", "x", cwd=repo, check=False), 4, "not a regular file")
    (repo / "atoll.toml").unlink()
    (repo / "atoll.toml").write_bytes(b"#" * (2 << 20))
    fails(atoll("new", "x", cwd=repo, check=False), 4, "larger than")


def test_commands_of_a_file_run_only_after_approval(atoll, repo):
    (repo / "atoll.toml").write_text('[capsule]\nsetup = ["touch set-up"]\n')
    fails(
        atoll("new", "x", cwd=repo, check=False), 4, "not approved", "touch set-up", "atoll trust"
    )
    atoll("trust", cwd=repo)
    atoll("new", "x", cwd=repo)
    assert atoll("run", "x", "--", "ls", "set-up", cwd=repo).returncode == 0
    with (repo / "atoll.toml").open("a") as file:
        file.write("# changed\n")
    fails(atoll("new", "y", cwd=repo, check=False), 4, "has changed since")
    atoll("trust", cwd=repo)
    atoll("untrust", cwd=repo)
    fails(atoll("new", "y", cwd=repo, check=False), 4, "not approved")


def test_the_file_in_a_capsule_is_never_read(atoll, repo):
    atoll("new", "x", cwd=repo)
    hostile = '[capsule]\nsetup = ["touch owned"]\nlevel = "none"\n'
    where = Path(atoll("path", "x", cwd=repo).stdout.strip())
    (where / "atoll.toml").write_text(hostile)
    # Asked from inside the workspace too: the owner's checkout is the one that counts.
    atoll("new", "y", cwd=where)
    assert not (where / "owned").exists()
    assert json.loads(atoll("show", "y", "--json", cwd=repo).stdout)["data"]["level"] == "worktree"


def test_a_failing_set_up_leaves_nothing(atoll, repo, atoll_home, git):
    (repo / "atoll.toml").write_text('[capsule]\nsetup = ["echo oops >&2; exit 3"]\n')
    atoll("trust", cwd=repo)
    fails(atoll("new", "x", cwd=repo, check=False), 1, "exit code 3", "oops")
    assert json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"] == []
    assert git("branch", "--list", "atoll/*", cwd=repo) == ""
    assert not list((atoll_home / "projects").glob("*/*"))
    assert not list((atoll_home / "locks").iterdir())


def test_init_writes_trusts_and_never_overwrites(atoll, make_repo):
    root = make_repo(files={"package.json": '{"scripts": {"test": "echo ok"}}', "a.js": ""})
    atoll("init", cwd=root)
    text = (root / "atoll.toml").read_text()
    assert "[checks.test]" in text
    atoll("new", "x", cwd=root)
    fails(atoll("init", cwd=root, check=False), 4, "exists already")
    assert (root / "atoll.toml").read_text() == text


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_submodule_and_an_lfs_pointer(is_configured, atoll, make_repo, git):
    """Whether or not git-lfs is installed, and whether or not git knows of it."""
    if is_configured:
        git("config", "--global", "filter.lfs.process", "git-lfs filter-process", cwd=Path("/"))
        git("config", "--global", "filter.lfs.clean", "git-lfs clean -- %f", cwd=Path("/"))
        git("config", "--global", "filter.lfs.smudge", "git-lfs smudge -- %f", cwd=Path("/"))
    inner = make_repo(name="inner")
    root = make_repo(
        files={
            ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
            "big.bin": "version https://git-lfs.github.com/spec/v1\noid sha256:"
            f"{'ab' * 32}\nsize 1\n",
        },
        name="outer",
    )
    if is_configured:
        # The object is nowhere. Where git needs the filter, its own checkout would fail.
        git("config", "--global", "filter.lfs.required", "true", cwd=Path("/"))
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "--quiet", "add", inner, "sub", cwd=root)
    git("commit", "-qm", "submodule", cwd=root)
    atoll("new", "x", cwd=root)
    assert "git-lfs" in atoll("run", "x", "--", "cat", "big.bin", cwd=root).stdout
    update = ("git", *allow, "submodule", "--quiet", "update", "--init")
    atoll("run", "x", "--", *update, cwd=root)
    assert atoll("run", "x", "--", "cat", "sub/app.py", cwd=root).stdout == "print('hello')\n"
    # A populated submodule without changes is no work, and does not keep the capsule from going.
    atoll("rm", "x", cwd=root)
    assert "atoll/x" not in git("branch", "--list", "atoll/*", cwd=root)


def test_a_home_of_another_user_or_open_to_others(atoll, repo, atoll_home):
    atoll_home.mkdir(mode=0o777)
    atoll_home.chmod(0o777)
    fails(atoll("ls", cwd=repo, check=False), 3, "written by others", "chmod")
    if os.geteuid() == 0:
        atoll_home.chmod(0o700)
        os.chown(atoll_home, 12345, 12345)
        fails(atoll("ls", cwd=repo, check=False), 3, "belongs to user id 12345")


def test_a_home_that_is_a_file(atoll, repo, atoll_home):
    atoll_home.write_text("")
    fails(atoll("ls", cwd=repo, check=False), 3, "cannot be used as Atoll's home")


def test_a_damaged_and_a_newer_database(atoll, repo, atoll_home):
    atoll("new", "x", cwd=repo)
    database = atoll_home / "state.db"
    keep = database.read_bytes()
    database.write_bytes(b"this is not a database at all" * 50)
    fails(atoll("ls", cwd=repo, check=False), 4, "damaged", "atoll gc")
    assert atoll("doctor", cwd=repo, check=False).returncode == 3
    database.write_bytes(keep)
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    fails(atoll("ls", cwd=repo, check=False), 4, "newer Atoll")


SMALL_DISK = """
set -e
mount -t tmpfs -o size=2m tmpfs "$HOME_DIR"
export ATOLL_HOME="$HOME_DIR/atoll"
"$PYTHON" -m atoll -q ls
set +e
"$PYTHON" -m atoll new big; echo "big $?"
"$PYTHON" -m atoll -q ls; echo "ls $?"
"$PYTHON" -m atoll new small --from HEAD~1; echo "small $?"
"$PYTHON" -m atoll run small -- sh -c 'cat /dev/zero > filler'; echo "fill $?"
"$PYTHON" -m atoll -q ls; echo "ls $?"
"$PYTHON" -m atoll rm small --force; echo "rm $?"
"$PYTHON" -m atoll gc; echo "gc $?"
mount -o remount,bind,ro "$HOME_DIR"
"$PYTHON" -m atoll ls; echo "ro $?"
"""


def test_a_full_and_a_read_only_home(repo, git, tmp_path, require_tool):
    """On a small filesystem of the test's own, mounted in a namespace of the test's own."""
    (repo / "big").write_bytes(os.urandom(4 << 20))
    git("add", "big", cwd=repo)
    git("commit", "-qm", "big", cwd=repo)
    place = tmp_path / "small"
    place.mkdir()
    namespace = [require_tool("unshare"), "--mount"]
    if os.geteuid() != 0:
        namespace += ["--user", "--map-root-user"]
    result = subprocess.run(
        [*namespace, "sh", "-c", SMALL_DISK],
        cwd=repo,
        env={**os.environ, "HOME_DIR": str(place), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = result.stdout + result.stderr
    codes = dict(line.split() for line in result.stdout.splitlines() if len(line.split()) == 2)
    assert codes["big"] in ("3", "5"), said
    assert "No space left" in said
    assert "Traceback" not in said
    assert (codes["small"], codes["gc"], codes["ro"]) == ("0", "0", "0"), said
    assert git("branch", "--list", "atoll/big", cwd=repo) == "", said
    assert git("fsck", "--no-dangling", cwd=repo) == ""


def test_the_cli_without_git_says_so(repo, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    done = subprocess.run(
        [sys.executable, "-c", ONLY, tools, "new", "x"], cwd=repo,
        env={**os.environ, "PATH": str(tools)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    fails(done, 6, "git is not installed")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["frobnicate"], ["unknown verb `frobnicate`"]),
        (["lss"], ["did you mean `ls`"]),
        (["run", "x"], ["atoll run NAME -- COMMAND"]),
        (["run", "x", "ls", "-la"], ["atoll run NAME -- COMMAND"]),
        (["new"], ["atoll new --help"]),
        (["new", "x", "--limit", "memry=1G"], ["did you mean `memory`"]),
        (["new", "x", "--limit", "nonsense"], ["key=value"]),
        (["new", "x", "--level", "sandbx"], ["did you mean `sandbox`"]),
        (["new", "x", "-n", "0"], ["atoll new --help"]),
        (["logs", "x", "zz"], ["not a run"]),
        (["snapshots", "x", "-n", "-1"], ["atoll snapshots --help"]),
        (["network", "x", "-n", "-1"], ["atoll network --help"]),
        (["browser"], ["Choose from: status, settings, reset"]),
        (["demo", "--keep", "."], ["already exists"]),
    ],
)
def test_a_wrong_request_is_reported(args, words, atoll, repo):
    if args[0] == "logs":
        atoll("new", "x", cwd=repo)
    fails(atoll(*args, cwd=repo, check=False), 2, *words)


def test_errors_are_json_when_asked(atoll, repo):
    result = atoll("show", "nope", "--json", cwd=repo, check=False)
    error = json.loads(result.stdout)
    assert (error["version"], error["kind"]) == (1, "error")
    assert error["data"]["exit_code"] == result.returncode == 4
    assert error["data"]["hint"] == "atoll ls"


def test_a_capsule_that_cannot_be_put_right_blocks_no_other(atoll, repo, make_repo, atoll_home):
    """A killed removal whose repository is broken is reported by `gc`, kept, and tried again."""
    atoll("new", "stuck", cwd=repo)
    other = make_repo(name="other")
    connection = sqlite3.connect(atoll_home / "state.db")
    removal = json.dumps({"point": "stuck/1", "keep_branch": False})
    connection.execute("UPDATE capsules SET state = 'removing', removal = ?", (removal,))
    connection.commit()
    connection.close()
    config = repo / ".git/config"
    keep = config.read_text()
    config.write_text("[broken\n")
    # Another project neither waits for it nor hears of it.
    assert "warning" not in atoll("new", "x", cwd=other).stderr
    assert "removing" in atoll("ls", "-a", cwd=other).stdout
    assert "warning: `stuck` is still removing" in atoll("gc", cwd=other).stderr
    config.write_text(keep)
    assert "warning" not in atoll("ls", cwd=other).stderr
    assert json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"] == []
