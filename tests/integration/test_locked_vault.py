"""Agents whose capsule has secrets, with a passphrase on the vault: their ends are recorded by a
process that has no passphrase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import atoll
from atoll.drivers.secret import key_store
from atoll.engine.agent import observation
from atoll.engine.secret import scan, vault_keys
from atoll.host.process import wait_until
from atoll.model.agent import VAULT_LOCKED, AgentSpec, AgentState
from atoll.model.secret import OriginKind, SecretOrigin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project

WORKER = """\
echo "turn $ATOLL_TURN" >> work.txt
"""
CHECK = 'test "$TYPED" = value-of-typed && test "$READ" = value-of-read'
ENDED_S = 60.0


@pytest.fixture
def project(repo: Path, atoll_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setattr(key_store, "_COST", {"n": 1 << 10, "r": 8, "p": 1})
    monkeypatch.setattr(vault_keys, "_held", {})
    opened = atoll.open_project(repo)
    yield opened
    for capsule in opened.capsules():
        capsule.remove(force=True)
    opened.session.store.close()


@pytest.fixture
def capsule(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Capsule]:
    """Starts an agent in a capsule with two variables, under a vault with a passphrase."""

    def start() -> Capsule:
        made = project.new("x")
        monkeypatch.setenv("READ", "value-of-read")
        project.secrets.set("TYPED", b"value-of-typed")
        project.secrets.set("READ", origin=SecretOrigin(OriginKind.ENV, "READ"))
        for name in ("TYPED", "READ"):
            project.secrets.grant(name, "x")
        project.secrets.set_passphrase("horse")
        monkeypatch.setenv("ATOLL_PASSPHRASE", "horse")
        (tmp_path / "agent").write_text(WORKER)
        agent = f"script:{tmp_path / 'agent'}"
        project.spawn(AgentSpec(agent=agent, prompt="do it", checks=(CHECK,), inside="x"))
        return made

    return start


def test_end_of_a_turn_is_recorded_with_the_key_of_the_command(
    capsule: Callable[[], Capsule], git: Callable[..., str], repo: Path
) -> None:
    status = capsule().agent.wait(timeout_s=ENDED_S)
    assert (status.state, status.reason) == (AgentState.FINISHED, "1 check passed")
    assert git("show", "atoll/x:work.txt", cwd=repo) == "turn 1\n"


def test_end_of_a_turn_waits_for_a_locked_vault(
    project: Project, capsule: Callable[[], Capsule], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # As from a command that was given no passphrase.
        patch.setattr(scan, "hand_over_key", lambda *_: None)
        x = capsule()

    def is_waiting() -> bool:
        agent = project.session.store.find_agent(x.record.id)
        return agent is not None and (agent.state, agent.reason) == (
            AgentState.WAITING, VAULT_LOCKED,
        )  # fmt: skip

    assert wait_until(is_waiting, timeout_s=ENDED_S)
    [turn] = project.session.store.turns(x.record.id)
    assert turn.verdict == ""
    monkeypatch.setattr(observation, "_LATE_S", 0.0)
    with monkeypatch.context() as patch:
        patch.delenv("ATOLL_PASSPHRASE")
        vault_keys.drop(project.session.home)
        assert (x.agent.status().state, x.agent.status().reason) == (
            AgentState.WAITING, VAULT_LOCKED,
        )  # fmt: skip
    # Whoever has the key and looks provides for it.
    status = x.agent.wait(timeout_s=ENDED_S)
    assert (status.state, status.reason) == (AgentState.FINISHED, "1 check passed")
