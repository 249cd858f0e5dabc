"""A capsule's network without the rest of it: gives away sockets of its own, as a holder does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from atoll.keeper import networks


def main() -> None:
    place, mode = Path(sys.argv[1]), sys.argv[2]
    networks.bring_up(mode)
    (place / "resolv.conf").write_text(f"nameserver {networks.NAME_SERVER}\noptions timeout:2\n")
    subprocess.run(["mount", "--bind", place / "resolv.conf", "/etc/resolv.conf"], check=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(place / "holder"))
    server.listen(64)
    sys.stdout.write(json.dumps({"pid": os.getpid()}) + "\n")
    sys.stdout.flush()
    while True:
        asker, _ = server.accept()
        with asker:
            made = networks.make_sockets(json.loads(asker.recv(4096)))
            socket.send_fds(asker, [b"."], [sock.fileno() for sock in made])
            for sock in made:
                sock.close()


if __name__ == "__main__":
    main()
