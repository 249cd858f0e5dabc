"""What the boundary's tests need: strace, and walls that can be built."""

from __future__ import annotations

import os
import shutil

import pytest

from atoll.engine.project.levels import LEVELS, find_problems


@pytest.fixture(scope="session")
def walls(tmp_path_factory):
    """Skips, or fails in CI, where a capsule cannot be watched or walled."""
    level = next(level for level in LEVELS if level.name == "sandbox")
    problems = [str(one) for one in find_problems(level, tmp_path_factory.mktemp("home"))]
    problems += [f"needs `{name}`" for name in ("strace", "bwrap") if shutil.which(name) is None]
    if problems and os.environ.get("CI") == "true":
        pytest.fail(str(problems))
    if problems:
        pytest.skip(str(problems))
