"""What is stored of a turn."""

from __future__ import annotations

from atoll.engine.agent.turns import plausible
from atoll.model.agent import ModelUsage


def test_usage_that_an_agent_reports_is_bounded():
    found = plausible(ModelUsage("m", 1100, -5, 1100 << 53, -1, -1e15))
    assert found == ModelUsage("m", 1100, 0, 10**12, 0, 0.0)
    assert plausible(ModelUsage("m", 1, 2, 3, 1, None)).cost_usd is None
