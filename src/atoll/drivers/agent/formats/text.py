"""Output without any structure: every line is something that the agent says."""

from __future__ import annotations

from atoll.drivers.agent.formats import json_lines as read
from atoll.model.agent import AgentEvent


class TextFormat:
    """Has no end event: the exit code and the tree decide."""

    def feed(self, line: str) -> list[AgentEvent]:
        return [read.message(line)] if line.strip() else []
