"""The browser in a capsule, for agents: its own, kept from all others, carried through time."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import playwright
import pytest

import webapp
from atoll.keeper.networks import BROWSER_PORT, OWN_PORTS
from persons import as_user, require

pytestmark = pytest.mark.slow

SYSTEM_PYTHON = "/usr/bin/python3"
APP = "http://localhost:3000/"


@pytest.fixture
def person(person):
    require("chromium")
    person.env["ATOLL_DAEMON"] = "off"
    person.write({"app.py": webapp.SERVER})
    person.commit("app")
    return person


def make_two(person):
    for name in ("one", "two"):
        person.atoll("new", name)


def serve(person, name):
    """The application, on the same port in every capsule."""
    person.atoll("run", "-d", name, "--", "python3", "app.py", "3000")


def recall(person, name):
    with webapp.driven(person, name, APP) as page:
        return page.evaluate("recall()")


def remember(person, name, word):
    with webapp.driven(person, name, APP) as page:
        page.evaluate("word => remember(word)", word)
        return page.evaluate("word => echo(word)", word)


def browser_of(person, name):
    return person.answer("browser", "status", name)["inside"]


# Two capsules.


@as_user
def test_what_pages_store_in_two_capsules_never_meets_and_survives_a_restart(person):
    make_two(person)
    for name in ("one", "two"):
        serve(person, name)
        person.atoll("open", name, "3000", "--headless")
    assert recall(person, "one") == recall(person, "two") == webapp.NOTHING
    assert remember(person, "one", "apple") == "one heard apple"
    assert recall(person, "two") == webapp.NOTHING
    assert remember(person, "two", "pear") == "two heard pear"
    assert recall(person, "one") == webapp.remembered("apple")
    for name in ("one", "two"):
        # At once: nothing of what was stored last is lost.
        number = browser_of(person, name)["number"]
        person.atoll("stop", name, str(number))
        assert browser_of(person, name) is None
        person.atoll("open", name, "--headless")
    assert recall(person, "one") == webapp.remembered("apple")
    assert recall(person, "two") == webapp.remembered("pear")


@as_user
def test_fork_carries_it_and_rollback_puts_it_back(person):
    person.atoll("new", "one")
    serve(person, "one")
    person.atoll("open", "one", "--headless")
    remember(person, "one", "apple")
    person.atoll("stop", "one")
    person.atoll("snapshot", "one", "-m", "logged in")
    person.atoll("fork", "one", "twin")
    for name, word in (("one", "cherry"), ("twin", "pear")):
        serve(person, name)
        person.atoll("open", name, "--headless")
        assert recall(person, name) == webapp.remembered("apple"), name
        remember(person, name, word)
    assert recall(person, "one") == webapp.remembered("cherry")
    person.atoll("rollback", "one", "1", "--stop")
    serve(person, "one")
    person.atoll("open", "one", "--headless")
    assert recall(person, "one") == webapp.remembered("apple")
    assert recall(person, "twin") == webapp.remembered("pear")


def test_snapshot_of_an_open_browser_says_what_may_be_missing(person):
    person.atoll("new", "one")
    assert "half minute" not in person.atoll("snapshot", "one").stderr
    person.atoll("open", "one", "--headless")
    assert "the browser of `one` is open" in person.atoll("snapshot", "one").stderr
    assert browser_of(person, "one") is not None


# Who may give it orders.


def connects(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


@as_user
def test_only_the_capsule_itself_reaches_its_browser(person):
    make_two(person)
    person.atoll("open", "one", "--headless")
    ask = "curl -s --max-time 5 $ATOLL_BROWSER_URL/json/version"
    assert "webSocketDebuggerUrl" in person.sh("one", ask)
    person.sh("two", f"! {ask}")
    person.sh("one", f"! {ask}", options=("--network", "none"))
    assert not connects("127.0.0.1", BROWSER_PORT)
    assert not connects("::1", BROWSER_PORT)
    assert BROWSER_PORT in OWN_PORTS


def test_pages_cannot_give_orders(person):
    person.atoll("new", "one")
    serve(person, "one")
    person.atoll("open", "one", "3000", "--headless")
    with webapp.driven(person, "one", APP) as page:
        told = page.evaluate(
            "fetch('http://127.0.0.1:62004/json/version').then((a) => a.text(), () => 'refused')"
        )
        line = page.evaluate(
            "new Promise((good) => { const l = new WebSocket('ws://127.0.0.1:62004/devtools/browser');"
            " l.onopen = () => good('open'); l.onerror = () => good('refused'); })"
        )
    assert (told, line) == ("refused", "refused")


@pytest.mark.parametrize("level", ["worktree", "clone"])
def test_is_refused_where_all_of_the_host_could_reach_it(person, level):
    person.atoll("new", "open", "--level", level)
    for words in (("open", "open", "--headless"), ("browser", "settings", "open")):
        done = person.atoll(*words, check=False)
        assert done.returncode == 6, done.stderr
        assert "every program on this machine" in done.stderr
    assert "ATOLL_BROWSER_URL" not in person.sh("open", "env")


# Agents.

AGENT = """
import os
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    browser = playwright.chromium.connect_over_cdp(os.environ["PLAYWRIGHT_MCP_CDP_ENDPOINT"])
    page = browser.contexts[0].pages[0]
    page.goto("http://localhost:3000/")
    page.evaluate("remember('mango')")
    print(page.title(), page.evaluate("recall()")["login"])
"""


@as_user
def test_agent_inside_drives_its_browser_against_its_application(person):
    # A toolchain of the owner's, which is visible inside: this test's own Playwright. Its
    # interpreter may be root's, whose home no other user's capsule sees: that of the system does.
    packages = Path(playwright.__file__).parents[1]
    person.env |= {"JAVA_HOME": str(packages)}
    person.write({"agent.py": AGENT})
    person.commit("agent")
    make_two(person)
    for name in ("one", "two"):
        serve(person, name)
        person.atoll("open", name, "--headless")
    program = ("env", f"PYTHONPATH={packages}", SYSTEM_PYTHON, "agent.py")
    said = person.atoll("run", "one", "--", *program).stdout
    assert said == "app mango\n"
    assert recall(person, "one") == webapp.remembered("mango")
    assert recall(person, "two") == webapp.NOTHING


def test_tools_get_its_url_while_it_runs(person):
    person.atoll("new", "one")
    seen = "echo ${ATOLL_BROWSER_URL-} ${PLAYWRIGHT_MCP_CDP_ENDPOINT-}"
    url = f"http://127.0.0.1:{BROWSER_PORT}"
    assert person.sh("one", seen).split() == [url]
    person.atoll("open", "one", "--headless")
    assert person.sh("one", seen).split() == [url, url]


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ("playwright-mcp", ("mcpServers", "playwright", "args", -1)),
        ("chrome-devtools-mcp", ("mcpServers", "chrome-devtools", "args", -1)),
        ("browser-use", ("cdp_url",)),
        ("puppeteer", ("browserURL",)),
    ],
)
def test_settings_name_the_endpoint(person, tool, place):
    person.atoll("new", "one")
    person.atoll("open", "one", "--headless")
    found = json.loads(person.atoll("browser", "settings", "one", "--for", tool).stdout)
    for key in place:
        found = found[key]
    assert "webSocketDebuggerUrl" in person.sh("one", f"curl -s {found}/json/version")


# One per capsule, and what can go wrong.


def test_second_open_is_another_page_of_the_same_browser(person):
    person.atoll("new", "one")
    serve(person, "one")
    first = person.answer("open", "one", "--headless")["run"]
    second = person.answer("open", "one", "3000", "--headless")["run"]
    assert first["number"] == second["number"]
    pages = json.loads(person.sh("one", "curl -s $ATOLL_BROWSER_URL/json/list"))
    assert sorted(p["url"] for p in pages if p["type"] == "page") == ["about:blank", APP]


def test_two_opens_at_once_are_one_browser(person):
    person.atoll("new", "one")
    both = [person.popen("open", "one", "--headless", "--json") for _ in range(2)]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert told[0]["data"]["run"]["number"] == told[1]["data"]["run"]["number"]


def test_crash_leaves_a_profile_that_opens_again(person, wait_for):
    person.atoll("new", "one")
    person.atoll("open", "one", "--headless")
    person.sh("one", "true")
    pids = [p["pid"] for p in person.answer("ps", "one") if "--user-data-dir" in p["command"]]
    person.run("kill", "-9", *map(str, pids), check=False)
    wait_for(lambda: browser_of(person, "one") is None)
    person.atoll("open", "one", "--headless")
    assert browser_of(person, "one") is not None


def test_port_that_another_process_has_is_reported(person, wait_for):
    person.atoll("new", "one")
    person.atoll("run", "-d", "one", "--", "python3", "app.py", str(BROWSER_PORT))
    wait_for(lambda: "0A" in person.sh("one", "cat /proc/net/tcp"))
    done = person.atoll("open", "one", "--headless", check=False)
    assert done.returncode == 4, done.stderr
    assert f"listens on the browser's port {BROWSER_PORT}" in done.stderr


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("/usr/bin/false", 5, "did not start (exit code 1)"),
        ("/nonexistent/chromium", 3, "neither Chromium"),
    ],
)
def test_browser_that_does_not_come_up_is_an_error(person, program, code, said):
    person.env["ATOLL_BROWSER"] = program
    person.atoll("new", "one")
    done = person.atoll("open", "one", "--headless", check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert browser_of(person, "one") is None


def test_reset_forgets_everything_inside(person):
    person.atoll("new", "one")
    serve(person, "one")
    person.atoll("open", "one", "--headless")
    remember(person, "one", "apple")
    person.atoll("browser", "reset", "one")
    assert browser_of(person, "one") is None
    assert person.sh("one", "ls -A ~/.atoll") == ""
    person.atoll("open", "one", "--headless")
    assert recall(person, "one") == webapp.NOTHING


@pytest.mark.parametrize("service", ["nope", "0", "65536", "-1", "3000x"])
def test_services_that_do_not_exist_are_refused(person, service):
    person.atoll("new", "one")
    done = person.atoll("open", "--headless", "one", "--", service, check=False)
    assert done.returncode == 2, done.stderr
    assert f"has no service `{service}`" in done.stderr
