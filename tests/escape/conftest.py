"""What attacks lean on: a project with a capsule at level `sandbox`, and another user to be."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.engine.project.levels import LEVELS, find_problems
from atoll.engine.projects import open_project
from atoll.host import files

ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = "/usr/bin/python3"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def lack(reason):
    """A skip on a laptop, a failure in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def project(repo, atoll_home, monkeypatch):
    """The sample repository, whose capsules have level `sandbox` by default."""
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    level = next(level for level in LEVELS if level.name == "sandbox")
    atoll_home.mkdir()
    if problems := find_problems(level, atoll_home):
        lack(f"no walls can be built here: {problems}")
    return open_project(repo, background=False, warn=lambda _: None)


@pytest.fixture
def capsule(project):
    return project.new("x")


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory):
    """`rehearsed("root")`: what came of all attempts on every stage; once for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

    def rehearse(who):
        path = shared / f"rehearsal-{who}.json"
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            said = file.read()
            if not said:
                said = run_as(who, "rehearsal.py")
                file.write(said)
        return json.loads(said)

    return rehearse


def ordinary_user():
    for name in ("tester", "daemon"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    return lack("there is no ordinary user")


def python_of(who):
    """An interpreter that the user can reach, and the environment with which it finds us."""
    packages = Path(pytest.__file__).parents[1]
    found = {"PYTHONPATH": f"{ROOT / 'src'}:{packages}"}
    if who == "root" or os.geteuid() != 0:
        return sys.executable, found
    version = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    done = subprocess.run([SYSTEM_PYTHON, "-c", version], check=False)
    if done.returncode:
        lack(f"`{SYSTEM_PYTHON}` is another version of Python than ours")
    return SYSTEM_PYTHON, found


def run_as(who, program, *args, timeout_s=200):
    """Runs a program of this directory in a place of its own, as root or as an ordinary user."""
    if who == "root" and os.geteuid() != 0:
        pytest.skip("only root can try what root may do")
    python, found = python_of(who)
    given = {}
    place = Path(tempfile.mkdtemp(prefix="atoll-escape-"))
    try:
        if who == "user" and os.geteuid() == 0:
            user = ordinary_user()
            os.chown(place, user.pw_uid, user.pw_gid)
            given = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        done = subprocess.run(
            [python, Path(__file__).with_name(program), *args, place],
            env={"PATH": PATH, "LANG": "C.UTF-8", "HOME": str(place), **found},
            cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False, start_new_session=True, **given,
        )  # fmt: skip
    finally:
        files.remove_tree(place, within=place.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
