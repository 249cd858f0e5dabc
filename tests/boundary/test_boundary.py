"""The fuzzer's short run: one case for each known finding, and a few random ones.

`make soak` runs it for longer; `tests/boundary/fuzz.py CASE` repeats one case.
"""

from __future__ import annotations

import pytest

from boundary.cases import KNOWN, PLAIN, SEEDS, find_case
from boundary.fuzz import Trial, repro

NAMES = [PLAIN.name, *(case.name for case in KNOWN), *map(str, SEEDS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_finding(walls, name):
    case = find_case(name)
    found = Trial(case).run()
    assert found == [], f"repeat: {repro(case)}"
