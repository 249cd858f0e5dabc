"""The fuzzer's short run: one case for each known finding, and a few random ones.

`make soak` runs it for longer; `tests/boundary/fuzz.py CASE` repeats one case.
"""

from __future__ import annotations

import pytest

from boundary.cases import KNOWN, PLAIN, SEEDS, find_case
from boundary.fuzz import Trial, repro

# The cases that still find something; each goes when its finding is closed.
OPEN = frozenset({
    "E1", "E2", "E2-relative", "E3", "E4", "E5", "F1", "F2", "F3", "F4", "F5", "F6",
    "1", "2", "3", "4",
})  # fmt: skip


def names():
    for case in [PLAIN.name, *(case.name for case in KNOWN), *map(str, SEEDS)]:
        marks = [pytest.mark.xfail(reason="known and open", strict=True)] if case in OPEN else []
        yield pytest.param(case, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*names()])
def test_no_finding(walls, name):
    case = find_case(name)
    found = Trial(case).run()
    assert found == [], f"repeat: {repro(case)}"
