"""One call over D-Bus, against a service that is a few lines long and speaks the real protocol."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

import pytest

from atoll.host import dbus

METHOD = dbus.Method("org.example.S", "/org/example/s", "org.example.I", "Start")


def some_body() -> dbus.DBusBody:
    body = dbus.DBusBody()
    body.string("a.scope")
    body.string("fail")
    body.properties([("PIDs", "au", [7, 8]), ("Delegate", "b", True), ("Max", "t", (1 << 64) - 1)])
    body.no_units()
    return body


def reply(kind: int, body: bytes = b"", order: str = "<") -> bytes:
    """A message without header fields but the number of the call."""
    fields = struct.pack(f"{order}B", 5) + b"\x01u\x00" + struct.pack(f"{order}I", 1)
    mark = b"l" if order == "<" else b"B"
    head = struct.pack(f"{order}BBBIII", kind, 0, 1, len(body), 1, len(fields))
    return mark + head + fields + body


def text(value: str, order: str = "<") -> bytes:
    return struct.pack(f"{order}I", len(value)) + value.encode() + b"\0"


@pytest.fixture
def serve(tmp_path):
    """`serve(accepts, says)`: a path where one client is served; what it sent is in `heard`."""
    threads, heard = [], bytearray()
    ended = threading.Event()

    def start(accepts: bytes, says: bytes | None) -> str:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def life():
            with listener, listener.accept()[0] as client:
                while not heard.endswith(b"\r\n") and (byte := client.recv(1)):
                    heard.extend(byte)
                # A client that waits only for a moment may have left.
                with contextlib.suppress(OSError):
                    client.sendall(accepts)
                if says is None:
                    ended.wait(30)
                    return
                expected = (
                    len(heard) + len(b"BEGIN\r\n") + len(dbus.render_call(METHOD, some_body()))
                )
                while len(heard) < expected and (chunk := client.recv(4096)):
                    heard.extend(chunk)
                client.sendall(says)

        threads.append(threading.Thread(target=life))
        threads[-1].start()
        return str(tmp_path / "s")

    start.heard = heard  # type: ignore[attr-defined]
    yield start
    ended.set()
    for thread in threads:
        thread.join()


OK = b"OK 0123\r\n"


def test_bytes_are_those_of_the_specification():
    body = dbus.DBusBody()
    body.string("ab")
    body.properties([("P", "au", [7])])
    assert body.signature == "sa(sv)"
    assert bytes(body.data) == (
        b"\x02\0\0\0ab\0" + b"\0"  # a string, and the padding before the next number
        + b"\x14\0\0\0" + b"\0\0\0\0"  # 20 bytes of items, which begin at a multiple of 8
        + b"\x01\0\0\0P\0" + b"\x02au\0" + b"\0\0"  # a name, and the type of its value
        + b"\x04\0\0\0" + b"\x07\0\0\0"
    )  # fmt: skip


def test_call_is_padded_and_says_how_long_it_is():
    body = some_body()
    message = dbus.render_call(METHOD, body)
    order, kind, _, version, length, serial, fields = struct.unpack("<cBBBIII", message[:16])
    assert (order, kind, version, serial) == (b"l", 1, 1, 1)
    start = 16 + fields + -fields % 8
    assert message[start:] == bytes(body.data)
    assert length == len(body.data)
    assert b"ssa(sv)a(sa(sv))" in message[:start]


def test_unknown_types_are_refused():
    with pytest.raises(ValueError, match="`P`"):
        dbus.DBusBody().properties([("P", "x", 1)])


def test_call_is_answered(serve):
    path = serve(OK, reply(4, text("a signal comes first")) + reply(2, text("/job/1")))
    dbus.call(path, METHOD, some_body(), timeout_s=30)
    who = str(os.geteuid()).encode().hex().encode()
    assert serve.heard.startswith(b"\0AUTH EXTERNAL " + who + b"\r\nBEGIN\r\nl\x01")


@pytest.mark.parametrize("order", ["<", ">"])
def test_refusal_says_why(serve, order):
    path = serve(OK, reply(3, text("Unit a.scope exists.", order), order))
    with pytest.raises(dbus.DBusError, match=r"^Unit a\.scope exists\.$"):
        dbus.call(path, METHOD, some_body(), timeout_s=30)


@pytest.mark.parametrize(
    ("accepts", "says", "why"),
    [
        (b"REJECTED EXTERNAL\r\n", None, "rejects this user"),
        (b"x" * 5000, None, "does not speak D-Bus"),
        (OK, b"l\x02\0\x01" + b"\xff" * 12, "does not speak D-Bus"),
        (OK, reply(3), "the service refused the call"),
    ],
)
def test_service_that_is_none(serve, accepts, says, why):
    path = serve(accepts, says)
    with pytest.raises(dbus.DBusError, match=why):
        dbus.call(path, METHOD, some_body(), timeout_s=30)


def test_service_that_hangs_up(serve):
    path = serve(OK, b"")
    with pytest.raises(EOFError):
        dbus.call(path, METHOD, some_body(), timeout_s=30)


def test_service_that_hangs(serve):
    path = serve(OK, None)
    with pytest.raises(TimeoutError):
        dbus.call(path, METHOD, some_body(), timeout_s=0.05)


def test_nothing_listens(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        dbus.call(str(tmp_path / "s"), METHOD, some_body(), timeout_s=30)
