"""Finds drivers by name. The only module that imports concrete drivers, and loads plugins.

A plugin registers an entry point in the group `atoll.workspace`, `atoll.isolation` or
`atoll.browser` that yields a driver class. Built-in names take precedence. Every function that
returns a driver raises PrerequisiteError when there is none of that name.
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
"""The `LayeredDriver`s, in order of preference."""
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
"""In order of preference."""
DRIVEN = "chromium"
"""The one that can run headless inside a capsule."""


def workspace_driver(name: str) -> WorkspaceDriver:
    return cast("WorkspaceDriver", _load("atoll.workspace", _WORKSPACE, name))


def shared_driver(name: str) -> SharedDriver:
    """For names of drivers that use the owner's repository."""
    return cast("SharedDriver", _load("atoll.workspace", _WORKSPACE, name))


def layered_driver(name: str) -> LayeredDriver:
    """For names of drivers that have layers."""
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
    """The toolchain directories that capsules can see, and those that are refused, with reasons."""
    from atoll.drivers.isolation import toolchains  # noqa: PLC0415 - only for `doctor`

    found = toolchains.find(owner, roots)
    return [place.at for place in found.shown], found.refused


def _load(group: str, built_in: dict[str, str], name: str) -> object:
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return getattr(import_module(module), attribute)()
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and only for plugins

    for entry in entry_points(group=group, name=name):
        return entry.load()()
    raise PrerequisiteError(
        f"no driver `{name}` for {group.removeprefix('atoll.')}",
        hint=f"install a package that offers the entry point `{group}` named `{name}`",
    )
