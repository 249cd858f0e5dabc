"""The proxy variables and `resolv.conf` of sandboxed programs."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.host.programs import PROXY_VARIABLES
from atoll.keeper.networks import NAME_SERVER, PROXY_PORT
from atoll.model.plan import IsolationPlan
from atoll.model.presets import widest

_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_OWN = "localhost,.localhost,127.0.0.0/8,127.0.0.1,::1"
"""Only forms that all clients accept: httpx fails on `[::1]`."""
_FOR_TOOLS = {
    "npm_config_proxy": _PROXY,
    "npm_config_https_proxy": _PROXY,
    "npm_config_noproxy": _OWN,
    "YARN_HTTP_PROXY": _PROXY,
    "YARN_HTTPS_PROXY": _PROXY,
    "CARGO_HTTP_PROXY": _PROXY,
    "PIP_PROXY": _PROXY,
    "ELECTRON_GET_USE_PROXY": "1",
}


def variables(plan: IsolationPlan, env: Mapping[str, str]) -> dict[str, str]:
    """They replace the owner's own proxies.

    Java has no variable that does not also print a message; its connections are redirected.
    """
    spellings = [*PROXY_VARIABLES, *(name.upper() for name in PROXY_VARIABLES)]
    blank = {name: "" for name in spellings if name in env}
    if widest(plan.network, plan.setup_network) == "none":
        return blank
    own = dict.fromkeys(spellings, _PROXY)
    return {**blank, **own, "no_proxy": _OWN, "NO_PROXY": _OWN, **_FOR_TOOLS}


def settings(plan: IsolationPlan) -> str:
    """The `resolv.conf`; the daemon answers all queries."""
    if widest(plan.network, plan.setup_network) == "none":
        return ""
    return f"nameserver {NAME_SERVER}\noptions timeout:3 attempts:2\n"
