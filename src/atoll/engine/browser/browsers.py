"""The browsers of a capsule: a headless one inside for agents, and a window on the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from atoll.engine.browser import headless, profiles, windows
from atoll.engine.browser.windows import Window
from atoll.engine.network import service_urls
from atoll.engine.project import levels
from atoll.engine.run import runs
from atoll.engine.run.internal_runs import ask
from atoll.engine.state.leases import isolation_plan, workspace_plan
from atoll.engine.state.session import Session
from atoll.model import browsertools
from atoll.model.state import CapsuleRecord, Run


class BrowserStatus(NamedTuple):
    window: Window | None
    profile: str | None
    """The directory of the profile on the host."""
    inside: Run | None
    endpoint: str | None
    """None if the capsule does not have its own network."""


class Browser:
    """The browsers of one capsule. `start` starts a run in it; `alone` holds the capsule's lock."""

    def __init__(
        self,
        session: Session,
        capsule: CapsuleRecord,
        start: headless.Start,
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._session = session
        self._capsule = capsule
        self._start = start
        self._alone = alone

    def url(self, service: str | None = None, *, inside: bool = False) -> str:
        """The URL of a service on the host (default: the first one), or inside (default: a blank
        page).
        """
        if inside:
            headless.require_network(self._session, self._capsule)
            return service_urls.url_inside(self._capsule, service)
        return service_urls.url_of(self._session, self._capsule, service)

    def open(self, service: str | None = None) -> Window:
        """Opens a service in a browser window on the host, with the capsule's own profile."""
        url = self.url(service)
        with headless.turn(self._session, self._capsule):
            avoid = workspace_plan(self._session, self._capsule).checkout
            found = windows.require_window_browser(self._session, self._capsule, avoid=avoid)
            profile = profiles.require(self._session, self._capsule, found.driver.name)
            return windows.open_window(
                self._session, self._capsule, found, profile, url, avoid=avoid
            )

    def open_inside(self, service: str | None = None) -> Run:
        """Opens a service in the browser inside; returns when its DevTools port answers."""
        return headless.open_inside(self._session, self._capsule, service, self._start)

    def status(self) -> BrowserStatus:
        session, capsule = self._session, self._capsule
        return BrowserStatus(
            window=windows.find_window(capsule),
            profile=profiles.BrowserProfile().report(session, capsule).get("profile"),
            inside=headless.find_inside(session, capsule),
            endpoint=headless.ENDPOINT if levels.has_own_network(capsule.level) else None,
        )

    def settings(self, tool: str) -> browsertools.Settings:
        """The configuration with which a browser tool uses the browser headless."""
        headless.require_network(self._session, self._capsule)
        return browsertools.settings_of(tool, headless.ENDPOINT)

    def reset(self) -> None:
        """Ends both browsers and removes their profiles, except those of snapshots."""
        with self._alone(), headless.turn(self._session, self._capsule):
            _reset(self._session, self._capsule)


def _reset(session: Session, capsule: CapsuleRecord) -> None:
    headless.close_inside(session, capsule)
    if (run := headless.find_inside(session, capsule)) is not None:
        runs.stop(session, run)
    windows.end_window(capsule)
    profiles.forget(session, capsule)
    plan = isolation_plan(session, capsule)
    if plan.has_walls:
        ask(session, capsule, ("/bin/rm", "-rf", "--", f"{plan.home}/{headless.PROFILE}"))
