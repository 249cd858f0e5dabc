"""TLS on a stream, as the capsule's server and as a client of the real one.

A `TlsStream` is a `Stream` of what TLS carries. At most one task may read from it; several may send
one after the other, but a task that sends must not be cancelled while the connection is to be used
further: a part of a record would be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from atoll.daemon.streams import Stream
from atoll.engine.secret import broker_ca
from atoll.host.files import write_all

HANDSHAKE_S = 15.0
_CHUNK_BYTES = 1 << 16
H2, HTTP_1 = "h2", "http/1.1"
_UNTRUSTED = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE")
"""Alerts by which clients say that they do not trust a certificate."""
_CURE = (
    "the client does not trust the capsule's CA: set its option for CA certificates to "
    "`/run/atoll/ca.pem`"
)


class HandshakeError(OSError):
    """TLS could not begin. The text may be shown inside."""


class TlsStream(Stream):
    """Over a connected stream, which it owns from now on."""

    def __init__(
        self,
        inner: Stream,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_name: str | None = None,
    ) -> None:
        super().__init__(inner.sock)
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_name,
        )
        self._sending = asyncio.Lock()
        self._is_server = server_side

    @property
    def protocol(self) -> str:
        """What was agreed on by ALPN."""
        return self._tls.selected_alpn_protocol() or HTTP_1

    async def shake_hands(self) -> None:
        """Raises HandshakeError, also when it takes too long."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._until_done(self._tls.do_handshake)
                await self._flush()
        except TimeoutError:
            raise HandshakeError("the TLS handshake took too long") from None
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):
                # The alert that says why.
                await self._flush()
            raise HandshakeError(_explain(error, is_server=self._is_server)) from None
        except OSError:
            raise HandshakeError("the connection ended in the TLS handshake") from None

    async def _until_done(self, step: Callable[[], None]) -> None:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()

    async def _feed(self) -> None:
        """Passes what arrived to TLS, or that nothing will."""
        if self._inner.buffer or await self._inner.fill():
            self._incoming.write(self._inner.take())
        else:
            self._incoming.write_eof()

    async def fill(self) -> bool:
        """False only after an orderly end: a connection that was cut raises OSError."""
        while True:
            try:
                data = self._tls.read(_CHUNK_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except ssl.SSLZeroReturnError:
                return False
            else:
                self.buffer += data
                # One read of the inner stream may carry thousands of records.
                await asyncio.sleep(0)
                # `read` returns nothing only at the end.
                return bool(data)

    async def send(self, data: bytes) -> None:
        if data:
            self._tls.write(data)
        await self._flush()

    async def _flush(self) -> None:
        async with self._sending:
            while self._outgoing.pending:
                await self._inner.send(self._outgoing.read())

    async def say_goodbye(self) -> None:
        """Ends TLS in an orderly way; the caller then finishes the inner stream."""
        with contextlib.suppress(OSError, ValueError):
            try:
                self._tls.unwrap()
            except ssl.SSLWantReadError:
                await self._flush()


def _explain(error: ssl.SSLError, *, is_server: bool) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    reason = error.reason or ""
    if is_server and "ALERT" in reason and any(word in reason for word in _UNTRUSTED):
        return _CURE
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        ended = "the connection ended in the TLS handshake"
        return f"{ended}: perhaps {_CURE}" if is_server else ended
    return f"the TLS handshake failed: {reason.lower().replace('_', ' ') or 'unknown reason'}"


def server_context(leaf: broker_ca.LeafFiles) -> ssl.SSLContext:
    """Offers HTTP/2 and HTTP/1.1. The key passes through memory only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols([H2, HTTP_1])
    # Only files can be loaded: this one has no place in the filesystem.
    with os.fdopen(os.memfd_create("atoll-leaf"), "wb", buffering=0) as file:
        write_all(file, leaf.certificate_pem + leaf.key_pem)
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


class ServerTrust:
    """Verifies the certificates of real servers: with the system's roots, or with those of
    `SSL_CERT_FILE` in the owner's environment.
    """

    def __init__(self, chosen: str | None) -> None:
        self._chosen = chosen
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[int, int] | None = None

    def context(self) -> ssl.SSLContext:
        """Loaded when it is first needed, and again when the chosen file changed. OSError when it
        cannot be read.
        """
        stamp = None
        if self._chosen:
            status = Path(self._chosen).stat()
            stamp = status.st_ino, status.st_mtime_ns
        if self._context is None or stamp != self._stamp:
            context = ssl.create_default_context(cafile=self._chosen)
            # As strict as other programs of the owner: their CAs may lack what newer rules ask for.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_alpn_protocols([HTTP_1])
            self._context, self._stamp = context, stamp
        return self._context


async def connect_tls(inner: Stream, trust: ServerTrust, host: str) -> TlsStream:
    """Raises HandshakeError when the server is not the one of that name."""
    try:
        stream = TlsStream(inner, trust.context(), server_name=host)
    except OSError as error:
        raise HandshakeError(f"the trusted certificates cannot be read: {error}") from None
    await stream.shake_hands()
    return stream
