"""Chromium and browsers based on it: Chrome, Brave, Edge.

Inside a capsule it runs without its own sandbox, which needs user namespaces; the capsule isolates
it. On the host its sandbox is always on.
"""

from __future__ import annotations

import os

from atoll.drivers.browser import devtools
from atoll.drivers.browser.devtools import Dial
from atoll.drivers.contracts import BrowserRequest
from atoll.host.programs import find_any
from atoll.model.state import Problem

_NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "brave-browser",
    "microsoft-edge", "microsoft-edge-stable",
)  # fmt: skip
_INSTALL = "apt-get install chromium"
_CACHE_BYTES = 32 << 20
_QUIET = (
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-sync",
    "--hide-crash-restore-bubble",
    # No keyring: nothing to unlock, and a copy of the profile can decrypt its passwords.
    "--password-store=basic",
    f"--disk-cache-size={_CACHE_BYTES}",
)
_HEADLESS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    # The network policy would refuse what it fetches for itself.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--no-pings",
)
_OPENED = ("SingletonLock", "SingletonCookie", "SingletonSocket")
"""Locks of an open profile, which must not be copied."""
_CACHES = frozenset(
    {
        *_OPENED, "Cache", "Code Cache", "GPUCache", "GPUPersistentCache", "ShaderCache",
        "GrShaderCache", "GraphiteDawnCache", "DawnGraphiteCache", "DawnWebGPUCache", "Crashpad",
        "Crash Reports", "BrowserMetrics", "component_crx_cache", "extensions_crx_cache",
        "Safe Browsing",
    }
)  # fmt: skip
_DEPTH = 2
"""Only at the top and in `Default`: deeper directories of these names may be data of a page."""
_START = 'cd -- "$1" && rm -f SingletonLock SingletonCookie SingletonSocket; cd -- "$2" && shift 2'


class ChromiumBrowser:
    name = "chromium"

    def find_program(self, path: str, *, avoid: str, chosen: str = "") -> str | None:
        return find_any([chosen] if chosen else _NAMES, path=path, avoid=avoid)

    def is_own(self, program: str) -> bool:
        return os.path.basename(program) in _NAMES

    def check(self) -> list[Problem]:
        if os.geteuid() == 0:
            return [Problem(what="Chromium does not open a window as root")]
        return []

    def cure(self) -> str:
        return _INSTALL

    def plan_window(self, request: BrowserRequest) -> tuple[str, ...]:
        # A process that has the profile open opens the URL instead.
        return (request.program, f"--user-data-dir={request.profile}", *_QUIET, request.url)

    def plan_headless(self, request: BrowserRequest, *, port: int, cwd: str) -> tuple[str, ...]:
        script = f'mkdir -p -- "$1" && {_START} && exec "$@"'
        return (
            *("/bin/sh", "-c", script, "browser", request.profile, cwd),
            *(request.program, *_HEADLESS, f"--remote-debugging-port={port}"),
            *(f"--user-data-dir={request.profile}", *_QUIET, request.url),
        )

    def is_lasting(self, path: str) -> bool:
        parts = path.split("/")
        return parts[-1] not in _CACHES or len(parts) > _DEPTH

    def is_answering(self, dial: Dial) -> bool:
        return devtools.is_answering(dial)

    def open_page(self, dial: Dial, url: str) -> None:
        devtools.open_page(dial, url)

    def close(self, dial: Dial) -> None:
        devtools.close(dial)
