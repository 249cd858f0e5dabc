"""Guards the start: which modules a command loads, how many tools it starts, what it costs.

The list of modules is exact and binding; the ratio of processor time is noisy, and generous.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from atoll.host.programs import python_command

HEAVY = {
    "asyncio",
    "concurrent.futures",
    "ctypes",
    "email",
    "http.client",
    "importlib.metadata",
    "logging",
    "pydantic",
    "rich",
    "typing_extensions",
    "urllib.request",
}
OUTSIDE = {"atoll", "click"}
RECORDER = """
import sys
place = sys.argv.pop(1)
from atoll.__main__ import main
try:
    main()
finally:
    with open(place, "w") as stream:
        stream.write("\\n".join(sys.modules))
"""
SHIMMED = """
import sys
from atoll.host import programs
programs.SYSTEM_DIRECTORIES = (sys.argv.pop(1), *programs.SYSTEM_DIRECTORIES)
from atoll.__main__ import main
main()
"""
COUNTER = '#!/bin/sh\necho "$*" >> {log}\nexec {git} "$@"\n'
COST_RATIOS = {"--version": 12, "ls": 30}
"""`ls` counts with the tools that it starts."""
ROUNDS = 7


def call(argv, cwd, **env):
    return subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="session")
def bare():
    """What an interpreter of this installation loads before any program begins."""
    told = call([sys.executable, "-c", "import sys; print(*sys.modules)"], "/")
    return set(told.stdout.split())


@pytest.fixture
def loaded(repo, tmp_path, bare):
    """`loaded("ls")` → (modules that the command loaded, what it printed)."""

    def run(*args, expected=0, **env):
        place = tmp_path / "modules"
        done = call([sys.executable, "-c", RECORDER, place, *args], repo, **env)
        assert done.returncode == expected, done.stderr
        return set(place.read_text().split("\n")) - bare, done.stdout

    return run


def check_light(modules):
    assert modules & HEAVY == set()
    strangers = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert strangers - {"__main__"} <= OUTSIDE


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("ls",), ("ls", "--json")])
def test_quick_commands_are_light(loaded, args):
    modules, said = loaded(*args)
    assert said
    check_light(modules)


def test_version_and_help_load_no_engine(loaded):
    for args in (("--version",), ("--help",)):
        modules, _ = loaded(*args)
        assert {name for name in modules if name.startswith("atoll.")} <= {
            "atoll.__main__",
            "atoll.version",
            "atoll.cli",
            "atoll.cli.app",
            "atoll.cli.frame",
            "atoll.cli.output",
            "atoll.cli.status",
            "atoll.cli.streams",
            "atoll.cli.tables",
            "atoll.model",
            "atoll.model.errors",
            "atoll.model.names",
        }


def test_ls_and_path_with_a_capsule_are_light(atoll, loaded, repo):
    atoll("new", "x", cwd=repo)
    modules, said = loaded("ls")
    assert "x" in said
    check_light(modules)
    modules, said = loaded("path", "x")
    assert said.endswith("/x\n")
    check_light(modules)
    atoll("rm", "x", cwd=repo)


def test_error_is_light(loaded):
    modules, _ = loaded("path", "nothing", expected=4)
    check_light(modules)


def test_completion_is_light_and_knows_capsules(atoll, loaded, repo):
    atoll("new", "fix-auth", cwd=repo)
    modules, said = loaded(
        _ATOLL_COMPLETE="bash_complete", COMP_WORDS="atoll path fi", COMP_CWORD="2"
    )
    assert said == "plain,fix-auth\n"
    check_light(modules)
    modules, said = loaded(_ATOLL_COMPLETE="bash_complete", COMP_WORDS="atoll ", COMP_CWORD="1")
    assert "plain,new\n" in said
    check_light(modules)
    assert not any(name.startswith("atoll.engine") for name in modules)
    atoll("rm", "fix-auth", cwd=repo)


def test_completion_outside_a_project_is_silent(tmp_path, atoll_home):
    done = call(
        [sys.executable, "-m", "atoll"],
        tmp_path,
        _ATOLL_COMPLETE="bash_complete",
        COMP_WORDS="atoll path ",
        COMP_CWORD="2",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_new_run_and_rm_without_a_project_file_are_light(loaded):
    for args in (
        ("new", "x"),
        ("run", "x", "--", "true"),
        ("run", "x", "-d", "--", "true"),
        ("wait", "x"),
        ("logs", "x"),
        ("show", "x"),
        ("rm", "x"),
    ):
        modules, _ = loaded(*args)
        # What looks at a capsule's files opens them with `openat2`, which takes libc.
        check_light(modules - {"ctypes"} if args[0] in ("show", "rm") else modules)


def test_keeper_is_standard_library_only():
    command = python_command("atoll.keeper.forkserver", site=False)
    program = command[-1].replace("main()", "print(*sys.modules)")
    assert program != command[-1]
    told = call([*command[:-1], program], "/")
    assert told.returncode == 0, told.stderr
    modules = set(told.stdout.split())
    assert "atoll.keeper.minder" in modules
    strangers = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert strangers == {"__main__", "atoll"}
    ours = {name for name in modules if name.startswith("atoll.")}
    light = {"atoll.version", "atoll.model", "atoll.model.byte_search", "atoll.model.enclosure"}
    assert {name for name in ours if not name.startswith("atoll.keeper")} == light
    assert modules & {*HEAVY, "dataclasses", "typing", "subprocess", "inspect"} <= {"ctypes"}


@pytest.fixture
def count_git(repo, tmp_path):
    """`count_git("ls")`: how often the command starts git."""
    log = tmp_path / "git.log"
    shim = tmp_path / "shim" / "git"
    shim.parent.mkdir()
    shim.write_text(COUNTER.format(log=log, git=shutil.which("git")))
    shim.chmod(0o755)

    def count(*args):
        log.write_text("")
        done = call([sys.executable, "-c", SHIMMED, str(shim.parent), *args], repo)
        assert done.returncode == 0, done.stderr
        return len(log.read_text().splitlines())

    return count


def test_few_tools_are_started(count_git):
    assert count_git("--version") == 0
    assert count_git("ls") <= 3
    assert count_git("new", "x") <= 12
    assert count_git("ls") <= 3
    assert count_git("path", "x") <= 3
    assert count_git("run", "x", "--", "true") <= 3
    assert count_git("rm", "x") <= 32


def cpu_s(argv, cwd):
    """User and system time of the cheapest of several runs."""
    costs = []
    for _ in range(ROUNDS):
        process = subprocess.Popen(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        costs.append(usage.ru_utime + usage.ru_stime)
    return min(costs)


def test_start_costs_little_more_than_an_interpreter(repo):
    bare_s = cpu_s([sys.executable, "-I", "-c", "pass"], repo)
    for word, ratio in COST_RATIOS.items():
        own_s = cpu_s([sys.executable, "-m", "atoll", word], repo)
        assert own_s <= ratio * bare_s, f"{word}: {own_s:.3f} s against {bare_s:.3f} s"
