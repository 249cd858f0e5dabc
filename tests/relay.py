"""`DIRECTORY PORT`: shows a port of a capsule's own network on the host's loopback.

For a test that looks into a capsule from outside, as whoever owns it. Prints the number that it
listens on and ends with its input. What the product itself never does with the browser's port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

from atoll.host import view_client


def _dial(directory: str, port: int) -> socket.socket:
    answer = view_client.ask(
        directory, {"sockets": [[int(socket.AF_INET), int(socket.SOCK_STREAM)]]}
    )
    if answer is None:
        raise ConnectionRefusedError
    sock = socket.socket(fileno=answer[1][0])
    sock.connect(("127.0.0.1", port))
    return sock


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, directory: str, port: int) -> None:
    while True:
        near, _ = listener.accept()
        try:
            far = _dial(directory, port)
        except OSError:
            near.close()
            continue
        for ends in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=ends, daemon=True).start()


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    words = (listener, sys.argv[1], int(sys.argv[2]))
    threading.Thread(target=_serve, args=words, daemon=True).start()
    os.write(1, f"{listener.getsockname()[1]}\n".encode())
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
