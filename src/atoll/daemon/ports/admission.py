"""Which users of this machine may connect to the daemon's ports: its owner, and root.

Every process of every user can reach 127.0.0.1. The daemon carries connections on, so that a
server inside could not tell a stranger from the owner; the decision is made here, at the accept.
"""

from __future__ import annotations

import atexit
import os
import socket
from pathlib import Path

from atoll.engine import sharing
from atoll.host.tcp_diag import PeerUsers


class Admission:
    """The rule for all listeners of one process."""

    def __init__(self) -> None:
        self._peers: PeerUsers | None = None
        self._home: Path | None = None

    def configure(self, home: Path) -> None:
        """Has the owner's choice to share the ports of a home respected."""
        self._home = home

    def admits(self, client: socket.socket) -> bool:
        """Whether the other end of an accepted connection is the owner's, or root's.

        One whose user cannot be found out is refused, such as one that was closed already.
        """
        if self._peers is None:
            self._peers = PeerUsers()
            atexit.register(self._peers.close)
        if self._peers.uid_of_peer(client) in (os.geteuid(), 0):
            return True
        return self._home is not None and sharing.is_shared(self._home)


ADMISSION = Admission()
