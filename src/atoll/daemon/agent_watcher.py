"""Looks at agents from time to time, so that a state that wants a person is noticed while no
command is open.
"""

from __future__ import annotations

import asyncio

from atoll.engine.state.session import Session
from atoll.model.agent import AgentRecord, AgentState
from atoll.model.errors import AtollError

_EVERY_S = 3.0
_LIVE = frozenset(
    {
        AgentState.STARTING,
        AgentState.WORKING,
        AgentState.WAITING,
        AgentState.IDLE,
        AgentState.OVER_BUDGET,
    }
)
"""States that can change without a command."""


class AgentWatcher:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._failed: dict[int, str] = {}
        """By capsule: the failure that was reported last."""

    async def serve(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            # One after the other: a look reads files, and may take long on a busy machine.
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Observes every agent that may have changed, and records what is new."""
        try:
            found = [agent for agent in self._session.store.all_agents() if agent.state in _LIVE]
        except (AtollError, OSError):
            # The database is locked, or the disk is full: the next look may succeed.
            return
        for agent in found:
            self._observe(agent)

    def _observe(self, agent: AgentRecord) -> None:
        from atoll.engine.agent import observation  # noqa: PLC0415 - heavy, and only with agents

        try:
            capsule = self._session.store.capsule(agent.capsule_id)
            if capsule is not None:
                observation.find_state(self._session, capsule, agent)
        except (AtollError, OSError, ValueError, TypeError, LookupError) as error:
            # Also of a damaged record: the daemon serves all other capsules, too.
            if repr(error) != self._failed.get(agent.capsule_id):
                self._failed[agent.capsule_id] = repr(error)
                self._session.warn(f"the agent of capsule {agent.capsule_id}: {error!r}")
