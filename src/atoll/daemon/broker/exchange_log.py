"""The egress log's lines about one request to a brokered host.

They have its method and its path without the query, and the names of the secrets; never a header,
a query or a body.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.daemon.broker.admission import ClientRequest, Permit, Rejection
from atoll.daemon.broker.taps import CLIENT_GONE
from atoll.daemon.egress.egress_log_writer import Journal

VIA = "broker"
_PORT = 443
_SERVER_ERROR = 500


class ExchangeLog:
    def __init__(self, journal: Journal, host: str, request: ClientRequest) -> None:
        self._journal = journal
        self._host = host
        self._what = request.shown
        self._address: str | None = None
        self._began_s = 0.0
        self._number = 0
        self.sent = 0
        self.received = 0
        self.is_complete = False
        """Whether the client got a whole response, whatever ends the exchange."""

    def begin(self, permit: Permit, address: str | None) -> None:
        """The request is sent to the server now. Repeated if it is sent again."""
        if self._number:
            return
        names = ", ".join(f"`{secret.grant.secret.name}`" for secret in permit.secrets)
        self._what += f" with {names}" if names else ""
        self._address = address
        self._began_s = time.monotonic()
        self._number = self._note(self._what)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Writes down how the request ended."""
        problem, is_refused = CLIENT_GONE, False
        try:
            yield
            problem = ""
        except Rejection as rejection:
            problem, is_refused = rejection.logged, rejection.status < _SERVER_ERROR
            raise
        except OSError as error:
            problem = str(error) or CLIENT_GONE
            raise
        finally:
            problem = "" if self.is_complete else problem
            self._end(problem, is_refused=is_refused and not self._number)

    def _end(self, problem: str, *, is_refused: bool) -> None:
        why = f"{self._what}: {problem}" if problem else self._what
        if is_refused:
            self._journal.note(via=VIA, place=self._host, port=_PORT, allowed=False, why=why)
        elif self._number or problem:
            self._note(why, is_end=True, is_failure=bool(problem))

    def _note(self, why: str, *, is_end: bool = False, is_failure: bool = False) -> int:
        return self._journal.note(
            via=VIA,
            place=self._host,
            port=_PORT,
            allowed=True,
            why=why,
            address=self._address,
            sent=self.sent,
            received=self.received,
            took_s=(time.monotonic() - self._began_s if self._number else 0.0) if is_end else None,
            begun=self._number,
            failed=is_failure,
        )
