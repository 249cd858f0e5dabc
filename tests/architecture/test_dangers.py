"""One module per danger, checked by the imports and names in the code."""

from __future__ import annotations

import ast

import pytest

SPAWN = {"host/process.py"}
PRINT = {"cli/output.py"}
NOWHERE: set[str] = set()

# What → the only modules that may name it.
ALLOWED_MODULES: dict[str, set[str]] = {
    "subprocess": SPAWN,
    "os.system": SPAWN,
    "os.popen": SPAWN,
    "asyncio.create_subprocess_exec": SPAWN,
    "asyncio.create_subprocess_shell": SPAWN,
    "ctypes": {"host/kernel.py", "keeper/calls.py"},
    "sqlite3": {"engine/state/database.py", "engine/state/store.py"},
    "print": PRINT,
    "sys.stdout": {*PRINT, "cli/streams.py"},
    "click.echo": PRINT,
    "click.secho": PRINT,
    "time.sleep": NOWHERE,
    "shutil.rmtree": {"host/files.py"},
    "shutil.which": NOWHERE,
    "__import__": NOWHERE,
}
# The one place where errors become exit codes.
BROAD_EXCEPT = {"cli/app.py"}


def names_used(text: str) -> list[tuple[int, str]]:
    """Every dotted name that a module imports or uses, with aliases resolved."""
    tree = ast.parse(text)
    aliases: dict[str, str] = {}
    used = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                used.append((node.lineno, alias.name))
                if alias.asname:
                    aliases[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}"
                used.append((node.lineno, dotted))
                aliases[alias.asname or alias.name] = dotted
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            head = aliases.get(head, head)
            used.append((node.lineno, f"{head}.{rest}" if rest else head))
    return used


def misplaced_dangers(sources: dict[str, str]) -> list[str]:
    problems = set()
    for path, text in sources.items():
        for line, name in names_used(text):
            for danger, modules in ALLOWED_MODULES.items():
                if path not in modules and f"{name}.".startswith(f"{danger}."):
                    where = " or ".join(sorted(modules)) or "nowhere"
                    problems.add(f"{path}:{line}: `{danger}` belongs in {where}")
    return sorted(problems)


def broad_excepts(sources: dict[str, str]) -> list[str]:
    """Handlers that would swallow unexpected exceptions.

    One that ends in a bare `raise`, or in `os._exit` of a forked child, swallows nothing.
    """
    return [
        f"{path}:{handler.lineno}: name the exceptions that can be cured here"
        for path, text in sources.items()
        if path not in BROAD_EXCEPT
        for node in ast.walk(ast.parse(text, path))
        if isinstance(node, ast.Try | ast.TryStar)
        for handler in node.handlers
        if catches_all(handler.type)
        and not any(passes_on(body[-1]) for body in (handler.body, node.finalbody) if body)
    ]


def catches_all(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(ast.unparse(kind).split(".")[-1] in {"Exception", "BaseException"} for kind in kinds)


def passes_on(last: ast.stmt) -> bool:
    if isinstance(last, ast.Raise):
        return last.exc is None
    return isinstance(last, ast.Expr) and ast.unparse(last).startswith("os._exit(")


def test_dangers(sources):
    assert misplaced_dangers(sources) == []


def test_no_broad_except(sources):
    assert broad_excepts(sources) == []


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess",
        "import subprocess as quiet",
        "from subprocess import run",
        "def f():\n    from subprocess import Popen",
        "import os\nos.system('ls')",
        "from os import popen as open_pipe",
        "import asyncio\nasyncio.create_subprocess_exec('ls')",
        "import ctypes.util",
        "import sqlite3",
        "print('hello')",
        "say = print",
        "import sys\nsys.stdout.write('hello')",
        "from sys import stdout",
        "import click\nclick.echo('hello')",
        "import time\ntime.sleep(1)",
        "import time as clock\nclock.sleep(1)",
        "from time import sleep",
        "import shutil\nshutil.rmtree('x')",
        "from shutil import which",
        "__import__('subprocess')",
    ],
)
def test_planted_danger_is_reported(text):
    assert misplaced_dangers({"engine/planted.py": text}) != []


def test_allowed_modules_may_use_them():
    assert misplaced_dangers({"host/process.py": "import subprocess\nsubprocess.run(['ls'])"}) == []
    assert (
        misplaced_dangers({"host/kernel.py": "import ctypes", "keeper/calls.py": "import ctypes"})
        == []
    )
    assert misplaced_dangers({"engine/state/store.py": "import sqlite3"}) == []
    assert misplaced_dangers({"cli/output.py": "import sys\nprint('x', file=sys.stdout)"}) == []
    assert misplaced_dangers({"host/files.py": "from shutil import rmtree"}) == []


def test_likeness_is_no_danger():
    text = (
        "import time\nfrom atoll.host import process\nself.print()\ntime.monotonic()\nprinted = 1"
    )
    assert misplaced_dangers({"engine/a.py": text}) == []


@pytest.mark.parametrize(
    "handler",
    [
        "except: pass",
        "except Exception: pass",
        "except BaseException as error: log(error)",
        "except (OSError, Exception): pass",
        "except builtins.Exception: pass",
        "except Exception as error: raise AtollError('x')",
        "except* Exception: pass",
        "except Exception: pass\nfinally: close()",
    ],
)
def test_planted_broad_except_is_reported(handler):
    text = f"try:\n    f()\n{handler}\n"
    assert len(broad_excepts({"engine/a.py": text})) == 1
    assert broad_excepts({"cli/app.py": text}) == []


@pytest.mark.parametrize(
    "handler",
    [
        "except OSError: pass",
        "except BaseException:\n    undo()\n    raise",
        "except BaseException:\n    os._exit(127)",
        "except BaseException:\n    note()\nfinally:\n    os._exit(code)",
    ],
)
def test_narrow_or_passing_handlers_are_fine(handler):
    assert broad_excepts({"engine/a.py": f"try:\n    f()\n{handler}\n"}) == []
