"""The internet of a test: names, web servers, a proxy, and other services.

Everything that arrives is written down, one word per line, in a file per kind.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import resource
import socket
import ssl
import struct
import sys
from ipaddress import ip_address
from pathlib import Path

PLACE = Path(sys.argv[1])
SERVER, SERVER_6 = "93.184.216.34", "2606:2800:220:1::34"
OTHER, OUTDATED = "93.184.216.35", "93.184.216.36"
NAMES = {
    "allowed.example": [SERVER, SERVER_6],
    "www.allowed.example": [SERVER],
    "proxy.example": [SERVER],
    "denied.example": [OTHER],
    "six.example": [SERVER_6],
    "private.example": ["10.99.0.1"],
    "fake.allowed.example": ["198.18.7.7"],
    "metadata.example": ["169.254.169.254"],
    "loop.example": ["127.0.0.1", "::1"],
    "own.example": ["10.77.0.1"],
    "mixed.example": ["127.0.0.1", SERVER],
    "closed.example": ["93.184.216.53"],
    "expired.example": [OUTDATED],
}
AUTHORIZATION = b"Basic " + base64.b64encode(b"owner:top-secret")
SILENT = "silent.example"
CREDENTIALS = ("authorization", "x-api-key", "cookie", "x-token")
REAL_KEY = "real-value-1"
"""What `/private` wants."""
ACKNOWLEDGED = asyncio.Event()


def note(kind: str, text: str) -> None:
    with (PLACE / f"{kind}.log").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class NameServer(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        labels, at = [], 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode())
            at += 1 + size
        name = ".".join(labels).lower()
        (kind,) = struct.unpack_from(">H", data, at + 1)
        note("dns", name)
        if name.endswith(SILENT):
            return
        version = {1: 4, 28: 6}.get(kind)
        found = [ip_address(text) for text in NAMES.get(name, [])]
        packed = [address.packed for address in found if address.version == version]
        code = 0x8180 if name in NAMES else 0x8183
        answer = data[:2] + struct.pack(">HHHHH", code, 1, len(packed), 0, 0) + data[12 : at + 5]
        for each in packed:
            answer += struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(each)) + each
        self.transport.sendto(answer, address)


class Quic(asyncio.DatagramProtocol):
    def datagram_received(self, data, address):
        note("udp", f"{len(data)} bytes from {address[0]}")


def answer(status: str, body: bytes = b"", *fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


READY = {
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-End: 1\r\n\r\n",
    "empty": b"HTTP/1.1 204 No Content\r\n\r\n",
    "same": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n",
    "early": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer("200 OK", b"late\n"),
    "contradiction": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
}


async def read_body(reader, fields: dict[str, str]) -> bytes:
    if "chunked" in fields.get("transfer-encoding", ""):
        body = b""
        while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        while (await reader.readline()).strip():
            pass
        return body
    return await reader.readexactly(int(fields.get("content-length", 0)))


async def serve_web(reader, writer) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            first, *lines = head.decode("latin-1").strip().split("\r\n")
            fields = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
            method, path, _ = first.split(" ")
            note("web", f"{fields.get('host')} {method} {path}")
            found = {key: fields[key] for key in CREDENTIALS if key in fields}
            note("credentials", f"{fields.get('host')} {path} {json.dumps(found)}")
            await respond(reader, writer, method, path, fields)
            await writer.drain()
            if fields.get("connection") == "close":
                break
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def respond(reader, writer, method, path, fields) -> None:  # noqa: C901, PLR0912, PLR0915
    kind, _, rest = path.lstrip("/").partition("/")
    if fields.get("expect") == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if kind == "refuse-body":
        writer.write(answer("413 Too Large", b"too large\n", "Connection: close"))
        return
    if kind == "stall":
        # Reads nothing of the body.
        await asyncio.sleep(600)
        return
    if kind == "owner":
        await serve_git(reader, writer, method, path, fields)
        return
    body = await read_body(reader, fields)
    if kind == "bytes":
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {rest}\r\n\r\n".encode())
        left = int(rest)
        while left:
            part = min(left, 1 << 16)
            writer.write(bytes(part))
            await writer.drain()
            left -= part
    elif kind == "cut":
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {int(rest) * 2}\r\n\r\n".encode())
        writer.write(bytes(int(rest)))
        await writer.drain()
        writer.close()
    elif kind == "hang":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nsome")
        await writer.drain()
        await asyncio.sleep(600)
    elif kind == "endless":
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
        await writer.drain()
        writer.close()
    elif kind == "redirect":
        writer.write(answer("302 Found", b"", f"Location: http://{rest}/hello"))
    elif kind in READY:
        writer.write(READY[kind])
    elif kind == "headers":
        writer.write(answer("200 OK", json.dumps(fields).encode()))
    elif kind == "socket":
        writer.write(b"HTTP/1.1 101 Over\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi")
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    elif kind == "git":
        file = PLACE / "git" / rest.partition("?")[0]
        writer.write(
            answer("200 OK", file.read_bytes()) if file.is_file() else answer("404 Not Found")
        )
    elif kind == "reflect":
        found = json.dumps({"path": path, **fields}).encode()
        shown = fields.get("authorization", "none")
        extra = [f"X-Echo: {shown}", "Set-Cookie: session=real-session", "Alt-Svc: h3=:443"]
        writer.write(answer("200 OK", found, "Content-Type: application/json", *extra))
    elif kind == "reflect-in-pieces":
        said = json.dumps(fields).encode()
        fields_ = "Content-Type: application/json\r\nTransfer-Encoding: chunked"
        writer.write(f"HTTP/1.1 200 You sent {fields.get('x-odd')}\r\n{fields_}\r\n\r\n".encode())
        for byte in said:
            writer.write(b"1\r\n%c\r\n" % byte)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    elif kind == "part":
        page = json.dumps(fields).encode()
        first, last = fields.get("range", "bytes=0-9").removeprefix("bytes=").split("-")
        extra = ["Content-Type: application/json", f"Content-Range: bytes {first}-{last}/*"]
        is_part = "range" in fields or rest == "always"
        status = "206 Partial Content" if is_part else "200 OK"
        writer.write(answer(status, page[int(first) : int(last) + 1] if is_part else page, *extra))
    elif kind == "sink":
        writer.write(b"HTTP/1.1 101 Over\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi")
        while await reader.read(1 << 20):
            pass
    elif kind == "private":
        is_known = f"Bearer {REAL_KEY}" == fields.get("authorization")
        status = "200 OK" if is_known else "401 Unauthorized"
        writer.write(answer(status, b"private\n", "WWW-Authenticate: Bearer"))
    elif kind == "elsewhere":
        writer.write(answer("302 Found", b"", f"Location: https://{rest}"))
    elif kind == "events":
        ACKNOWLEDGED.clear()
        fields_ = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        writer.write(f"HTTP/1.1 200 OK\r\n{fields_}\r\n\r\n".encode())
        writer.write(b"e\r\ndata: first\n\n\n\r\n")
        await writer.drain()
        ending = asyncio.create_task(reader.read(1))
        hearing = asyncio.create_task(ACKNOWLEDGED.wait())
        await asyncio.wait((ending, hearing), return_when=asyncio.FIRST_COMPLETED)
        hearing.cancel()
        if ending.done():
            note("gone", path)
            return
        ending.cancel()
        writer.write(b"f\r\ndata: second\n\n\n\r\n0\r\n\r\n")
    elif kind == "acknowledge":
        ACKNOWLEDGED.set()
        writer.write(answer("200 OK"))
    elif method == "HEAD":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
    else:
        writer.write(answer("200 OK", body or f"hello {fields.get('host')}\n".encode()))


async def serve_git(reader, writer, method, path, fields) -> None:
    """git's own server, for those that know the token."""
    token = "Basic " + base64.b64encode(f"x:{REAL_KEY}".encode()).decode()
    if fields.get("authorization") != token:
        await read_body(reader, fields)
        writer.write(answer("401 Unauthorized", b"", 'WWW-Authenticate: Basic realm="git"'))
        return
    body = await read_body(reader, fields)
    place, _, query = path.partition("?")
    environment = {
        **os.environ,
        "GIT_PROJECT_ROOT": str(PLACE / "served"),
        "GIT_HTTP_EXPORT_ALL": "1",
        "REMOTE_USER": "owner",
        "REQUEST_METHOD": method,
        "PATH_INFO": place,
        "QUERY_STRING": query,
        "CONTENT_TYPE": fields.get("content-type", ""),
        "HTTP_CONTENT_ENCODING": fields.get("content-encoding", ""),
        "CONTENT_LENGTH": str(len(body)),
    }
    backend = await asyncio.create_subprocess_exec(
        "git", "http-backend", env=environment, stdin=-1, stdout=-1
    )
    output, _ = await backend.communicate(body)
    head, _, content = output.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    status = next((line[8:] for line in lines if line.startswith("Status: ")), "200 OK")
    writer.write(answer(status, content, *(x for x in lines if not x.startswith("Status: "))))


async def serve_raw(reader, writer) -> None:
    _, port, *_ = writer.get_extra_info("sockname")
    note("raw", str(port))
    if port == 22:
        writer.write(b"SSH-2.0-test\r\n")
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def serve_corporate_proxy(reader, writer) -> None:
    """The owner's own proxy, which wants a password."""
    head = await reader.readuntil(b"\r\n\r\n")
    first = head.split(b"\r\n")[0].decode()
    is_known = b"Proxy-Authorization: " + AUTHORIZATION in head
    note("proxy", f"{first.split(' ')[0]} {first.split(' ')[1]} {is_known}")
    if not is_known:
        writer.write(answer("407 Who are you", b"", "Proxy-Authenticate: Basic"))
    elif first.startswith("CONNECT "):
        port = int(first.split(" ")[1].rpartition(":")[2])
        there, to_there = await asyncio.open_connection(SERVER, port)
        writer.write(b"HTTP/1.1 200 Fine\r\n\r\n")

        async def copy(source, sink):
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, to_there), copy(there, writer))
    else:
        writer.write(answer("200 OK", b"by the owner's proxy\n", "Connection: close"))
    writer.close()


async def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PLACE / "cert.pem", PLACE / "key.pem")
    context.sni_callback = lambda _, name, __: note("tls", str(name))
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(NameServer, local_addr=("93.184.216.53", 53))
    await loop.create_datagram_endpoint(Quic, local_addr=(SERVER, 443))
    many = {"backlog": 4096}
    for address in (SERVER, OTHER, SERVER_6, "10.99.0.1", "169.254.169.254"):
        await asyncio.start_server(serve_web, address, 80, **many)
        await asyncio.start_server(serve_web, address, 443, ssl=context, **many)
        for port in (22, 25, 853, 6379, 8080):
            await asyncio.start_server(serve_raw, address, port, **many)
    outdated = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    outdated.load_cert_chain(PLACE / "expired.pem", PLACE / "expired-key.pem")
    await asyncio.start_server(serve_web, OUTDATED, 443, ssl=outdated)
    await asyncio.start_server(serve_corporate_proxy, SERVER, 3128)
    sys.stdout.write(json.dumps({"names": sorted(NAMES)}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    socket.setdefaulttimeout(None)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main())
