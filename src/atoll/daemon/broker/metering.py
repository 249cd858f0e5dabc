"""Counts a capsule's model traffic, and holds requests while a budget or a quota is used up.

Law: what was counted is stored, in order, before the next request is admitted; what cannot be
stored or counted admits nothing more under a budget. Nothing here sees a request's credentials, and
of a response only the numbers, the model's name and the kind of an error are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from atoll.daemon.broker.taps import CLIENT_GONE, TrafficTap
from atoll.drivers.network import model_formats, model_quota
from atoll.drivers.network.http1 import Field
from atoll.drivers.network.model_formats import Counted, StreamError, Tokens, UsageReader
from atoll.engine.agent import budgets, states
from atoll.engine.state.session import Session
from atoll.model.agent import AgentState, ModelTraffic, ModelUsage, render_quota
from atoll.model.errors import AtollError
from atoll.model.prices import find_price

POLL_S = 0.5
"""How often a held request looks whether it may go on."""
WRITE_S = 1.0
"""The least time between two writes of the same capsule's traffic."""
_LEAST_WAIT_S = 1.0
_ERROR_BYTES = 64 << 10
_TROUBLE_CHARACTERS = 300
_MOST_MODELS = 64
_HANDSHAKE = "GET"
_UNNAMED, _OTHERS = "unknown", "others"
T = TypeVar("T")


class _Hold(NamedTuple):
    state: AgentState
    reason: str
    wait_s: float


class Meter:
    """A `TrafficMeter` of one capsule. Used in one event loop; the store is used in a thread."""

    def __init__(
        self, session: Session, capsule_id: int, *, now: Callable[[], float] = time.time
    ) -> None:
        self._session, self._capsule_id, self._now = session, capsule_id, now
        self._pool: ThreadPoolExecutor | None = None
        found = session.store.traffic(capsule_id)
        self._traffic = found.at_rest(now())
        if self._traffic != found:
            # Requests that an earlier daemon had under way have ended with it.
            self._store_traffic(self._traffic)
        self._waiting = 0
        """How many requests are held."""
        self._writing: asyncio.TimerHandle | None = None
        self._written_at = 0.0
        self._unstored: list[ModelUsage] = []
        """Counted, and not yet in the store; belongs to the thread."""
        self._held: tuple[AgentState, str] | None = None

    def counts(self, method: str, path: str) -> bool:
        return model_formats.find_format(method, path) is not None

    async def admit(self) -> None:
        is_held = False
        try:
            while (hold := await self._run(self._find_hold)) is not None:
                if not is_held:
                    is_held = True
                    self._wait(1)
                # Other processes change the store.
                await asyncio.sleep(min(POLL_S, hold.wait_s))
        finally:
            if is_held:
                self._wait(-1)

    def _wait(self, change: int) -> None:
        """Notes since when requests are held: that time counts for no budget."""
        before, self._waiting = self._waiting, self._waiting + change
        if not before:
            self._note(held_since=self._now())
        elif not self._waiting:
            now, found = self._now(), self._traffic
            self._note(held_s=found.held_at(now), held_since=None)
        else:
            return
        self._write()

    def observe(self, method: str, path: str, headers: Sequence[Field], body: bytes) -> TrafficTap:
        return _Tap(self, method, path, headers, body)

    def close(self) -> None:
        """Stores what is not stored yet. Blocks for a moment."""
        if self._writing is not None:
            self._writing.cancel()
        if self._pool is not None:
            self._traffic = self._traffic.at_rest(self._now())
            self._write()
            self._pool.shutdown(wait=True)
            self._pool = None

    # Called by the taps.

    def begin(self) -> None:
        self._note(in_flight=self._traffic.in_flight + 1, last_at=self._now())

    def finish(self) -> None:
        self._note(in_flight=max(0, self._traffic.in_flight - 1), last_at=self._now())

    def saw(self) -> None:
        self._note(last_at=self._now())

    def answered(self, status: int | None, trouble: str) -> None:
        has_changed = (status, trouble) != (self._traffic.last_status, self._traffic.trouble)
        self._note(last_status=status, trouble=trouble[:_TROUBLE_CHARACTERS])
        if has_changed:
            # Whoever judges the agent's work, perhaps in a moment, needs to know.
            self._write()

    def pause(self, wait_s: float) -> None:
        """A quota is used up for so long."""
        until = self._now() + wait_s
        if until > (self._traffic.paused_until or 0.0):
            self._note(paused_until=until)
            self._write()

    def wait_s(self, status: int, headers: Sequence[Field], body: bytes) -> float | None:
        found = model_quota.find_wait_s(status, headers, body, now=self._now())
        return None if found is None else max(_LEAST_WAIT_S, found)

    def count(self, counted: Sequence[Counted]) -> None:
        if counted:
            self._submit(lambda: self._store(counted))

    async def until_stored(self) -> None:
        """Until everything that was counted is in the store."""
        await self._run(lambda: None)

    # In the thread.

    def _find_hold(self) -> _Hold | None:
        """Why no request is admitted now; None when one is. Records the state of the agent."""
        try:
            self._store_rest()
            hold = self._find_reason()
            self._record(hold)
        except AtollError:
            # What was used is not known: nothing may be added to it.
            return _Hold(AgentState.WAITING, "", POLL_S)
        return hold

    def _find_reason(self) -> _Hold | None:
        excess = budgets.find_excess(self._session, self._capsule_id)
        if excess is not None:
            return _Hold(AgentState.OVER_BUDGET, excess, POLL_S)
        until = self._traffic.paused_until or 0.0
        left_s = until - self._now()
        if left_s > 0:
            return _Hold(AgentState.WAITING, render_quota(until), left_s)
        return None

    def _record(self, hold: _Hold | None) -> None:
        wanted = None if hold is None else (hold.state, hold.reason)
        if wanted == self._held:
            return
        capsule = self._session.store.capsule(self._capsule_id)
        agent = self._session.store.find_agent(self._capsule_id)
        if capsule is not None and agent is not None:
            if wanted is not None:
                states.record_state(self._session, capsule, *wanted)
            elif (agent.state, agent.reason) == self._held:
                states.record_state(self._session, capsule, AgentState.WORKING, "")
        self._held = wanted

    def _store(self, counted: Sequence[Counted]) -> None:
        # A client may send the beginning of a conversation ahead, for which nothing is charged.
        self._unstored += [self._usage_of(one) for one in counted if one.tokens != Tokens()]
        self._store_rest()

    def _store_rest(self) -> None:
        store = self._session.store
        if self._unstored and store.capsule(self._capsule_id) is None:
            # It was removed meanwhile.
            self._unstored.clear()
        while self._unstored:
            store.add_usage(self._capsule_id, self._unstored[0])
            del self._unstored[0]

    def _usage_of(self, counted: Counted) -> ModelUsage:
        model = counted.model or _UNNAMED
        known = {row.model for row in self._session.store.usage(self._capsule_id)}
        if len(known) >= _MOST_MODELS and model not in known:
            # A capsule can ask for any number of models.
            model = _OTHERS
        tokens = counted.tokens
        if tokens is None:
            return ModelUsage(model, requests=1, uncounted=1)
        return ModelUsage(
            model, 1, tokens.input_tokens, tokens.output_tokens, tokens.cache_read,
            self._cost_usd(model, tokens),
        )  # fmt: skip

    def _cost_usd(self, model: str, tokens: Tokens) -> float | None:
        try:
            price = find_price(model, budgets.owner_limits(self._session).prices)
        except (AtollError, OSError):
            # It is calculated once the settings can be read.
            return None
        return None if price is None else price.cost_usd(**tokens._asdict())

    # The thread itself, and the traffic, which is written rarely.

    def _note(self, **changes: float | str | None) -> None:
        self._traffic = ModelTraffic(**{**self._traffic._asdict(), **changes})
        if self._writing is None:
            delay_s = max(0.0, self._written_at + WRITE_S - time.monotonic())
            self._writing = asyncio.get_running_loop().call_later(delay_s, self._write)

    def _write(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        self._written_at = time.monotonic()
        traffic = self._traffic
        self._submit(lambda: self._store_traffic(traffic))

    def _store_traffic(self, traffic: ModelTraffic) -> None:
        if self._session.store.capsule(self._capsule_id) is not None:
            self._session.store.set_traffic(self._capsule_id, traffic)

    def _submit(self, work: Callable[[], None]) -> None:
        """Done after everything that was submitted before. What fails is tried again later."""
        self._executor().submit(work)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor(), work)

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="metering")
        return self._pool


class _Tap:
    """One exchange with a model: a request and its response, or a WebSocket with many."""

    def __init__(
        self, meter: Meter, method: str, path: str, headers: Sequence[Field], body: bytes
    ) -> None:
        kind = model_formats.find_format(method, path) or model_formats.ModelFormat.OTHER
        self._meter = meter
        self._reader = UsageReader(
            kind,
            model=model_formats.requested_model(path, body),
            coding=_coding(headers),
            request=body,
        )
        self._has_cost = method != _HANDSHAKE
        """Whether the request itself costs something; of a WebSocket, its messages do."""
        self._status: int | None = None
        self._headers: Sequence[Field] = ()
        self._error_body = bytearray()
        self._is_admitted = True
        """Whether the client of a WebSocket may send its next request."""
        self._is_busy = False
        self._has_paused = False
        self._frames_wait_s: float | None = None
        self._set_busy(is_busy=True)

    def request_data(self, data: bytes) -> None:
        if self._has_cost:
            self._reader.add_request(data)

    def response(self, status: int, headers: Sequence[Field]) -> None:
        self._status, self._headers = status, headers
        self._meter.saw()
        if status == HTTPStatus.SWITCHING_PROTOCOLS:
            self._set_busy(is_busy=False)
            self._meter.answered(status, "")
        elif self._is_good:
            self._reader.begin(
                _value(headers, b"content-type"),
                length=_length(headers),
                is_coded=bool(_coding(headers)),
            )

    @property
    def _is_good(self) -> bool:
        return self._status is not None and 200 <= self._status < 300

    def data(self, data: bytes) -> None:
        self._meter.saw()
        if self._is_good:
            self._reader.feed(data)
        elif len(self._error_body) < _ERROR_BYTES:
            self._error_body += data[: _ERROR_BYTES - len(self._error_body)]

    async def frames_from_client(self, data: bytes) -> None:
        if data and not self._is_admitted:
            await self._meter.admit()
            self._is_admitted = True
        self._reader.add_frames(data)
        self._set_busy(is_busy=True)

    def frames_from_server(self, data: bytes) -> None:
        self._meter.saw()
        counted = self._reader.feed_frames(data)
        self._meter.count(counted)
        errors, self._reader.errors = self._reader.errors, []
        if counted or errors:
            self._is_admitted = False
            self._set_busy(is_busy=False)
            self._meter.answered(HTTPStatus.OK, self._find_trouble())
        for error in errors:
            self._note_error(error)

    def quota_of_frames(self) -> float | None:
        return self._frames_wait_s

    def _note_error(self, error: StreamError) -> None:
        wait_s = self._meter.wait_s(error.status, error.headers, error.body)
        if wait_s is not None:
            self._frames_wait_s = wait_s
            self._meter.pause(wait_s)
        self._meter.answered(error.status, _refused(error.status, error.body))

    async def quota(self) -> float | None:
        wait_s = self._pause()
        await self._meter.until_stored()
        return wait_s

    def _pause(self) -> float | None:
        self._has_paused = True
        if self._status is None:
            return None
        wait_s = self._meter.wait_s(self._status, self._headers, bytes(self._error_body))
        if wait_s is not None:
            self._meter.pause(wait_s)
        return wait_s

    def end(self, error: str = "") -> None:
        self._set_busy(is_busy=False)
        is_switched = self._status == HTTPStatus.SWITCHING_PROTOCOLS
        if self._status is None or self._is_good or is_switched:
            # Nothing is charged for a request that was refused.
            self._meter.count(self._reader.end(is_cut=bool(error)))
        if is_switched:
            return
        if not self._has_paused:
            self._pause()
        if error == CLIENT_GONE:
            # That is no trouble of the model's. An answer that had begun well is none either.
            error = ""
            if not self._is_good:
                return
        self._meter.answered(self._status, error or self._find_trouble())

    def _find_trouble(self) -> str:
        if self._status is not None and self._status >= 400:
            return _refused(self._status, bytes(self._error_body))
        return (
            f"the model's answer is an error ({self._reader.error})" if self._reader.error else ""
        )

    def _set_busy(self, *, is_busy: bool) -> None:
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            if is_busy:
                self._meter.begin()
            else:
                self._meter.finish()


def _refused(status: int, body: bytes) -> str:
    word = model_formats.error_word(body)
    return f"the model refused the request: {status}" + (f" ({word})" if word else "")


def _length(headers: Sequence[Field]) -> int:
    """The size of a body, or 0 when its head does not say."""
    text = _value(headers, b"content-length")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _coding(headers: Sequence[Field]) -> str:
    """The content coding of a body; empty when it has none."""
    codings = (v.decode("latin-1") for n, v in headers if n.lower() == b"content-encoding")
    text = ",".join(codings).strip().lower()
    return "" if text == "identity" else text


def _value(headers: Sequence[Field], name: bytes) -> str:
    return next((v.decode("latin-1") for n, v in headers if n.lower() == name), "")
