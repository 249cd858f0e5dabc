"""The certificates by which the broker stands in for the real servers, kept in memory."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable
from pathlib import Path

from atoll.daemon.broker.tls_streams import server_context
from atoll.engine.secret import broker_ca

_RENEWED_S = 24 * 3600.0


class LeafCertificates:
    """Of one capsule. Its methods may block, and may be called in any thread."""

    def __init__(self, capsule_directory: Path) -> None:
        self._directory = capsule_directory
        self._contexts: dict[str, tuple[tuple[int, int], float, ssl.SSLContext]] = {}

    def find(self, host: str) -> ssl.SSLContext | None:
        """One that was issued in the last day, by the CA as it is now."""
        found = self._contexts.get(host)
        if found is None:
            return None
        stamp, made_at, context = found
        is_fresh = time.monotonic() < made_at + _RENEWED_S
        return context if is_fresh and stamp == self._stamp() else None

    def make(self, host: str, hosts: Iterable[str]) -> ssl.SSLContext:
        """Issues one. The CA is made for all `hosts` if it is not yet. StateError, OSError."""
        broker_ca.ensure_certificate(self._directory, hosts)
        leaf = broker_ca.issue_leaf(self._directory, host)
        context = server_context(leaf)
        stamp = self._stamp()
        if stamp is not None:
            self._contexts[host] = stamp, time.monotonic(), context
        return context

    def _stamp(self) -> tuple[int, int] | None:
        """Changes when the key is replaced."""
        try:
            status = os.stat(broker_ca.key_path(self._directory))
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns
