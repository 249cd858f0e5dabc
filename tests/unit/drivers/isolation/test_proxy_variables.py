from __future__ import annotations

import ipaddress

from atoll.drivers.isolation import proxy_variables
from atoll.model.plan import IsolationPlan


def test_exceptions_have_forms_that_every_client_accepts():
    """httpx fails on an address in brackets, and with it every client that is built on it."""
    plan = IsolationPlan(
        driver="sandbox", workspace="/w", private=None, variables={}, network="allow"
    )
    found = proxy_variables.variables(plan, {})
    assert found["no_proxy"] == found["NO_PROXY"] == found["npm_config_noproxy"]
    entries = found["NO_PROXY"].split(",")
    assert {"localhost", "127.0.0.1", "::1"} <= set(entries)
    for entry in entries:
        if not entry.lstrip(".").isalpha():
            ipaddress.ip_network(entry)


def test_node_is_not_made_to_print_warnings():
    plan = IsolationPlan(
        driver="sandbox", workspace="/w", private=None, variables={}, network="allow"
    )
    assert "NODE_USE_ENV_PROXY" not in proxy_variables.variables(plan, {})
