"""Variables for one run reach the command, and are recorded nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import atoll as library

CANARY = "canary-7f3a-value"


def recorded(home):
    """The files that contain the value."""
    files = (path for path in Path(home).rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if CANARY.encode() in path.read_bytes()]


def command_lines():
    found = []
    for entry in os.listdir("/proc"):
        try:
            content = Path("/proc", entry, "cmdline").read_bytes()
        except OSError:
            continue
        if CANARY.encode() in content:
            found.append(entry)
    return found


@pytest.mark.parametrize("level", ["none", "worktree", "clone", "sandbox"])
def test_value_reaches_only_the_command(atoll, repo, atoll_home, level, tmp_path):
    atoll("new", "x", "--level", level, cwd=repo)
    (tmp_path / "env").write_text(f"FROM_FILE='{CANARY}-file'\n")
    words = ("--env", "PLAIN=short", "--env", "SECRET", "--env-file", tmp_path / "env")
    script = 'echo "$PLAIN $SECRET $FROM_FILE"; printf %.9s "$SECRET"; echo "${SECRET#?????????}"'
    done = atoll("run", "x", *words, "--", "sh", "-c", script, cwd=repo, env={"SECRET": CANARY})
    assert done.stdout == f"short {CANARY} {CANARY}-file\n{CANARY}\n"
    assert recorded(atoll_home) == []
    logged = atoll("logs", "x", cwd=repo).stdout
    assert logged == "short [redacted] [redacted]\n[redacted]\n"
    plain = atoll("run", "x", "--", "sh", "-c", 'echo "[$SECRET]"', cwd=repo)
    assert plain.stdout == "[]\n"
    atoll("rm", "x", "--force", cwd=repo)
    assert recorded(atoll_home) == []


@pytest.mark.parametrize("level", ["worktree", "sandbox"])
def test_value_is_invisible_while_the_command_runs(atoll, repo, atoll_home, level, wait_for):
    atoll("new", "x", "--level", level, cwd=repo)
    atoll(
        "run", "x", "-d", "--env", "SECRET", "--", "sh", "-c",
        'echo "$SECRET"; exec sleep 600', cwd=repo, env={"SECRET": CANARY},
    )  # fmt: skip
    wait_for(lambda: "redacted" in atoll("logs", "x", cwd=repo).stdout)
    assert command_lines() == []
    assert recorded(atoll_home) == []
    for words in (("show", "x", "--json"), ("ls", "--json"), ("ps", "x", "--json")):
        assert CANARY not in atoll(*words, cwd=repo, check=False).stdout
    atoll("rm", "x", "--force", cwd=repo)


def test_errors_have_no_value(atoll, repo, atoll_home):
    atoll("new", "x", "--level", "worktree", cwd=repo)
    for word in (f"ATOLL_RUN={CANARY}", f"A-B={CANARY}", f"={CANARY}"):
        done = atoll("run", "x", "--env", word, "--", "true", cwd=repo, check=False)
        assert done.returncode == 2
        assert CANARY not in done.stdout + done.stderr
    done = atoll("run", "x", "--env", "NOT_SET_ANYWHERE", "--", "true", cwd=repo, check=False)
    assert (done.returncode, "not set" in done.stderr) == (2, True)
    done = atoll(
        "run", "x", "--json", "--env", "K", "--", "no-such-program", cwd=repo, check=False,
        env={"K": CANARY},
    )  # fmt: skip
    assert CANARY not in done.stdout + done.stderr
    assert json.loads(done.stdout)
    assert recorded(atoll_home) == []
    atoll("rm", "x", "--force", cwd=repo)


def test_library(repo, atoll_home):
    project = library.open_project(repo)
    with project.new("x", level="worktree") as capsule:
        result = capsule.run(["sh", "-c", 'echo "$KEY"'], env={"KEY": CANARY})
        assert result.stdout.decode() == f"{CANARY}\n"
        assert recorded(atoll_home) == []
    project.session.store.close()
