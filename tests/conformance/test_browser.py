"""Every browser driver, and the fake."""

from __future__ import annotations

import socket
import threading

import pytest

from atoll.drivers import registry
from atoll.testing.conformance.browser import BrowserSuite, DrivenBrowserSuite
from atoll.testing.fakes import FakeBrowser

pytestmark = pytest.mark.quick


class TestChromium(DrivenBrowserSuite):
    program = "chromium"

    def driver(self):
        return registry.driven_browser()


class TestFirefox(BrowserSuite):
    program = "firefox"

    def driver(self):
        return registry.browser_driver("firefox")


class TestFake(DrivenBrowserSuite):
    program = "fake-browser"

    def driver(self):
        return FakeBrowser()

    def test_answers_and_takes_orders(self):
        heard = []

        def dial():
            ours, theirs = socket.socketpair()

            def answer():
                with theirs, theirs.makefile("rw") as stream:
                    heard.append(stream.readline().strip())
                    stream.write("fake\n" if heard[-1] == "ask" else "done\n")
                    stream.flush()

            threading.Thread(target=answer).start()
            return ours

        browser = self.driver()
        assert browser.is_answering(dial)
        browser.open_page(dial, "http://a.localhost/")
        browser.close(dial)
        assert heard == ["ask", "open http://a.localhost/", "close"]
