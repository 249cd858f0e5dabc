"""Ports published from network namespaces, as root and as an ordinary user; see `holders.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import holders
from persons import as_user

TESTS = Path(holders.__file__).parent


@as_user
@pytest.mark.parametrize("story", holders.STORIES)
def test_story(person, story):
    done = person.run(
        sys.executable, holders.__file__, "story", story, person.place,
        env={"PYTHONPATH": str(TESTS)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
