"""Scopes of a real systemd user manager. Where root runs the tests, one is started for an ordinary
user, in a part of the hierarchy that is theirs; else it is the one that this user has.

Such a manager may have no controllers to give: limits in a scope need a machine that was booted
with systemd (see docs/adr/0034).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
import zlib
from pathlib import Path

import pytest

from atoll.host import cgroups, scopes
from atoll.keeper import calls
from atoll.keeper.groups import Group
from persons import MS_PRIVATE, MS_REC, living, ordinary_user, require, still_running
from present import present

SYSTEMD = next(
    (path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if os.path.exists(path)),
    None,
)
HANDED_OVER = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks")
READY_S = 30


class Managed:
    """A person with a manager. `session` puts a child where a login of theirs would be."""

    def __init__(self, person, runtime: str | None, session, pid: int):
        self.person = person
        self.options = {
            "env": {} if runtime is None else {"XDG_RUNTIME_DIR": runtime},
            "confined": session,
        }
        self.pid = pid
        """Of the manager, 0 if it is not ours."""

    def python(self, script: str, *args: str):
        done = self.person.run(sys.executable, "-c", script, *args, **self.options)
        return json.loads(done.stdout)

    def atoll(self, *args: str, **options):
        return self.person.atoll(*args, **self.options, **options)

    def limits(self, name: str) -> dict[str, str]:
        data = json.loads(self.atoll("show", name, "--json").stdout)["data"]
        return {limit: each["held"] for limit, each in data["limits"].items()}


def hand_over(directories, uid: int) -> None:
    for directory in directories:
        os.mkdir(directory)
        os.chown(directory, uid, uid)
        for name in HANDED_OVER:
            with contextlib.suppress(FileNotFoundError):
                os.chown(os.path.join(directory, name), uid, uid)


def enter(directories) -> None:
    for directory in directories:
        with open(os.path.join(directory, "cgroup.procs"), "w", encoding="ascii") as stream:
            stream.write("0")


@contextlib.contextmanager
def manager_of(person, runtime: str, directories):
    """A user manager that assumes a machine booted with systemd, and runs no unit."""
    user = ordinary_user()

    def prepare() -> None:
        calls.unshare(calls.CLONE_NEWNS)
        calls.mount("none", "/", "", MS_REC | MS_PRIVATE)
        calls.mount("tmpfs", "/run", "tmpfs", 0, "mode=0755")
        os.makedirs("/run/systemd/system")
        enter(directories)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    child = subprocess.Popen(
        [present(SYSTEMD), "--user", "--unit=-.slice", "--log-target=null"],
        env={"XDG_RUNTIME_DIR": runtime, "HOME": runtime, "PATH": person.env["PATH"]},
        cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=prepare,  # noqa: PLW1509 - no threads here
    )  # fmt: skip
    try:
        yield child
    finally:
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()


def own_hierarchies() -> list[str]:
    """Where systemd keeps its groups: version 2, and with it the named one of version 1."""
    return [
        tree.mount
        for tree in cgroups.load_hierarchies()
        if tree.is_unified or "name=systemd" in tree.controllers
    ]


@pytest.fixture
def managed(wait_for):
    require("bwrap")
    with living("user", Path(tempfile.mkdtemp(prefix="atoll-person-"))) as person:
        if os.geteuid() != 0:
            if scopes.find_manager() is None:
                pytest.skip("this user has no systemd user manager")
            yield Managed(person, None, None, 0)
            return
        if SYSTEMD is None:
            pytest.skip("systemd is not installed")
        if cgroups.find_unified() is None:
            pytest.skip("version 2 of cgroups is not mounted")
        user = ordinary_user()
        token = f"of-{uuid.uuid4().hex[:8]}"
        places = [os.path.join(mount, token) for mount in own_hierarchies()]
        sessions = [os.path.join(place, "session") for place in places]
        # Not below `tmp_path`: the path of a socket has to be short.
        with tempfile.TemporaryDirectory(prefix="atoll-run-") as runtime:
            os.chown(runtime, user.pw_uid, user.pw_gid)
            try:
                hand_over([*places, *sessions], user.pw_uid)
                with manager_of(person, runtime, places) as child:
                    socket = Path(runtime, "systemd", "private")
                    wait_for(lambda: socket.exists() or child.poll() is not None, timeout_s=READY_S)
                    if child.poll() is not None:
                        pytest.skip("a systemd user manager does not start here")
                    yield Managed(person, runtime, lambda: enter(sessions), child.pid)
                    person.end()
            finally:
                for place in places:
                    group = Group({"unified": place})
                    group.kill()
                    assert group.remove() == []


TRIAL = """
import json
from atoll.host import scopes
manager = scopes.find_manager()
found = scopes.try_scopes(manager)
left = scopes.find_scopes(found.directory, lambda _: True)
print(json.dumps({"scopes": found._asdict(), "left": left}))
"""

LIFE = """
import json, os, signal, types
from atoll.host import scopes
from atoll.keeper.groups import Group
manager = scopes.find_manager()
found = scopes.try_scopes(manager)
orders, writer = os.pipe()
holder = os.fork()
if holder == 0:
    os.close(writer)
    signal.alarm(100)
    os.read(orders, 1)
    group = Group({"unified": os.read(orders, 4096).decode()})
    if group.fork() == 0:
        group.enter()
        signal.alarm(100)
    signal.pause()
scope = scopes.start(manager, scopes.unit_name(NAME), holder, "a test")
scopes.settle(scope)
limits = types.SimpleNamespace(memory_bytes=None, cpus=None, pids=None)
made = scopes.make_group(found, scope, NAME, limits)
group = Group(made.directories)
os.write(writer, b".")
os.write(writer, made.directories["unified"].encode())
while not group.pids():
    pass
said = {
    "holder": holder in Group({"unified": scope + "/keeper"}).pids(),
    "inside": len(group.pids()),
    "frozen": group.freeze() and group.is_frozen() and group.thaw(),
    "found": scopes.find_scopes(found.directory, lambda name: name == NAME),
}
if ENDS == "killed":
    os.kill(holder, signal.SIGKILL)
    os.kill(group.pids()[0], signal.SIGKILL)
    scopes._await_end(scope)
else:
    said["left"] = scopes.end(scope)
os.waitpid(holder, 0)
said["scope"] = scope
said["is_there"] = os.path.exists(scope)
print(json.dumps(said))
"""


def test_scope_is_tried_and_nothing_is_left(managed):
    said = managed.python(TRIAL)
    assert "unified" in said["scopes"]["uses"]
    # The user's own manager has scopes of others, too.
    assert said["left"] == {} or not managed.pid
    assert set(said["scopes"]["missing"]) == {"memory", "pids", "cpu"} - set(said["scopes"]["uses"])


@pytest.mark.parametrize("ends", ["killed", "ended"])
def test_scope_lives_as_long_as_its_processes(managed, ends):
    name = f"{uuid.uuid4().hex[:8]}-7"
    said = managed.python(f"ENDS, NAME = {ends!r}, {name!r}\n{LIFE}")
    assert said["holder"]
    assert said["inside"] == 1
    assert said["frozen"]
    assert said["found"] == {said["scope"]: name}
    assert said.get("left", []) == []
    assert not said["is_there"]


@pytest.fixture
def capsule(managed):
    """`x`, whose holder gets a scope, whatever that can limit here."""
    managed.atoll("new", "x", "--limit", "memory=200m")
    managed.atoll("run", "x", "--", "true")
    managed.person.end_view("x")
    path = managed.person.home / "probes.json"
    known = json.loads(path.read_text())
    found = json.loads(known["scopes"][0])
    managed.directory = found["directory"]
    managed.uses = found["uses"]
    # What is remembered may be wrong by now, and only the kernel knows.
    found["uses"] = ["unified", "memory", "pids", "cpu"]
    known["scopes"][0] = json.dumps(found)
    managed.person.write({"probes.json": json.dumps(known)}, managed.person.home)
    return managed


def scope_of(capsule) -> Path:
    [scope] = found_scopes(capsule)
    return Path(scope)


def found_scopes(capsule) -> list[str]:
    """Of this home only."""
    prefix = f"{zlib.crc32(os.fsencode(capsule.person.home)):08x}-"
    return list(scopes.find_scopes(capsule.directory, lambda name: name.startswith(prefix)))


def pids(group: Path) -> list[str]:
    return (group / "cgroup.procs").read_text().split()


def name_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def holder_in(scope: Path) -> int:
    """The parent of all others there."""
    keepers = pids(scope / "keeper")
    parents = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
               for pid in keepers}  # fmt: skip
    [holder] = [pid for pid, parent in parents.items() if parent not in keepers]
    return int(holder)


def test_runs_are_in_a_scope_of_their_capsule(capsule):
    capsule.atoll("run", "x", "-d", "--", "sleep", "600")
    scope = scope_of(capsule)
    [group] = [path for path in (scope / "atoll").iterdir() if path.is_dir()]
    assert pids(scope) == []
    assert pids(scope / "keeper")
    assert pids(group)
    # Told as it is, not as it was remembered.
    for limit, use in (("memory_bytes", "memory"), ("pids", "pids")):
        expected = "enforced" if use in capsule.uses else "watched"
        assert capsule.limits("x")[limit] == expected
    snapshot = json.loads(capsule.atoll("snapshot", "x", "--json").stdout)["data"]
    assert snapshot["moment"] == "frozen by cgroup"
    # Questions come from a process that may not enter the scope.
    assert "nothing" not in capsule.atoll("diff", "x").stderr
    capsule.atoll("rm", "x", "--force")
    assert not scope.exists()


def test_killed_holder_takes_its_scope_along(capsule, wait_for):
    capsule.atoll("run", "x", "-d", "--", "sleep", "600")
    scope = scope_of(capsule)
    os.kill(holder_in(scope), signal.SIGKILL)
    wait_for(lambda: not scope.exists())
    assert capsule.atoll("run", "x", "--", "echo", "again").stdout == "again\n"
    assert scope_of(capsule) != scope


def test_manager_that_is_gone(capsule):
    if not capsule.pid:
        pytest.skip("this manager is not for a test to end")
    os.kill(capsule.pid, signal.SIGKILL)
    assert capsule.atoll("run", "x", "--", "echo", "said").stdout == "said\n"
    assert found_scopes(capsule) == []
    assert capsule.limits("x")["memory_bytes"] == "watched"


def test_manager_that_hangs(capsule):
    if not capsule.pid:
        pytest.skip("this manager is not for a test to stop")
    os.kill(capsule.pid, signal.SIGSTOP)
    assert capsule.atoll("run", "x", "--", "echo", "said").stdout == "said\n"
    assert found_scopes(capsule) == []
    assert capsule.limits("x")["memory_bytes"] == "watched"


def test_starter_that_is_killed_before_the_holder_has_its_group(capsule, wait_for):
    if not capsule.pid:
        pytest.skip("this manager is not for a test to stop")

    def keepers() -> list[str]:
        lines = (line.split()[0] for line in still_running(capsule.person.place))
        return [pid for pid in lines if name_of(pid) == "atoll-keeper"]

    os.kill(capsule.pid, signal.SIGSTOP)
    with capsule.person.popen("run", "x", "--", "true", env=capsule.options["env"]) as starter:
        wait_for(keepers)
        starter.kill()
    # One that has got a group without a scope ends when it was idle for a while.
    wait_for(lambda: not keepers(), timeout_s=200)
    os.kill(capsule.pid, signal.SIGCONT)
    assert capsule.atoll("run", "x", "--", "echo", "again").stdout == "again\n"
    assert scope_of(capsule).exists()
