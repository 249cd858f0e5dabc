"""`atoll doctor` makes the short form of `verify`, says what got through, and leaves nothing."""

from __future__ import annotations

import json
import os

import pytest

from atoll.engine import doctor
from atoll.engine.verify import attack, short
from atoll.engine.verify.wall_test import Wall, WallTest

# As in `test_verify.py`.


@pytest.fixture
def home(project, atoll_home):
    """An Atoll home on a machine where walls can be built."""
    project.session.store.close()
    return atoll_home


def listing(home):
    # The locks and what is remembered of this machine stay, as after any command.
    kept = ("locks", "probes.json", "state.db")
    return sorted(name for name in os.listdir(home) if not name.startswith(kept))


def test_the_short_form_makes_each_of_its_attempts(home):
    before = listing(home)
    found = {finding.id: finding for finding in short.check_visible(home)}
    assert found.keys() == short.IDS
    assert {name for name, finding in found.items() if finding.verdict == "gave way"} == set()
    # Without keys, sockets and settings of the owner there is less to reach for.
    untried = {name for name, finding in found.items() if finding.verdict == "not tried"}
    assert untried <= {"F01b", "S04", "G02"}, untried
    assert listing(home) == before


def test_all_ids_are_attempts_of_verify():
    known = {attempt.id for wall in attack.WALLS for attempt in wall.attempts}
    assert known >= short.IDS
    assert {"F03", "Z06", "Z06b"} <= short.IDS


@pytest.mark.parametrize(
    ("code", "good", "said"),
    [
        ("gave_way('the\\x1b[2J owner')", False, "X01 any: the"),
        ("os.open('/no/such/file', 0)", True, "1 attacks"),
        ("not_tried('no reason')", False, "no attempt could be made: no reason"),
    ],
)
def test_what_doctor_says(home, monkeypatch, code, good, said):
    wall = Wall("visible", (WallTest("X01", "any", code),))
    monkeypatch.setattr(short, "visible", lambda: wall)
    finding = next(f for f in doctor.examine() if f.name == doctor.VISIBLE)
    assert (finding.good, finding.needed) == (good, True)
    assert said in finding.detail
    assert finding.detail.isprintable()


def test_the_command(home, repo, atoll):
    before = listing(home)
    done = atoll("doctor", "--json", cwd=repo, check=False)
    found = {f["name"]: f for f in json.loads(done.stdout)["data"]}
    assert found["visible"]["good"]
    assert done.returncode == 0
    line = next(
        line
        for line in atoll("doctor", cwd=repo, check=False).stdout.splitlines()
        if line.startswith("visible")
    )
    assert "not ok" not in line
    assert listing(home) == before
