"""The level `sandbox` with real tools: projects build unchanged, and nothing else is to be seen."""

from __future__ import annotations

import os
import signal

from atoll.keeper.status import load_status
from atoll.testing.conformance.bench import survey
from matches import matching
from persons import as_both, require

MAKEFILE = "app: main.o\n\t$(CC) -o app main.o\ntest: app\n\t./app\n.PHONY: test\n"
PROGRAM = '#include <stdio.h>\nint main(void) { printf("built at %s\\n", __FILE__); return 0; }\n'
SERVER = """
import http.server, os, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(os.environ["ATOLL_CAPSULE"].encode())
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""
ASK = "python3 -c \"import urllib.request as u; print(u.urlopen('http://localhost:3000').read())\""


# Real projects.


@as_both
def test_python_project_with_a_virtual_environment(person):
    require("python3")
    person.run("python3", "-m", "venv", "--without-pip", ".venv")
    python = person.repo / ".venv/bin/python"
    script = person.repo / ".venv/bin/check"
    tests = "import unittest, mine, sys\nclass T(unittest.TestCase):\n  def test_it(self):\n"
    person.write(
        {
            ".gitignore": ".venv/\n",
            ".venv/bin/check": f"#!{python}\nimport sys, mine; print(sys.prefix, mine.who)\n",
            "mine.py": "who = 'owner'\n",
            "test_mine.py": f"{tests}    self.assertEqual(mine.who, 'capsule')\n",
        }
    )
    script.chmod(0o755)
    person.commit("project")
    before = survey(person.repo)
    person.atoll("new", "x")
    ask = f"PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 {script}"
    assert person.sh("x", ask) == f"{person.repo}/.venv owner\n"
    person.sh("x", f"{python} -m unittest -q", code=1)
    person.sh("x", f"echo 'who = \"capsule\"' > mine.py; {python} -m unittest -q")
    assert person.sh("x", f"cd /; PYTHONPATH={person.repo} {script}").endswith("capsule\n")
    assert survey(person.repo) == before


def test_node_project(person):
    require("node")
    person.write(
        {
            ".gitignore": "node_modules/\n",
            "node_modules/left-pad/index.js": "module.exports = s => ' ' + s\n",
            "node_modules/.bin/padded": "#!/usr/bin/env node\n"
            "console.log(require('left-pad')(process.cwd()))\n",
            "package.json": '{"scripts": {"test": "padded"}}\n',
        }
    )
    (person.repo / "node_modules/.bin/padded").chmod(0o755)
    person.commit("project")
    before = survey(person.repo)
    person.atoll("new", "x")
    assert person.sh("x", "node_modules/.bin/padded") == f" {person.repo}\n"
    changed = "echo 'module.exports = s => s.length' > node_modules/left-pad/index.js"
    said = person.sh("x", f"{changed}; PATH=$PWD/node_modules/.bin:$PATH padded")
    assert said == f"{len(str(person.repo))}\n"
    assert survey(person.repo) == before


@as_both
def test_make_project_in_c(person):
    for tool in ("make", "cc"):
        require(tool)
    person.write({"Makefile": MAKEFILE, "main.c": PROGRAM, ".gitignore": "*.o\napp\n"})
    person.commit("project")
    person.run("make", "app")
    before = survey(person.repo)
    person.atoll("new", "x")
    assert person.sh("x", "make -q app; make -s test") == "built at main.c\n"
    person.sh("x", "echo >> main.c; make -q app", code=1)
    assert person.sh("x", "make -j4 app > /dev/null; make -q app; ./app") == "built at main.c\n"
    assert survey(person.repo) == before


GIT = """
echo 1 > one; git add one; git commit -qm one
echo changed >> README.md; git stash -q; git diff --quiet; git stash pop -q; ! git diff --quiet
git commit -qam two
git switch -qc side HEAD~1; echo 3 > three; git add three; git commit -qm three
git rebase -q atoll/x; test "$(git log --format=%s -3 | tr '\\n' ' ')" = "three two one "
git switch -q atoll/x; git merge -q side
git worktree add -q ../tree side; git worktree list | grep -q "/tree "
(cd ../tree; echo 4 > four; git add four; git commit -qm four)
git worktree remove ../tree; test ! -e ../tree; git merge -q side
git mv src moved; git commit -qm moved; test -f moved/calc.py
mv moved moved-again; git add -A; git commit -qm again; test -f moved-again/calc.py
git gc -q; git fsck --full --no-dangling --no-progress
git status --porcelain
"""


@as_both
def test_git(person):
    before = survey(person.repo)
    person.atoll("new", "x")
    assert person.sh("x", GIT) == ""
    person.atoll("export", "x")
    subjects = person.git("log", "--format=%s", "atoll/x").split()
    assert subjects == ["again", "moved", "four", "three", "two", "one", "first"]
    assert (
        person.git("ls-tree", "--name-only", "atoll/x", "moved-again/") == "moved-again/calc.py\n"
    )
    assert survey(person.repo) == before


def test_submodules(person):
    library = person.make_repo({"lib.py": "pass\n"}, name="library")
    allow = ("-c", "protocol.file.allow=always")
    person.git(*allow, "submodule", "add", "--quiet", str(library), "lib")
    person.commit("submodule")
    person.atoll("new", "x")
    assert person.sh("x", "git submodule status; cat lib/lib.py").endswith("pass\n")
    said = person.sh("x", "cd lib; echo 2 >> lib.py; git commit -qam 2; cd ..; git status -s")
    assert said == " M lib\n"
    assert person.sh("x", "git submodule status")[0] == "+"


# One path, one port, for many.


@as_both
def test_two_capsules_at_one_path_and_one_port(person, wait_for):
    require("python3")
    person.atoll("new", "one")
    person.atoll("new", "two")
    for name in ("one", "two"):
        person.sh(name, f"pwd > where; echo {name} > README.md")
        person.atoll("run", "-d", name, "--", "python3", "-c", SERVER)
    for name in ("one", "two"):
        ask = ("run", name, "--", "sh", "-c", ASK)
        answered = wait_for(
            lambda ask=ask: person.atoll(*ask, check=False).stdout, timeout_s=60, what="an answer"
        )
        assert answered == f"b'{name}'\n"
        assert person.sh(name, "cat where README.md") == f"{person.repo}\n{name}\n"


SECRETIVE = "export CANARY=1; touch /tmp/mine mine; exec sleep 600"
NEIGHBOURS = """
ps -A -o args | grep -c '[s]leep 600' || true
grep -l CANARY /proc/[0-9]*/environ 2> /dev/null | wc -l
ls /proc | grep -c '^[0-9]*$'
test -e /tmp/mine; test -e mine
"""


@as_both
def test_runs_share_files_and_not_processes(person, wait_for):
    person.atoll("new", "x")
    person.atoll("run", "-d", "x", "--", "sh", "-c", SECRETIVE)
    wait_for(
        lambda: person.atoll("run", "x", "--", "test", "-e", "mine", check=False).returncode == 0,
        timeout_s=60,
        what="the first run",
    )
    foreign, environments, count = person.sh("x", NEIGHBOURS).split()
    assert (foreign, environments) == ("0", "0")
    assert int(count) < 10
    # As a control: from outside they are all there.
    assert any("sleep 600" in line["command"] for line in person.answer("ps", "x"))
    person.sh("x", "sleep 5 & kill -9 -1; ! wait $!")
    assert person.answer("show", "x")["runs"][0]["state"] == "running"


# What can be seen.

VISIBLE = {
    ".pyenv/bin/tool-1": True,
    ".nvm/versions/node/bin/tool-2": True,
    ".cargo/bin/tool-3": True,
    ".local/bin/tool-4": True,
    "on-path/tool-5": True,
    ".cargo/credentials.toml": False,
    ".ssh/id_ed25519": False,
    ".aws/credentials": False,
    ".config/gh/hosts.yml": False,
    ".netrc": False,
    "work/other-project/main.py": False,
}


@as_both
def test_toolchains_are_visible_and_nothing_else_of_home(person):
    owner = person.place / "owner"
    person.write(dict.fromkeys(VISIBLE, "#!/bin/sh\necho canary\n"), root=owner)
    for name in VISIBLE:
        (owner / name).chmod(0o755)
    person.env["PATH"] = f"{owner}/on-path:{person.env['PATH']}"
    before = survey(owner)
    person.atoll("new", "x")
    for name, is_visible in VISIBLE.items():
        place = f"{owner}/{name}"
        said = person.sh("x", f"cat '{place}' || true; (echo x >> '{place}') || true")
        assert ("canary" in said) == is_visible, name
    assert person.sh("x", "tool-5; ~/.local/bin/tool-4") == "canary\n" * 2
    refused = "! rm ~/.pyenv/bin/tool-1 2>&1; ! touch /usr/x /etc/x /opt/x /x 2> /dev/null"
    assert "Read-only" in person.sh("x", refused)
    assert person.sh("x", "ls /home /root /sys /boot /srv 2> /dev/null || true").strip() in (
        "",
        str(owner),
    )
    # The home itself is the capsule's own, and stays from run to run.
    person.sh("x", "echo mine > ~/.netrc")
    assert person.sh("x", "cat ~/.netrc") == "mine\n"
    assert survey(owner) == before


@as_both
def test_the_interpreter_of_a_virtual_environment_is_visible_if_it_is_on_the_path(person):
    """What a project's file says of it is not believed: the owner's PATH is."""
    odd = person.place / "odd"
    person.write(
        {
            "python/bin/python3.99": "#!/bin/sh\necho canary\n",
            "python/lib/python3.99/os.py": "canary\n",
            "python/notes.txt": "canary\n",
        },
        root=odd,
    )
    (odd / "python/bin/python3.99").chmod(0o755)
    person.write({".gitignore": ".venv\n"})
    home = odd / "python/bin"
    script = f"#!{home}/python3.99\n"
    person.write({".venv/pyvenv.cfg": f"home = {home}\n", ".venv/bin/tool": script})
    (person.repo / ".venv/bin/tool").chmod(0o755)
    person.atoll("new", "x")
    done = person.atoll("run", "x", "--", ".venv/bin/tool", check=False)
    assert (done.returncode, done.stdout) == (127, "")
    assert "its interpreter is not visible inside" in done.stderr
    person.env["PATH"] = f"{person.env['PATH']}:{home}"
    person.atoll("new", "y")
    assert person.sh("y", ".venv/bin/tool") == "canary\n"
    assert person.sh("y", f"cat {odd}/python/lib/python3.99/os.py") == "canary\n"
    assert person.sh("y", f"cat {odd}/python/notes.txt 2> /dev/null || true") == ""


# Runs.


@as_both
def test_background_run_survives_and_can_be_followed(person):
    person.atoll("new", "x")
    # The shell tells on its stderr that the signal ended `sleep`, before or after this.
    silent = "exec 2>/dev/null"
    script = f"{silent}; trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    assert person.atoll("run", "-d", "x", "--", "sh", "-c", script).stdout == "x.1\n"
    follower = person.popen("logs", "x", "1", "-f")
    assert follower.stdout.readline() == b"ready\n"
    attached = person.popen("attach", "x.1")
    assert attached.stdout.readline() == b"ready\n"
    waiter = person.popen("wait", "x")
    assert person.answer("show", "x")["runs"][0]["state"] == "running"
    assert "stopped" in person.atoll("stop", "x").stdout
    ended = {}
    for name, process in (("logs", follower), ("attach", attached), ("wait", waiter)):
        said, _ = process.communicate(timeout=60)
        ended[name] = (process.returncode, said)
    assert ended["logs"][0] == 0
    assert ended["logs"][1].endswith(b"bye\n")
    assert ended["attach"][1].endswith(b"bye\n")
    assert ended["wait"][0] == 128 + signal.SIGTERM
    assert person.outcome("x") == {**person.outcome("x"), "reason": "stopped", "exit_code": 3}
    assert person.atoll("logs", "x").stdout.startswith("ready\n")


def test_killed_keeper_takes_its_runs_along_and_all_starts_again(person, wait_for):
    person.atoll("new", "x")
    person.atoll("run", "-d", "x", "--", "sh", "-c", "echo before > f; sleep 600")
    status = wait_for(
        lambda: next(iter(matching(person.home, "projects/*/x/runs/*/status.json")), None),
        what="a run",
    )
    guard = wait_for(lambda: load_status(str(status.parent)), what="a keeper").guard[0]
    wait_for(lambda: "sleep" in str(person.answer("ps", "x")), what="the command")
    os.kill(guard, signal.SIGKILL)
    wait_for(lambda: not person.answer("ps", "x"), timeout_s=60, what="the end")
    assert person.outcome("x")["reason"] == "lost"
    assert person.sh("x", "cat f; git status --porcelain") == "before\n?? f\n"


@as_both
def test_points_in_time_and_what_comes_out(person):
    before = survey(person.repo)
    person.atoll("new", "x")
    person.sh("x", "echo 1 > f; mv src lib; echo 1 > ~/state; echo 1 > /tmp/state")
    person.atoll("run", "-d", "x", "--", "sh", "-c", "while :; do date > ticking; sleep 0.01; done")
    person.atoll("snapshot", "x", "-m", "first")
    person.atoll("stop", "x", "--grace", "0.2")
    person.sh("x", "echo 2 > f; rm -r lib; echo 2 > ~/state")
    person.atoll("rollback", "x")
    assert person.sh("x", "cat f ~/state /tmp/state lib/calc.py") == "1\n1\n1\none = 1\n"
    person.atoll("fork", "x", "y")
    assert person.sh("y", "cat f; git branch --show-current; echo y > f") == "1\natoll/y\n"
    assert person.sh("x", "cat f; rm -f ticking") == "1\n"
    diff = person.atoll("diff", "x").stdout
    assert "lib/calc.py" in diff
    assert "+1" in diff
    person.atoll("commit", "x", "-m", "by the owner")
    assert person.git("show", "atoll/x:f") == "1\n"
    assert person.atoll("rm", "y", check=False).returncode == 4
    point = person.answer("rm", "y", "--force")[0]["recovery_point"]["id"]
    person.atoll("recover", point, "--as", "z")
    assert person.sh("z", "cat f") == "y\n"
    assert survey(person.repo) == before
