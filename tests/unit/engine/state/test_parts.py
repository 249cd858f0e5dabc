"""Rows of parts: one payload for the capsule as it is now, one per snapshot."""

from __future__ import annotations

import json

import pytest

from atoll.engine.capsule import parts
from atoll.engine.state.leases import snapshot_layers
from atoll.engine.state.parts import Part
from atoll.engine.state.session import open_session
from atoll.model.enclosure import Enclosure
from atoll.model.plan import CapsulePlan, IsolationPlan, WorkspacePlan
from atoll.model.state import PartChange, ProjectRecord, SnapshotKind

PROJECT = ProjectRecord(id="shop-1", name="shop", root="/r", git_dir="/r/.git")
PLAN = CapsulePlan(
    name="x",
    project="shop",
    level="clone",
    base_ref="main",
    base_commit="c" * 40,
    directory="/h/x",
    workspace=WorkspacePlan(
        driver="copy", repository="/r/.git", checkout="/r", path="/r", branch="atoll/x",
        base_commit="c" * 40,
    ),
    isolation=IsolationPlan(driver="process", workspace="/w", private="/p", variables={}),
    ports=(),
)  # fmt: skip
INSIDE = Enclosure(env={}, cwd="/w")
LAYERS = json.dumps(["c1", "u1"])


class Toy(Part):
    name = "toy"


@pytest.fixture
def session(tmp_path):
    opened = open_session(home=tmp_path / "home", background=False)
    opened.store.remember_project(PROJECT)
    yield opened
    opened.store.close()


@pytest.fixture
def capsule(session):
    return session.store.lease_capsules(PROJECT, [(PLAN, {})], parts.leases)[0]


def add(session, capsule, **changes):
    current = session.store.part(capsule, "workspace")
    return session.store.add_snapshot(
        capsule,
        {"workspace": PartChange(LAYERS, current), **changes},
        message="",
        kind=SnapshotKind.MANUAL,
    )


def test_plans_are_the_payloads_of_a_new_capsule(session, capsule):
    assert json.loads(session.store.part(capsule, "workspace"))["driver"] == "copy"
    assert json.loads(session.store.part(capsule, "isolation"))["driver"] == "process"
    assert session.store.part(capsule, "toy") == ""


def test_payloads_change_with_the_snapshot(session, capsule):
    session.store.set_part(capsule, "toy", "one")
    first = add(session, capsule, toy=PartChange("kept", "two"))
    assert (first.number, snapshot_layers(first)) == (1, ("c1", "u1"))
    assert first.parts == {"workspace": LAYERS, "toy": "kept"}
    assert session.store.part(capsule, "toy") == "two"
    second = add(session, capsule, toy=PartChange())
    assert second.parts == {"workspace": LAYERS}
    assert session.store.part(capsule, "toy") == ""
    assert [s.parts.get("toy") for s in session.store.snapshots()] == ["kept", None]


def test_failed_snapshot_changes_no_payload(session, capsule):
    session.store.set_part(capsule, "toy", "one")
    with pytest.raises(AttributeError):
        add(session, capsule, toy=PartChange("kept", "two"), broken=None)
    assert session.store.part(capsule, "toy") == "one"
    assert session.store.snapshots(capsule) == []


def test_payloads_are_removed_with_the_capsule(session, capsule):
    add(session, capsule, toy=PartChange("kept", "two"))
    session.store.forget_capsule(capsule)
    again = session.store.lease_capsules(PROJECT, [(PLAN, {})], parts.leases)[0]
    assert session.store.part(again, "toy") == ""
    assert session.store.snapshots() == []


def test_part_without_snapshots_keeps_its_payload(session, capsule):
    session.store.set_part(capsule, "toy", "one")
    snapshot = add(session, capsule)
    toy = Toy()
    assert toy.snapshot(session, capsule, busy=False) == PartChange("", "one")
    assert toy.restore(session, capsule, snapshot) == PartChange("", "one")
    assert toy.sweep(session, capsule) == []
    assert toy.report(session, capsule) == {}
    assert toy.lease(PLAN) == ""
    assert toy.plan_fork(session, capsule, snapshot, PLAN) is PLAN
    assert not toy.has_changed(session, capsule)
    assert (toy.warnings(session, capsule), toy.variables(session, capsule, INSIDE)) == ((), {})
    with toy.quiesce(session, capsule):
        pass
