"""What the program says, word for word: answers, mistakes and JSON.

Each scene runs the real program on a real repository. A change of words shows as a change of the
files in `stored/`, which a reviewer reads.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCENES: dict[str, Callable[..., None]] = {}

PROJECT_FILE = """\
[capsule]
setup = ["true"]
env = { LOG_LEVEL = "debug" }
limits = { time = "2h" }

[services.web]
command = "python3 serve.py"
port = 3000

[checks.test]
run = "python3 -m unittest"
"""
CHECKS = """\
[checks.unit]
run = "grep hello app.py"
[checks.speed]
run = "echo parse 12.5 ms lower"
figures = true
[checks.served]
run = "true"
needs = ["db"]
[services.db]
command = "true"
"""
MISTAKEN_FILE = """\
[capsule]
levl = "worktree"
network = "opn"
limits = { memory = "4X", time = "2h" }
[services.web]
command = "x"
port = 99999
[stages.local]
merge = "squash"
"""

SANDBOX = {"ATOLL_LEVEL": "sandbox"}
AGENT = """\
#!/bin/sh
echo '{"type": "say", "text": "I look at it."}'
echo '{"type": "tool", "tool": "shell", "text": "cat app.py"}'
echo '{"type": "result", "text": "print(1)"}'
printf '%s\\n' "$1" >> work.txt
echo '{"type": "usage", "model": "scripted", "input_tokens": 90, "output_tokens": 10}'
echo '{"type": "done", "text": "It is done."}'
"""


def scene(function: Callable[..., None]) -> Callable[..., None]:
    SCENES[function.__name__.replace("_", "-")] = function
    return function


# The scenes: each gets the teller, a repository and git.


@scene
def life_of_a_capsule(tell, repo, git):
    tell("ls", cwd=repo)
    tell("new", "fix-auth", "--dry-run", cwd=repo)
    tell("new", "fix-auth", cwd=repo)
    tell("ls", cwd=repo)
    tell("run", "fix-auth", "--", "sh", "-c", "echo new > note.txt; echo more >> app.py", cwd=repo)
    tell("show", "fix-auth", cwd=repo)
    tell("path", "fix-auth", cwd=repo)
    tell("diff", "fix-auth", "--stat", cwd=repo)
    tell("diff", "fix-auth", cwd=repo)
    tell("rm", "fix-auth", "--dry-run", cwd=repo)
    tell("rm", "fix-auth", cwd=repo)
    tell("commit", "fix-auth", "-m", "auth: note it", cwd=repo)
    tell("commit", "fix-auth", "-m", "auth: note it", cwd=repo)
    tell("rm", "fix-auth", cwd=repo)
    git("merge", "--quiet", "atoll/fix-auth", cwd=repo)
    tell("rm", "fix-auth", cwd=repo)


@scene
def checks_and_trials(tell, repo, git):
    del git
    tell("new", "fix-auth", "--level", "clone", cwd=repo)
    tell("check", "fix-auth", cwd=repo)
    (repo / "atoll.toml").write_text(CHECKS)
    tell("check", "fix-auth", cwd=repo)
    tell("trust", cwd=repo)
    tell("check", "fix-auth", cwd=repo)
    tell("check", "fix-auth", "speed", "--json", cwd=repo)
    tell("check", "fix-auth", "unt", cwd=repo)
    tell("check", "fix-auth", "served", cwd=repo)
    tell("run", "fix-auth", "--", "sh", "-c", "echo broken > app.py", cwd=repo)
    tell("check", "fix-auth", "unit", cwd=repo)
    tell("check", "fix-auth", "unit", "--here", cwd=repo)
    tell("bisect", "fix-auth", "--check", "unit", cwd=repo)
    tell("try", "fix-auth", "--check", "unit", "--", "sh", "-c", "echo worse > app.py", cwd=repo)
    tell("try", "fix-auth", "--check", "speed", "--", "true", cwd=repo)
    tell("rm", "fix-auth", "--force", cwd=repo)


@scene
def several_capsules(tell, repo, git):
    tell("new", "try", "-n", "3", cwd=repo)
    tell("ls", cwd=repo)
    tell("rm", "try-1", "try-2", "try-3", cwd=repo)


@scene
def background_runs(tell, repo, git):
    tell("new", "c", cwd=repo, shown=False)
    tell("run", "c", "-d", "--", "sh", "-c", "echo hello; exit 3", cwd=repo)
    tell("wait", "c", cwd=repo)
    tell("logs", "c", cwd=repo)
    tell("run", "c", "-d", "--", "sleep", "300", cwd=repo)
    tell("ls", cwd=repo)
    tell("wait", "c", "--timeout", "0", cwd=repo)
    tell("rm", "c", cwd=repo)
    tell("rm", "c", "--dry-run", cwd=repo)
    tell("stop", "c", cwd=repo)
    tell("stop", "c", cwd=repo)
    tell("wait", "c", cwd=repo)
    tell("ps", "c", cwd=repo)
    tell("attach", "c", cwd=repo)


@scene
def ends_of_runs(tell, repo, git):
    tell("new", "c", cwd=repo, shown=False)
    tell("run", "c", "--", "sh", "-c", "exit 7", cwd=repo)
    tell("run", "c", "--", "no-such-program", cwd=repo)
    tell("run", "c", "--", "./README.md", cwd=repo)
    tell("run", "c", "--timeout", "200ms", "--", "sleep", "300", cwd=repo)
    tell("run", "c", "--", "sh", "-c", "kill -9 $$", cwd=repo)
    tell("show", "c", cwd=repo)


@scene
def recovery(tell, repo, git):
    tell("recover", cwd=repo)
    tell("new", "idea", cwd=repo, shown=False)
    tell("run", "idea", "--", "sh", "-c", "echo x > idea.txt", cwd=repo, shown=False)
    tell("rm", "idea", "--force", cwd=repo)
    tell("recover", cwd=repo)
    tell("recover", "idea", "--dry-run", cwd=repo)
    tell("recover", "idea", "--as", "idea-2", cwd=repo)
    tell("diff", "idea-2", "--stat", cwd=repo)
    tell("recover", "idea", "--drop", cwd=repo)
    tell("recover", "nothing", cwd=repo)


@scene
def level_none(tell, repo, git):
    tell("new", "here", "--level", "none", "--dry-run", cwd=repo)
    tell("new", "here", "--level", "none", cwd=repo)
    tell("show", "here", cwd=repo)
    tell("commit", "here", "-m", "x", cwd=repo)
    tell("rm", "here", "--dry-run", cwd=repo)
    tell("rm", "here", cwd=repo)


@scene
def levels(tell, repo, git):
    tell("levels", cwd=repo)


@scene
def project_file(tell, repo, git):
    tell("trust", cwd=repo)
    tell("init", "--dry-run", cwd=repo)
    tell("init", cwd=repo)
    tell("init", cwd=repo)
    (repo / "atoll.toml").write_text(PROJECT_FILE)
    tell("new", "c", cwd=repo)
    tell("show", "--config", cwd=repo)
    tell("untrust", cwd=repo)
    tell("new", "c", cwd=repo)
    tell("trust", cwd=repo)
    tell("new", "c", "--dry-run", cwd=repo)
    tell("show", "--config", cwd=repo, env={"ATOLL_LIMIT_TIME": "3h"})
    tell("untrust", cwd=repo)
    tell("untrust", cwd=repo)


@scene
def mistaken_project_file(tell, repo, git):
    (repo / "atoll.toml").write_text(MISTAKEN_FILE)
    tell("new", "c", cwd=repo)
    tell("ls", cwd=repo)
    (repo / "atoll.toml").write_text("[capsule\n")
    tell("new", "c", cwd=repo)
    (repo / "atoll.toml").unlink()
    (repo / "atoll.toml").symlink_to("README.md")
    tell("new", "c", cwd=repo)


@scene
def parts_that_do_not_work_yet(tell, repo, git):
    for text in (
        '[capsule]\nnetwork = "allow"\nlimits = { memory = "1G" }\n',
        '[capsule]\nsetup_network = "none"\n',
        '[tools]\nuse = "mise"\n',
        '[project]\ncarry = ["node_modules"]\n[secrets.K]\nfrom = { env = "K" }\n',
        '[capsule]\nsetup = ["echo no such luck >&2; exit 9"]\n',
    ):
        (repo / "atoll.toml").write_text(text)
        tell("trust", cwd=repo, shown=False)
        tell("new", "c", cwd=repo)


@scene
def time_travel(tell, repo, git):
    tell("new", "x", "--level", "clone", cwd=repo)
    tell("run", "x", "--", "sh", "-c", "echo one > new.txt; pwd", cwd=repo)
    tell("snapshot", "x", "-m", "first", cwd=repo)
    tell("run", "x", "--", "sh", "-c", "echo two > new.txt", cwd=repo)
    tell("diff", "x", "1", cwd=repo)
    tell("rollback", "x", cwd=repo)
    tell("run", "x", "--", "cat", "new.txt", cwd=repo)
    tell("rollback", "x", "7", cwd=repo)
    tell("snapshot", "x", "--auto", cwd=repo)
    tell("fork", "x", "y", "--at", "1", cwd=repo)
    tell("fork", "x", "y", cwd=repo)
    tell("run", "y", "-d", "--", "sleep", "100", cwd=repo)
    tell("snapshot", "y", cwd=repo)
    tell("rollback", "y", cwd=repo)
    tell("rollback", "y", "--stop", cwd=repo)
    tell("rm", "x", cwd=repo)


@scene
def work_comes_out(tell, repo, git):
    tell("new", "x", "--level", "clone", cwd=repo, shown=False)
    tell("export", "x", cwd=repo)
    tell("run", "x", "--", "sh", "-c", "echo one > new.txt", cwd=repo)
    tell("export", "x", "--all", cwd=repo)
    tell("warm", cwd=repo)
    tell("warm", "--check", cwd=repo)
    git("checkout", "--quiet", "-b", "mine", cwd=repo)
    git("branch", "--force", "atoll/x", "mine", cwd=repo)
    tell("export", "x", "--all", cwd=repo)


@scene
def mistaken_requests(tell, repo, git):
    tell("new", "c", cwd=repo, shown=False)
    git("branch", "atoll/taken", cwd=repo)
    for line in (
        "new c", "new taken", "new Fix_Auth", "new ../x", "new -- -x", "new 🏝", "new",
        "new x --level vm", "new x --level sandbx", "new x --network none",
        "new x --limit memory=2G", "new x --limit memry=2G --limit time=abc", "new x --limit time",
        "new x --from nope", "new x -n 0",
        "show", "show nope", "run", "run c", "run nope -- ls", "run c --timeout soon -- ls",
        "logs c", "logs c 9", "logs c two", "wait c", "stop nope", "attach nope", "rm", "rm nope",
        "commit c", "recover nope", "lss", "frobnicate", "completion tcsh",
    ):  # fmt: skip
        tell(*line.split(), cwd=repo)


@scene
def mistaken_places(tell, repo, git):
    place = repo.parent
    (place / "plain").mkdir()
    (place / "empty").mkdir()
    git("init", "--quiet", cwd=place / "empty")
    git("init", "--quiet", "--bare", "bare.git", cwd=place)
    (place / "open-home").mkdir()
    (place / "open-home").chmod(0o777)
    for name in ("plain", "bare.git", "missing"):
        tell("ls", "--project", str(place / name))
    tell("new", "x", "--project", str(place / "empty"))
    tell("ls", cwd=repo, env={"ATOLL_HOME": "/proc/atoll"})
    tell("ls", cwd=repo, env={"ATOLL_HOME": str(place / "open-home")})


@scene
def inside_a_capsule(tell, repo, git):
    tell("new", "c", cwd=repo, shown=False)
    # Atoll's own interpreter is not on every machine's PATH.
    tell("run", "c", "--", sys.executable, "-m", "atoll", "ls", cwd=repo)


@scene
def damaged_state(tell, repo, git):
    tell("ls", cwd=repo, shown=False)
    state = repo.parent / "atoll-home" / "state.db"
    with sqlite3.connect(state) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    tell("ls", cwd=repo)
    state.write_bytes(b"this is no database " * 200)
    tell("ls", cwd=repo)


@scene
def upkeep(tell, repo, git):
    tell("gc", "--dry-run", cwd=repo)
    tell("gc", cwd=repo)


@scene
def json_answers(tell, repo, git):
    tell("new", "c", "--dry-run", "--json", cwd=repo)
    tell("new", "c", "--json", cwd=repo)
    tell("run", "c", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3", cwd=repo)
    tell("run", "c", "--json", "--", "sh", "-c", "echo x > x.txt", cwd=repo, shown=False)
    tell("ls", "--json", cwd=repo)
    tell("show", "c", "--json", cwd=repo)
    tell("logs", "c", "1", "--json", cwd=repo)
    tell("path", "c", "--json", cwd=repo)
    tell("diff", "c", "--json", cwd=repo)
    tell("rm", "c", "--dry-run", "--json", cwd=repo)
    tell("rm", "c", "--json", cwd=repo)
    tell("rm", "c", "--force", "--json", cwd=repo)
    tell("recover", "--json", cwd=repo)
    tell("gc", "--json", cwd=repo)
    tell("show", "--config", "--json", cwd=repo)
    tell("untrust", "--json", cwd=repo)


@scene
def json_errors(tell, repo, git):
    tell("show", "nope", "--json", cwd=repo)
    tell("--json", "show", "nope", cwd=repo)
    tell("new", "x", "--level", "vm", "--json", cwd=repo)
    tell("frobnicate", "--json", cwd=repo)
    tell("new", "x", "--limit", "memry=1", "--limit", "time=x", "--json", cwd=repo)


@scene
def agents_at_work(tell, repo, git):
    agent = put_agent(repo, AGENT)
    tell("agents", cwd=repo)
    tell("spawn", agent, "Fix the auth, please", "--check", "true", cwd=repo, env=SANDBOX)
    tell("watch", "fix-auth", cwd=repo)
    tell("agents", cwd=repo)
    tell("tell", "fix-auth", "also the docs", cwd=repo)
    tell("watch", "fix-auth", cwd=repo)
    tell("watch", "fix-auth", "--no-follow", cwd=repo)
    tell("transcript", "fix-auth", cwd=repo)
    tell("tell", "fix-auth", "--budget", "turns=20", cwd=repo)
    tell("diff", "fix-auth", "--stat", cwd=repo)
    tell("rm", "fix-auth", cwd=repo)


@scene
def agents_in_json(tell, repo, git):
    agent = put_agent(repo, AGENT)
    tell("agents", "--json", cwd=repo)
    tell("spawn", agent, "Fix it", "--budget", "turns=5", "--json", cwd=repo, env=SANDBOX)
    tell("watch", "fix-it", "--json", cwd=repo)
    tell("agents", "--json", cwd=repo)
    tell("tell", "fix-it", "and more", "--json", cwd=repo)
    tell("watch", "fix-it", cwd=repo, shown=False)
    tell("transcript", "fix-it", "--json", cwd=repo)


@scene
def agents_that_fail(tell, repo, git):
    agent = put_agent(repo, "echo no luck >&2; exit 3")
    tell("spawn", agent, "Try it", "-n", "2", cwd=repo, env=SANDBOX)
    tell("watch", "try-it-1", cwd=repo)
    tell("watch", "try-it-2", cwd=repo)
    tell("agents", cwd=repo)
    tell("spawn", agent, "x", "--in", "try-it-1", "--check", "exit 9", cwd=repo)
    tell("watch", "try-it-1", cwd=repo)
    tell("stop", "try-it-1", cwd=repo)
    tell("new", "plain", cwd=repo, shown=False)
    for line in (
        "watch plain", "tell plain x", "transcript plain", "tell try-it-1", "watch nope",
    ):  # fmt: skip
        tell(*line.split(), cwd=repo)


@scene
def mistaken_spawns(tell, repo, git):
    agent = put_agent(repo, AGENT)
    only = {"PATH": "/nowhere", **SANDBOX}
    for words in (
        ["spawn"], ["spawn", "fix it"], ["spawn", "cluade", "x"], ["spawn", "claude", "x"],
        ["spawn", "script:", "x"], ["spawn", "script:/nowhere", "x"], ["spawn", agent],
        ["spawn", "command", "x"], ["spawn", agent, "x", "--in", "a", "-n", "2"],
        ["spawn", agent, "x", "-i", "-n", "2"], ["spawn", agent, "x", "--model", "m"],
        ["spawn", agent, "x", "--model=-m"], ["spawn", agent, "x", "--check", " "],
        ["spawn", agent, "x", "--budget", "much"], ["spawn", agent, "x", "--timeout", "soon"],
        ["spawn", agent, "--prompt-file", "-"], ["spawn", agent, "x", "--in", "nope"],
        ["spawn", agent, "x", "--level", "clone"], ["spawn", agent, "-x"],
    ):  # fmt: skip
        tell(*words, cwd=repo, env=only)


@scene
def secrets(tell, repo, git):
    tell("secret", cwd=repo)
    tell("secret", "ls", cwd=repo)
    given = {"TOKEN": "t0ken-0123456789", "CARD": "4111111111111111"}
    tell("secret", "set", "TOKEN", "--from-env", cwd=repo, env=given)
    tell("secret", "set", "CARD", "--from-env", "--as-file", cwd=repo, env=given)
    tell("secret", "set", "API", "--from-env", "TOKEN", "--broker", "api.example.org",
         "--allow-request", "POST /v1/*", cwd=repo, env=given)  # fmt: skip
    tell("secret", "ls", cwd=repo)
    tell("new", "x", cwd=repo, shown=False)
    tell("secret", "grant", "TOKEN", "x", cwd=repo)
    tell("secret", "grant", "TOKEN", "x", cwd=repo, env=given)
    tell("secret", "grant", "CARD", "x", "--ttl", "8h", cwd=repo, env=given)
    tell("secret", "ls", cwd=repo)
    tell("secret", "revoke", "TOKEN", "x", cwd=repo)
    tell("secret", "revoke", "TOKEN", "x", cwd=repo)
    tell("secret", "rotate", "TOKEN", cwd=repo, env={"TOKEN": "another-0123456789"})
    tell("secret", "audit", "TOKEN", cwd=repo)
    tell("secret", "rm", "CARD", cwd=repo)
    tell("secret", "ls", "--json", cwd=repo)
    for line in (
        "secret set 1X", "secret set TOKEN=value", "secret set X --from-env NOT_SET",
        "secret set X --from-file missing", "secret set X --from-env TOKEN --broker *",
        "secret set X --from-env TOKEN --ttl soon", "secret grant NOPE x",
        "secret grant TOKEN nope", "secret rm NOPE", "secret rotate NOPE", "secret audit NOPE",
    ):  # fmt: skip
        tell(*line.split(), cwd=repo, env=given)


def put_agent(repo, text):
    """A scripted agent beside the repository."""
    (repo.parent / "agent").write_text(text)
    return f"script:{repo.parent / 'agent'}"


def needs_sandbox(name):
    return name.startswith("agents-")


@pytest.mark.parametrize("name", SCENES)
def test_scene(name, tell, check, repo, git, require_tool):
    if needs_sandbox(name):
        require_tool("bwrap")
    SCENES[name](tell, repo, git)
    check(name, tell("--version", cwd=repo, shown=False))


# The tests of the tests.


def test_no_stored_file_is_left_over(stored_names):
    assert stored_names - SCENES.keys() == set()


def test_difference_is_reported(helper, tmp_path, monkeypatch):
    monkeypatch.delenv("UPDATE_SNAPSHOTS", raising=False)
    path = tmp_path / "a.txt"
    with pytest.raises(pytest.fail.Exception, match="UPDATE_SNAPSHOTS=1"):
        helper.compare(path, "new\n")
    path.write_text("old\n")
    with pytest.raises(pytest.fail.Exception, match=r"-old\n\+new"):
        helper.compare(path, "new\n")
    helper.compare(path, "old\n")


def test_update_stores(helper, tmp_path, monkeypatch):
    monkeypatch.setenv("UPDATE_SNAPSHOTS", "1")
    helper.compare(tmp_path / "below" / "a.txt", "new\n")
    assert (tmp_path / "below" / "a.txt").read_text() == "new\n"


def test_phases_are_not_stored(helper):
    assert (
        helper.without_phases("x: creating the workspace …\ncreated `x`: it …\n")
        == "created `x`: it …\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/home/projects/repo-40036c10/x", "[HOME]/projects/repo-[ID]/x"),
        ("/a/b and /a", "[TMP]/b and [TMP]"),
        ("x  sandbox  ready  0  +1  -  5.2M  12s", "x  sandbox  ready  0  +1  -  [SIZE]  [AGE]"),
        ("main@c78fe1a  24491", "main@[HASH]  [PORT]"),
        ("at c78fe1a5f8 in 0.02 s", "at [HASH] in [SECONDS] s"),
        ('"created_at": 1794735268.447287,', '"created_at": [TIME],'),
        ("hint: atoll recover x/20261115T093335-1", "hint: atoll recover x/[STAMP]"),
        ("created    2026-11-15 09:32:37", "created    [MOMENT]"),
        ('# setup = ["make deps"]    # once', '# setup = ["make deps"]    # once'),
        ("exit 128, 404 files, port 99999", "exit 128, 404 files, port 99999"),
    ],
)
def test_filter_takes_out_what_differs_and_no_more(helper, text, expected):
    assert helper.filtered(text, {"TMP": Path("/a"), "HOME": Path("/a/home")}) == expected
