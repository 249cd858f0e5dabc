"""Which stages a promotion walks, and in which order."""

from __future__ import annotations

import pytest

from atoll.engine.promotion.stages import plan_stages
from atoll.model.errors import SpecError
from atoll.model.promotion import StageSpec, StepFacts, parse_facts


def names(*declared: StageSpec, to: str | None = None) -> list[str]:
    return [stage.name for stage in plan_stages({one.name: one for one in declared}, to)]


VERIFIED, LOCAL = StageSpec("verified", checks=("test",)), StageSpec("local")
TESTED = StageSpec("tested", checks=("long",))
MAIN = StageSpec("main", branch="main")
STAGING, PRODUCTION = StageSpec("staging", run="deploy"), StageSpec("production", approve=True)


@pytest.mark.parametrize(
    ("declared", "to", "expected"),
    [
        ((), None, ["verified", "local"]),
        ((), "verified", ["verified"]),
        ((STAGING,), None, ["verified", "local"]),
        ((STAGING,), "staging", ["verified", "local", "staging"]),
        ((TESTED, LOCAL, STAGING), None, ["verified", "tested", "local"]),
        ((LOCAL, STAGING, PRODUCTION), "production",
         ["verified", "local", "staging", "production"]),
        ((MAIN, STAGING), None, ["verified", "main"]),
        ((STAGING, MAIN), None, ["verified", "staging", "main"]),
        ((LOCAL, VERIFIED), None, ["verified", "local"]),
        ((StageSpec("files", merge="patch"),), None, ["verified", "files"]),
    ],
)  # fmt: skip
def test_stages_are_walked_in_their_order(declared, to, expected):
    assert names(*declared, to=to) == expected


def test_declared_verified_keeps_its_checks():
    assert plan_stages({"verified": VERIFIED})[0].checks == ("test",)


@pytest.mark.parametrize(("to", "hint"), [("stagin", "`staging`"), ("moon", "one of: verified")])
def test_unknown_stage_is_refused(to, hint):
    with pytest.raises(SpecError) as caught:
        names(STAGING, to=to)
    assert hint in str(caught.value.hint)


def test_facts_survive_storage():
    facts = StepFacts(commit="c", checks=(1, 2), kinds=("ci",), exit_code=0, observed_s=1.5)
    assert parse_facts(facts.encode()) == facts
