"""What every browser driver must do; see `atoll.drivers.contracts.BrowserDriver`."""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from atoll.drivers.contracts import BrowserDriver, BrowserRequest, DrivenBrowser

REQUEST = BrowserRequest(program="/usr/bin/browser", profile="/p", url="http://a.localhost/")


class BrowserSuite:
    """For all browsers. A subclass makes the driver and names a program of its family."""

    program: str

    def driver(self) -> BrowserDriver:
        raise NotImplementedError

    def test_window_has_the_program_the_profile_and_the_page(self) -> None:
        for is_open in (False, True):
            request = REQUEST._replace(is_open=is_open)
            words = self.driver().plan_window(request)
            assert words == self.driver().plan_window(request)
            assert (words[0], words[-1]) == (REQUEST.program, REQUEST.url)
            assert any("/p" in word for word in words)

    def test_window_has_no_less_sandbox_and_no_port(self) -> None:
        words = self.driver().plan_window(REQUEST)
        assert not any("no-sandbox" in word or "remote-debugging" in word for word in words)

    def test_program_of_the_project_is_never_used(self, tmp_path: Path) -> None:
        project, system = tmp_path / "project", tmp_path / "system"
        for place in (project, system):
            place.mkdir()
            (place / self.program).write_text("#!/bin/sh\n")
            (place / self.program).chmod(0o755)
        driver = self.driver()
        path = f"{project}:{system}"
        assert driver.find_program(path, avoid=str(project)) == str(system / self.program)
        assert driver.find_program(str(project), avoid=str(project)) is None
        own = str(project / self.program)
        assert driver.find_program("", avoid=str(project), chosen=own) is None

    def test_own_programs_are_recognised(self) -> None:
        assert self.driver().is_own(self.program)
        assert self.driver().is_own(f"/opt/bin/{self.program}")
        assert not self.driver().is_own("/opt/bin/other")
        assert not self.driver().is_own("")

    def test_unknown_entries_of_a_profile_last(self) -> None:
        assert self.driver().is_lasting("an unknown name")

    def test_cure_is_a_command(self) -> None:
        assert self.driver().cure().split()


class DrivenBrowserSuite(BrowserSuite):
    """For browsers that run headless."""

    def driver(self) -> DrivenBrowser:
        raise NotImplementedError

    def test_headless_has_the_program_the_profile_and_the_port(self) -> None:
        words = self.driver().plan_headless(REQUEST, port=62_004, cwd="/w")
        assert words == self.driver().plan_headless(REQUEST, port=62_004, cwd="/w")
        assert REQUEST.program in words
        assert any("62004" in word for word in words)
        assert any("/p" in word for word in words)

    def test_nobody_answers(self) -> None:
        def refuse() -> socket.socket:
            raise ConnectionRefusedError

        driver = self.driver()
        assert not driver.is_answering(refuse)
        acts: tuple[Callable[[], None], ...] = (
            lambda: driver.open_page(refuse, REQUEST.url),
            lambda: driver.close(refuse),
        )
        for act in acts:
            try:
                act()
            except OSError:
                continue
            raise AssertionError("no OSError although no browser answers")
