from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.enclosure import Enclosure
from atoll.model.plan import CapsulePlan, IsolationPlan, Lease, WorkspacePlan

WORKSPACE = WorkspacePlan(
    driver="worktree",
    repository="/r/.git",
    checkout="/r",
    path="/h/x/workspace/x",
    branch="atoll/x",
    base_commit="c" * 40,
)
ISOLATION = IsolationPlan(
    driver="process", workspace="/h/x/workspace/x", private="/h/x/private", variables={}
)
PLAN = CapsulePlan(
    name="x",
    project="shop",
    level="worktree",
    base_ref="main",
    base_commit="c" * 40,
    directory="/h/x",
    workspace=WORKSPACE,
    isolation=ISOLATION,
    ports=("web", "db"),
    setup=("make deps",),
)
texts = st.text(st.characters(exclude_categories=[]))


def test_plans_are_frozen():
    with pytest.raises(AttributeError):
        PLAN.name = "y"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        WORKSPACE.path = "/"  # type: ignore[misc]


@given(texts, texts, st.one_of(st.none(), texts))
def test_workspace_lease_survives_the_store(path, checkout, branch):
    lease = Lease(
        kind="workspace", plan=WORKSPACE._replace(path=path, checkout=checkout, branch=branch)
    )
    assert Lease.parse("workspace", json.loads(json.dumps(lease.payload()))) == lease


@given(st.one_of(st.none(), texts), st.dictionaries(texts, texts))
def test_isolation_lease_survives_the_store(private, variables):
    lease = Lease(kind="isolation", plan=ISOLATION._replace(private=private, variables=variables))
    assert Lease.parse("isolation", json.loads(json.dumps(lease.payload()))) == lease


def test_unknown_lease_is_no_plan():
    with pytest.raises(KeyError):
        Lease.parse("network", {})
    with pytest.raises(TypeError):
        Lease.parse("workspace", {"driver": "worktree", "surprise": 1})


def test_description_has_a_line_per_act():
    assert PLAN.describe() == [
        "lease the name `x` and ports for web, db",
        (
            "create a workspace from main (cccccccccc) on branch `atoll/x` at /h/x/workspace/x, "
            "with driver `worktree`"
        ),
        "create a private HOME and TMPDIR in /h/x/private",
        "run `make deps` inside",
    ]


def test_description_of_level_none():
    plan = PLAN._replace(
        workspace=WORKSPACE._replace(branch=None, path="/r"),
        isolation=ISOLATION._replace(private=None),
        setup=(),
    )
    assert plan.describe()[1:] == ["use the checkout /r itself"]


def test_adding_variables_makes_another_enclosure():
    inside = Enclosure(env={"A": "1", "B": "1"}, cwd="/w", holder="/h")
    more = inside.adding({"B": "2", "C": "3"})
    assert more == Enclosure(env={"A": "1", "B": "2", "C": "3"}, cwd="/w", holder="/h")
    assert inside.env == {"A": "1", "B": "1"}
