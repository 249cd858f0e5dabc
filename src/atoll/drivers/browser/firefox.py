"""Firefox, for windows on the host only: it has no Chrome DevTools port."""

from __future__ import annotations

import os

from atoll.drivers.contracts import BrowserRequest
from atoll.host.programs import find_any
from atoll.model.state import Problem

_NAMES = ("firefox", "firefox-esr")
_PASSING = frozenset({"lock", ".parentlock", "cache2", "startupCache", "crashes", "minidumps"})


class FirefoxBrowser:
    name = "firefox"

    def find_program(self, path: str, *, avoid: str, chosen: str = "") -> str | None:
        return find_any([chosen] if chosen else _NAMES, path=path, avoid=avoid)

    def is_own(self, program: str) -> bool:
        return "firefox" in os.path.basename(program)

    def check(self) -> list[Problem]:
        return []

    def cure(self) -> str:
        return "apt-get install firefox-esr"

    def plan_window(self, request: BrowserRequest) -> tuple[str, ...]:
        own = (request.program, "--profile", request.profile)
        if request.is_open:
            return (*own, "--new-tab", request.url)
        # A separate instance. Not `--no-remote`, which does not allow to open another tab later.
        return (*own, "--new-instance", request.url)

    def is_lasting(self, path: str) -> bool:
        return path not in _PASSING
