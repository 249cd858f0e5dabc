"""Values from inside a capsule cannot be used by mistake: mypy refuses each way to do so."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAD = """\
import os, json, subprocess
from pathlib import Path
from atoll.host import files, git
from atoll.host.process import run
from atoll.model.untrusted import InsidePath, Untrusted, find_object_id, find_path, show
path = InsidePath(b"a")
value = Untrusted(b"a")
"""
_REFUSED = [
    'Path("/x") / path',
    'os.path.join("/x", path)',
    "os.open(path, os.O_RDONLY)",
    "open(value)",
    'run(("git", "show", path))',
    'git.git("show", value, cwd="/")',
    'git.find_ref(value, cwd="/")',
    '"/x/" + path',
    "Path(value)",
    'files.read_beneath(Path("/x"), path, limit_bytes=1)',
    'git.move_ref(value, path, old=None, cwd="/")',
    "bytes().join([value])",
]
_ACCEPTED = [
    "print(path.shown(), show(value))",
    "found = find_object_id(value)",
    "place = find_path(value)",
]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory, root):
    """Line → what mypy says; all of it in one go, since a start takes long."""
    place = tmp_path_factory.mktemp("types") / "planted.py"
    place.write_text(_HEAD + "\n".join([*_REFUSED, *_ACCEPTED]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary",
         "--cache-dir", place.parent,
         "--config-file", root / "pyproject.toml", place],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {}
    for line in done.stdout.splitlines():
        name, number, *said = line.split(":", 3)
        if name.endswith("planted.py"):
            found[int(number)] = said
    assert found, done.stdout + done.stderr
    return found


@pytest.mark.parametrize("number", range(len(_REFUSED)), ids=_REFUSED)
def test_misuse_is_a_lint_error(complaints, number):
    assert _HEAD.count("\n") + 1 + number in complaints


@pytest.mark.parametrize("number", range(len(_ACCEPTED)), ids=_ACCEPTED)
def test_validated_use_is_fine(complaints, number):
    assert _HEAD.count("\n") + 1 + len(_REFUSED) + number not in complaints
