"""Name → driver. The only importer of concrete drivers, and the door for outside plugins.

A plugin registers an entry point in the group `atoll.workspace`, `atoll.isolation` or
`atoll.browser` that yields a driver class; built-in names win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import cast

from atoll.drivers.contracts import (
    BrowserDriver,
    DrivenBrowser,
    IsolationDriver,
    LayeredDriver,
    SharedDriver,
    WorkspaceDriver,
)
from atoll.model.errors import PrerequisiteError

_WORKSPACE = {
    "checkout": "atoll.drivers.workspace.checkout:CheckoutWorkspace",
    "worktree": "atoll.drivers.workspace.worktree:WorktreeWorkspace",
    "overlay": "atoll.drivers.workspace.overlay:OverlayWorkspace",
    "btrfs": "atoll.drivers.workspace.plain:BtrfsWorkspace",
    "reflink": "atoll.drivers.workspace.plain:ReflinkWorkspace",
    "copy": "atoll.drivers.workspace.plain:CopyWorkspace",
}
LAYERED = ("overlay", "btrfs", "reflink", "copy")
"""Drivers that give a private view of frozen layers, the best first."""
_ISOLATION = {
    "open": "atoll.drivers.isolation.process:OpenProcess",
    "process": "atoll.drivers.isolation.process:ScrubbedProcess",
    "namespace": "atoll.drivers.isolation.namespace:NamespaceProcess",
    "sandbox": "atoll.drivers.isolation.sandbox:SandboxProcess",
}
_BROWSER = {
    "chromium": "atoll.drivers.browser.chromium:ChromiumBrowser",
    "firefox": "atoll.drivers.browser.firefox:FirefoxBrowser",
}
BROWSERS = ("chromium", "firefox")
"""In the order in which they are looked for."""
DRIVEN = "chromium"
"""The one that can run inside."""


def workspace_driver(name: str) -> WorkspaceDriver:
    return cast("WorkspaceDriver", _load("atoll.workspace", _WORKSPACE, name))


def shared_driver(name: str) -> SharedDriver:
    """A driver that is known to work on the owner's repository."""
    return cast("SharedDriver", _load("atoll.workspace", _WORKSPACE, name))


def layered_driver(name: str) -> LayeredDriver:
    """A driver that is known to have layers."""
    return cast("LayeredDriver", _load("atoll.workspace", _WORKSPACE, name))


def isolation_driver(name: str) -> IsolationDriver:
    return cast("IsolationDriver", _load("atoll.isolation", _ISOLATION, name))


def browser_driver(name: str) -> BrowserDriver:
    return cast("BrowserDriver", _load("atoll.browser", _BROWSER, name))


def driven_browser() -> DrivenBrowser:
    return cast("DrivenBrowser", _load("atoll.browser", _BROWSER, DRIVEN))


def survey_toolchains(
    owner: Mapping[str, str], roots: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """Which places of the owner's capsules see as toolchains, and what is refused, and why."""
    from atoll.drivers.isolation import toolchains  # noqa: PLC0415 - only for `doctor`

    found = toolchains.find(owner, roots)
    return [place.at for place in found.shown], found.refused


def _load(group: str, built_in: dict[str, str], name: str) -> object:
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return getattr(import_module(module), attribute)()
    # Costly to import, and needed only by those who have plugins.
    from importlib.metadata import entry_points  # noqa: PLC0415

    for entry in entry_points(group=group, name=name):
        return entry.load()()
    raise PrerequisiteError(
        f"no driver `{name}` for {group.removeprefix('atoll.')}",
        hint=f"install a package that offers the entry point `{group}` named `{name}`",
    )
