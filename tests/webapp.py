"""A small web application that remembers who it talks to, and a way to drive a capsule's browser.

The page keeps a login cookie, localStorage, an IndexedDB, a service worker's cache and talks over a
WebSocket: everything that two browsers could mix up.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from atoll.keeper.networks import BROWSER_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from persons import Person

RELAY = Path(__file__).with_name("relay.py")

SERVER = r'''
import base64, hashlib, http.server, os, socketserver, sys
NAME = os.environ["ATOLL_CAPSULE"]
PORT = int(sys.argv[1])
PAGE = b"""<!doctype html><title>app</title><script>
const opened = () => new Promise((good, bad) => {
  const request = indexedDB.open("notes", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("notes");
  request.onsuccess = () => good(request.result); request.onerror = bad; });
const settled = (request) => new Promise((good, bad) => {
  request.onsuccess = () => good(request.result ?? null); request.onerror = bad; });
const notes = async (mode) => (await opened()).transaction("notes", mode).objectStore("notes");
async function remember(word) {
  await fetch("/login?" + word, {method: "POST"});
  localStorage.word = word;
  await settled((await notes("readwrite")).put(word, "word"));
  await navigator.serviceWorker.register("/worker.js");
  await navigator.serviceWorker.ready;
  await (await caches.open("kept")).put("/kept", new Response(word));
}
async function recall() {
  const worker = await navigator.serviceWorker.getRegistration();
  return {
    login: await (await fetch("/login")).text(),
    local: localStorage.word ?? null,
    database: await settled((await notes("readonly")).get("word")),
    worker: worker ? await (await fetch("/kept")).text() : null,
  };
}
const echo = (word) => new Promise((good, bad) => {
  const line = new WebSocket("ws://" + location.host + "/line");
  line.onopen = () => line.send(word); line.onerror = bad;
  line.onmessage = (event) => { good(event.data); line.close(); }; });
</script>"""
WORKER = b"""self.addEventListener("activate", (event) => event.waitUntil(clients.claim()));
self.addEventListener("fetch", (event) => {
  if (new URL(event.request.url).pathname === "/kept")
    event.respondWith(caches.match("/kept").then((kept) => kept ?? new Response("lost")));
});"""
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body, kind="text/plain", **headers):
        self.send_response(200)
        for key, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/login":
            self.answer(self.headers.get("Cookie", "").partition("login=")[2].encode())
        elif self.path == "/worker.js":
            self.answer(WORKER, "text/javascript")
        elif self.path == "/line":
            self.talk()
        elif self.path == "/":
            self.answer(PAGE, "text/html")
            print("visit", self.headers.get("Cookie", "nobody"), flush=True)
        else:
            self.answer(b"")
    def do_POST(self):
        word = self.path.partition("?")[2]
        self.answer(b"", **{"Set-Cookie": f"login={word}; Max-Age=86400; HttpOnly"})
    def talk(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        head = self.rfile.read(6)
        word = bytes(b ^ head[2 + i % 4] for i, b in enumerate(self.rfile.read(head[1] & 127)))
        said = f"{NAME} heard {word.decode()}".encode()
        self.wfile.write(bytes([0x81, len(said)]) + said)
        self.close_connection = True
    def log_message(self, *_):
        pass
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("127.0.0.1", PORT), Handler).serve_forever()
'''


@contextlib.contextmanager
def relayed(person: Person, name: str, port: int) -> Iterator[str]:
    """A port of a capsule on the host's loopback, for as long as a test needs it."""
    directory = next(person.home.glob(f"projects/*/{name}"))
    with subprocess.Popen(
        [sys.executable, str(RELAY), str(directory), str(port)],
        cwd=person.repo, env=person.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        preexec_fn=person.preparation(person.repo),  # noqa: PLW1509 - no threads here
    ) as relay:  # fmt: skip
        assert relay.stdout is not None
        yield f"http://127.0.0.1:{int(relay.stdout.readline())}"
        relay.communicate(b"")


@contextlib.contextmanager
def driven(person: Person, name: str, url: str) -> Iterator[Page]:
    """A new page of the browser in a capsule, driven by Playwright; the browser stays."""
    with relayed(person, name, BROWSER_PORT) as endpoint, sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(endpoint)
        page = browser.contexts[0].new_page()
        page.goto(url)
        yield page
        page.close()
        browser.close()


def remembered(word: str) -> dict[str, Any]:
    """What the page returns after it has stored a word."""
    return dict.fromkeys(("login", "local", "database", "worker"), word)


NOTHING = {"login": "", "local": None, "database": None, "worker": None}
