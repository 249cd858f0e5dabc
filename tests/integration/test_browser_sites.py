"""Two capsules of one project in one profile of a real Chromium: each is a site of its own.

The same pages run against the real router, and, as a control, against a plain server that answers
to any name: there the former names, with a parent of the project's own, let everything cross.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import async_playwright

from atoll.daemon.ports.host_listeners import PortConnections, PortForward
from atoll.daemon.ports.publisher import Publisher
from atoll.daemon.ports.router import Router
from atoll.daemon.ports.targets import HOST, LOOPBACK, Target
from persons import require
from worlds import Played, World, free_port

pytestmark = pytest.mark.slow

PAGE = b"""<!doctype html><title>app</title><script>
const send = async (url, method) => {
  try { await fetch(url, {method, mode: "no-cors", credentials: "include"}); } catch {} };
const submit = (url) => {
  const form = document.createElement("form");
  form.action = url; form.method = "POST"; document.body.append(form); form.submit(); };
const register = async () => {
  await navigator.serviceWorker.register("/worker.js");
  await navigator.serviceWorker.ready; };
</script><body></body>"""
COOKIES = {
    "host": "host=1; Path=/",
    "strict": "strict=1; Path=/; SameSite=Strict",
    "lax": "lax=1; Path=/; SameSite=Lax",
}


class App:
    """A capsule's web application: sets the cookies that a path names, notes those that come."""

    def __init__(self):
        self.seen = {}
        self.sites = {}
        self.domains: tuple[tuple[str, str], ...] = ()

    async def answer(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._respond(head.decode("latin-1"), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _respond(self, head, reader, writer):
        request, *lines = head.split("\r\n")
        fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        await reader.readexactly(int(fields.get("content-length", 0)))
        path = request.split()[1]
        words = (word.strip() for word in fields.get("cookie", "").split(";"))
        self.seen[path] = {word.partition("=")[0] for word in words if word}
        self.sites[path] = fields.get("sec-fetch-site")
        kind, body = "text/html", PAGE
        if path == "/worker.js":
            kind, body = "text/javascript", b"self.addEventListener('fetch', () => {});"
        made = list(COOKIES.values()) if path == "/login" else []
        if path == "/plant":
            made = [f"{name}=1; Path=/; Domain={domain}" for name, domain in self.domains]
        writer.write(
            "\r\n".join([
                "HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}",
                *(f"Set-Cookie: {cookie}" for cookie in made), "", "",
            ]).encode() + body
        )  # fmt: skip
        await writer.drain()


class Stand:
    """Two applications, and the origins under which a browser finds them."""

    def __init__(self, apps, origins, beside):
        self.one, self.two = apps
        self.first, self.second = origins
        self.beside = beside
        """Another service of the first capsule."""


@asynccontextmanager
async def served(app, port=0):
    server = await asyncio.start_server(app.answer, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def routed(home):
    """As Atoll publishes two capsules of one project."""
    (home / "locks").mkdir()
    world = World(home)
    world.session.owner = {"ATOLL_ROUTER_PORT": str(free_port())}
    publisher = Publisher(world.session)
    project, apps = world.project(), (App(), App())
    async with served(apps[0]) as one, served(apps[1]) as two:
        for name, port in (("one", one), ("two", two)):
            inside = Played(world.capsule(project, name, web=3000, api=4000))
            inside.doors |= {3000: port, 4000: port}
            await publisher.update(inside, inside.found())
        router = Router(publisher)
        task = asyncio.create_task(router.serve())
        try:
            report = await router.report()
            assert report.trouble is None
            rows = (await publisher.status(project.id))["ports"]
            urls = {(row["capsule"], row["name"]): row["url"] for row in rows}
            yield Stand(apps, [urls["one", "web"], urls["two", "web"]], urls["one", "api"])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await publisher.close()
            await world.close()


@asynccontextmanager
async def named(*names):
    """Plain servers behind one port: the host name decides, as it does at a router."""
    apps = App(), App()

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        again = asyncio.StreamReader()
        again.feed_data(head)
        app = apps[1] if names[1].encode() in head.split(b"Host: ")[1].split(b"\r")[0] else apps[0]

        async def pass_on():
            while data := await reader.read(1 << 16):
                again.feed_data(data)
            again.feed_eof()

        passing = asyncio.create_task(pass_on())
        try:
            await app.answer(again, writer)
        finally:
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        origins = [f"http://web.{name}:{port}" for name in names]
        yield Stand(apps, origins, f"http://api.{names[0]}:{port}")
    finally:
        server.close()


@asynccontextmanager
async def chromium():
    """One profile, as the owner's ordinary browser has."""
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=require("chromium"), args=options
        )
        try:
            yield await browser.new_context()
        finally:
            await browser.close()


async def visit(context, url):
    page = await context.new_page()
    await page.goto(url)
    return page


async def crossings(context, stand, domains):
    """Everything of the second capsule that a page of the first gets at, and the reverse."""
    found = set()
    stand.one.domains = domains
    # The owner is logged in to the second capsule.
    page = await visit(context, f"{stand.second}/login")
    await page.evaluate("localStorage.word = 'secret'")
    await page.evaluate("register()")
    await visit(context, f"{stand.second}/check")
    assert stand.two.seen["/check"] >= set(COOKIES), "the cookies work at all"
    # A page of the first one plants cookies, sends requests, submits a form.
    page = await visit(context, f"{stand.first}/plant")
    await page.evaluate("url => send(url, 'GET')", f"{stand.second}/fetched")
    await page.evaluate("url => send(url, 'POST')", f"{stand.second}/posted")
    async with page.expect_navigation():
        await page.evaluate("url => submit(url)", f"{stand.second}/submitted")
    for path in ("/fetched", "/posted", "/submitted"):
        if "strict" in stand.two.seen[path]:
            found.add(f"strict {path}")
        if stand.two.sites[path] != "cross-site":
            found.add(f"{stand.two.sites[path]} {path}")
    await visit(context, f"{stand.second}/after")
    found |= {f"planted {name}" for name, _ in domains if name in stand.two.seen["/after"]}
    page = await visit(context, f"{stand.first}/")
    if await page.evaluate("localStorage.word ?? null") is not None:
        found.add("storage")
    if await page.evaluate("navigator.serviceWorker.getRegistrations().then((all) => all.length)"):
        found.add("worker")
    return found


DOMAINS = (
    ("top", "localhost"), ("dotted", ".localhost"), ("project", "shop.localhost"),
    ("other", "two--shop.localhost"),
)  # fmt: skip


def run(story):
    async def whole():
        async with asyncio.timeout(180):
            await story()

    asyncio.run(whole())


def test_nothing_crosses_between_capsules_of_one_project(tmp_path):
    async def story():
        async with routed(tmp_path) as stand, chromium() as context:
            assert await crossings(context, stand, DOMAINS) == set()

    run(story)


def test_port_of_one_capsule_is_not_part_of_the_site_of_another(tmp_path):
    """Cookies ignore ports: the name of one capsule with the port of another."""

    async def story():
        async with routed(tmp_path) as stand, chromium() as context:
            await visit(context, f"{stand.second}/login")
            name = stand.second.rpartition(":")[0]
            async with served(stand.one) as plain:
                await visit(context, f"{name}:{plain}/stolen")
                assert stand.one.seen.pop("/stolen") >= set(COOKIES), "control: a plain port"
                guests = PortConnections()
                door = PortForward(free_port(), Target(HOST, plain, LOOPBACK[:1]), guests)
                try:
                    await visit(context, f"{name}:{door.port}/stolen")
                    await visit(context, f"http://localhost:{door.port}/own")
                finally:
                    door.close()
                    await guests.close()
            assert "/own" in stand.one.seen
            assert "/stolen" not in stand.one.seen

    run(story)


def test_control_former_names_let_it_cross():
    async def story():
        async with (
            named("one.shop.localhost", "two.shop.localhost") as stand,
            chromium() as context,
        ):
            assert await crossings(context, stand, DOMAINS) == {
                "planted project",
                "strict /fetched", "strict /posted", "strict /submitted",
                "same-site /fetched", "same-site /posted", "same-site /submitted",
            }  # fmt: skip

    run(story)


def test_services_of_one_capsule_stay_one_site(tmp_path):
    async def story():
        async with routed(tmp_path) as stand, chromium() as context:
            stand.one.domains = (("own", "one--shop.localhost"),)
            await visit(context, f"{stand.beside}/login")
            page = await visit(context, f"{stand.first}/plant")
            await page.evaluate("url => send(url, 'POST')", f"{stand.beside}/posted")
            assert stand.one.sites["/posted"] == "same-site"
            assert stand.one.seen["/posted"] >= {"own", "strict"}
            await visit(context, f"{stand.second}/check")
            assert stand.two.seen["/check"] == set()

    run(story)
