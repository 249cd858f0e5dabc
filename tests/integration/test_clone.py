"""Levels with layers and real tools: the same path, build trees, many snapshots, many runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

import atoll
from atoll.engine.enclosure import views
from atoll.engine.history import upkeep
from atoll.engine.run.runs import RunSpec
from atoll.host import procfs
from atoll.host.view_client import ask
from atoll.keeper import process_tree
from atoll.keeper.status import load_status
from atoll.model.state import Reason
from atoll.testing.conformance.bench import survey
from present import present

MAKEFILE = """\
build/app: src/one.txt src/two.txt
\tmkdir -p build
\tcat src/one.txt src/two.txt > build/app
"""
PROGRAM = "int main(void) { return 0; }\n"


@pytest.fixture(autouse=True, params=[pytest.param("clone", marks=pytest.mark.soak), "sandbox"])
def level(request, atoll_home, monkeypatch):
    """What holds at level `clone` holds behind walls, too."""
    monkeypatch.setenv("ATOLL_LEVEL", request.param)
    return request.param


@pytest.fixture
def opened():
    """`opened(path)`: the project there, whose capsules go with the test."""
    made = []

    def open_one(path, **options):
        made.append(atoll.open_project(path, **options))
        return made[-1]

    yield open_one
    for project in made:
        for capsule in project.capsules():
            capsule.stop(grace_s=0)
            views.end_view(project.session, capsule.record)
        project.session.forkserver.close()
        project.session.store.close()


def sh(capsule, script, code=0):
    result = capsule.run(["sh", "-euc", script])
    said = (result.stdout + result.stderr).decode(errors="replace")
    assert result.exit_code == code, f"ended with {result.exit_code}:\n{said}"
    return result.stdout.decode(errors="surrogateescape")


def run(*argv, cwd):
    return subprocess.run(argv, cwd=cwd, check=True, capture_output=True, text=True).stdout


# The same path.


def test_two_capsules_see_their_own_at_one_path(repo, opened):
    project = opened(repo)
    before = survey(repo)
    one, two = project.new("one"), project.new("two")
    for capsule in (one, two):
        sh(capsule, f"echo {capsule.name} > README.md; rm -r src; echo {capsule.name} > new")
    for capsule in (one, two):
        assert sh(capsule, "pwd; cat README.md new") == f"{repo}\n" + f"{capsule.name}\n" * 2
    assert survey(repo) == before


def test_virtual_environment(repo, opened, git):
    run(sys.executable, "-m", "venv", "--without-pip", ".venv", cwd=repo)
    script = repo / ".venv" / "bin" / "hello"
    script.write_text(
        f"#!{repo}/.venv/bin/python\nimport sys; print(sys.prefix)\nimport mine; print(mine.who)\n"
    )
    script.chmod(0o755)
    packages = next((repo / ".venv" / "lib").glob("python*/site-packages"))
    (packages / "mine.py").write_text("who = 'owner'\n")
    with (repo / ".gitignore").open("a") as ignored:
        ignored.write(".venv/\n")
    git("commit", "-qam", "ignore", cwd=repo)
    before = survey(repo)
    capsule = opened(repo).new("x")
    assert sh(capsule, ".venv/bin/hello") == f"{repo}/.venv\nowner\n"
    sh(capsule, f"echo 'who = \"capsule\"' > '{packages}/mine.py'; touch '{packages}/other.py'")
    assert sh(capsule, ".venv/bin/hello") == f"{repo}/.venv\ncapsule\n"
    assert run(script, cwd="/") == f"{repo}/.venv\nowner\n"
    shutil.rmtree(packages / "__pycache__", ignore_errors=True)
    os.utime(packages, ns=(before[str(packages)].mtime_ns,) * 2)
    assert survey(repo) == before


def test_make_has_nothing_to_do(make_repo, opened, require_tool):
    require_tool("make")
    files = {
        "Makefile": MAKEFILE,
        "src/one.txt": "1\n",
        "src/two.txt": "2\n",
        ".gitignore": "build/",
    }
    root = make_repo(files)
    run("make", cwd=root)
    before = survey(root)
    capsule = opened(root).new("x")
    assert "up to date" in sh(capsule, "make build/app")
    sh(capsule, "make -q build/app; echo 3 >> src/two.txt; make build/app; make -q build/app")
    assert sh(capsule, "cat build/app") == "1\n2\n3\n"
    assert survey(root) == before


def test_cmake_has_nothing_to_do(make_repo, opened, require_tool):
    for tool in ("cmake", "make", "cc"):
        require_tool(tool)
    lists = "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nadd_executable(app main.c)\n"
    root = make_repo({"CMakeLists.txt": lists, "main.c": PROGRAM, ".gitignore": "build/"})
    run("cmake", "-B", "build", cwd=root)
    run("cmake", "--build", "build", cwd=root)
    before = survey(root)
    capsule = opened(root).new("x")
    said = sh(capsule, "cmake --build build; build/app")
    assert "Building" not in said
    assert "Configuring" not in said
    assert "Building" in sh(capsule, "echo >> main.c; cmake --build build")
    assert survey(root) == before


def test_cargo_has_nothing_to_do(make_repo, opened, git):
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    manifest = '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n'
    root = make_repo(
        {"Cargo.toml": manifest, "src/main.rs": "fn main() {}\n", ".gitignore": "target/"}
    )
    built = subprocess.run(
        ["cargo", "build", "--offline"], cwd=root, capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip(f"cargo does not build here: {built.stderr[-300:]}")
    git("add", "-A", cwd=root)
    git("commit", "-qm", "lock", cwd=root)
    capsule = opened(root).new("x")
    assert "Compiling" not in sh(capsule, "cargo build --offline 2>&1; target/debug/app")
    assert "Compiling" in sh(capsule, "echo >> src/main.rs; cargo build --offline 2>&1")


def test_absolute_links_touch_only_the_capsule(repo, opened, git):
    (repo / "to-src").symlink_to(repo / "src")
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "link", cwd=repo)
    before = survey(repo)
    sh(opened(repo).new("x"), f"echo x > to-src/new; echo y > '{repo}/src/calc.py'")
    assert survey(repo) == before


def test_command_line(repo, atoll, git):
    before = survey(repo)
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", "echo x > x; git add x; git commit -qm x", cwd=repo)
    assert git("show", "atoll/x:x", cwd=repo) == "x\n"
    atoll("snapshot", "x", "-m", "first", cwd=repo)
    atoll("run", "x", "--", "rm", "x", cwd=repo)
    atoll("rollback", "x", cwd=repo)
    assert atoll("run", "x", "--", "cat", "x", cwd=repo).stdout == "x\n"
    atoll("fork", "x", "y", cwd=repo)
    assert (
        atoll("run", "y", "--", "git", "branch", "--show-current", cwd=repo).stdout == "atoll/y\n"
    )
    for name in ("x", "y"):
        atoll("rm", name, "--force", cwd=repo)
    assert survey(repo) == before


# Many snapshots.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "moved"])
def test_many_snapshots_are_flattened(repo, opened, wait_for, kind):
    """Of a moved directory the kernel may only note where it came from."""
    capsule = opened(repo).new("x")
    sh(capsule, "mkdir lib; echo new > lib/new; rm app.py")
    if kind == "moved":
        sh(capsule, "mv src lib/src")
    for number in range(upkeep.DEEP + 4):
        sh(capsule, f"echo {number} > state; mkdir -p many; echo {number} > many/{number}")
        wait_for(lambda text=str(number): snapshot(capsule, text), what="a snapshot")
    views.end_view(capsule.session, capsule.record)

    def is_flat():
        upkeep.work(capsule.session)
        own = present(upkeep.find_layered_plan(capsule.session, capsule.record)).own_layers
        return len(own) <= upkeep.DEEP

    wait_for(is_flat, what="few layers")
    said = sh(
        capsule, "cat state; ls many | wc -l; cat lib/new; test ! -e app.py; find . -name calc.py"
    )
    assert said.split()[:3] == [str(upkeep.DEEP + 3), str(upkeep.DEEP + 4), "new"]
    assert "calc.py" in said
    capsule.rollback(capsule.require_snapshot("3"))
    assert sh(capsule, "cat state; ls many | wc -l").split() == ["2", "3"]


def snapshot(capsule, text):
    """False while the background works on the capsule."""
    try:
        return capsule.snapshot(text)
    except atoll.StateError:
        return False


@pytest.mark.slow
def test_snapshots_in_a_row_are_not_disturbed_by_upkeep(repo, opened):
    capsule = opened(repo).new("x")
    for number in range(2 * upkeep.DEEP):
        capsule.snapshot(str(number))
    assert len(capsule.snapshots()) == 2 * upkeep.DEEP


# Several runs under one holder.

BOMB = "while true; do (sleep 600 & sleep 600) & sleep 0.01; done"
"""Forks repeatedly to avoid being killed."""


def test_a_minder_waits_for_the_next_run_and_goes_with_the_view(repo, opened, wait_for):
    capsule = opened(repo).new("x")
    capsule.run(["true"])
    reply, _ = present(ask(capsule.record.directory, {"ping": True}))
    holder = reply["pid"]
    assert isinstance(holder, int)

    def waiting():
        # As the holder knows it: a minder whose run is over lives on for a moment.
        reply, _ = present(ask(capsule.record.directory, {"ping": True}))
        return reply["waiting"] if reply["runs"] == 0 else None

    first = wait_for(waiting, what="a minder without a run")
    served = capsule.run(["true"])
    assert present(present(load_status(served.run.directory)).keeper)[0] == first
    second = wait_for(lambda: first != (found := waiting()) and found, what="another one")
    os.kill(second, signal.SIGKILL)
    wait_for(lambda: not process_tree.descendants(holder), what="its burial")
    assert capsule.run(["echo", "good"]).stdout == b"good\n"
    last = wait_for(waiting, what="one more")
    capsule.remove()
    assert not [pid for pid in (holder, last) if process_tree.find_process(pid)]


def test_a_killed_minder_takes_only_its_own_run_along(repo, opened, wait_for, level):
    capsule = opened(repo).new("x")
    doomed, other = (
        capsule.start(RunSpec(argv=("sh", "-c", script), background=True))
        for script in (BOMB, "sleep 600 & sleep 600")
    )
    minders = [
        wait_for(lambda run=run: load_status(run.directory), what="a start").keeper[0]
        for run in (doomed, other)
    ]
    wait_for(lambda: len(process_tree.descendants(minders[0])) > 10, what="some forks")
    # A shell and two that sleep; before these, bwrap outside and inside.
    size = 5 if level == "sandbox" else 3
    wait_for(lambda: len(process_tree.descendants(minders[1])) == size, what="the other's tree")
    before = process_tree.descendants(minders[1])
    os.kill(minders[0], signal.SIGKILL)
    ended = capsule.wait(doomed, timeout_s=60)
    assert ended.outcome.reason is Reason.LOST
    assert process_tree.descendants(minders[1]) == before
    assert views.living_runs(capsule.record) == 1
    assert procfs.marked(doomed.token) == []
    assert capsule.stop(grace_s=0.1)[0].outcome.reason is Reason.STOPPED
    assert procfs.marked(other.token) == []
