"""Records the state of an agent, and notifies the owner of a change."""

from __future__ import annotations

from atoll.engine.agent import notifications
from atoll.engine.state.session import Session
from atoll.model.agent import AgentState, is_news
from atoll.model.state import CapsuleRecord


def record_state(session: Session, capsule: CapsuleRecord, state: AgentState, reason: str) -> bool:
    """Stores a state that was observed; returns whether it is new. Fine without an agent."""
    before = session.store.find_agent(capsule.id)
    if before is None or (before.state, before.reason) == (state, reason):
        return False
    session.store.set_agent_state(capsule.id, state, reason)
    if is_news((before.state, before.reason), (state, reason)):
        notifications.notify(session, capsule, before._replace(state=state, reason=reason))
    return True
