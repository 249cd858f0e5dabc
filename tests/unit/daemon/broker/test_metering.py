"""The meter of a capsule's model traffic, with the real store and the real formats."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from atoll.daemon.broker import metering
from atoll.daemon.broker.metering import Meter
from atoll.daemon.broker.taps import CLIENT_GONE
from atoll.drivers.network.websocket import PING, TEXT, frame
from atoll.model.agent import AgentBudget, AgentState, AgentTask, ModelUsage, render_quota
from atoll.testing.model_dialects import Anthropic, Chat, Gemini, Reply, Responses
from atoll.testing.model_script import Usage
from worlds import World, until

MODEL = "gpt-4o"
"""2.50 and 10 dollars per million tokens, and 1.25 from the cache."""
REPLY = Reply("1", MODEL, "Done.", (), Usage(1000, 100, 400))
USAGE = ModelUsage(MODEL, 1, 1000, 100, 400, 0.003, 0)
SSE = ((b"Content-Type", b"text/event-stream"),)
JSON = ((b"Content-Type", b"application/json"),)


class Metered:
    """A capsule with an agent, and a meter whose clock is the test's."""

    def __init__(self, world, **budget):
        self.world, self.store = world, world.session.store
        self.capsule = world.capsule(world.project(), "x")
        task = AgentTask("do it", budget=AgentBudget(**budget))
        self.store.save_agent(self.capsule.id, "claude", task)
        self.now = 1000.0
        self.meter = self.new_meter()

    def new_meter(self):
        return Meter(self.world.session, self.capsule.id, now=lambda: self.now)

    def observe(self, path="/v1/chat/completions", body=b"{}", headers=()):
        return self.meter.observe("POST", path, headers, body)

    async def usage(self):
        await self.meter.until_stored()
        return self.store.usage(self.capsule.id)

    def budget(self, **limits):
        record = self.agent
        task = record.task._replace(budget=AgentBudget(**limits))
        self.store.set_task(self.capsule.id, task)

    @property
    def agent(self):
        found = self.store.find_agent(self.capsule.id)
        assert found is not None
        return found

    @property
    def state(self):
        return self.agent.state, self.agent.reason

    async def until_state(self, state):
        await until(lambda: self.agent.state is state)

    async def traffic(self):
        self.meter._write()
        await self.meter.until_stored()
        return self.store.traffic(self.capsule.id)


@pytest.fixture
def play(tmp_path, monkeypatch):
    monkeypatch.setattr(metering, "POLL_S", 0.01)
    monkeypatch.setattr(metering, "WRITE_S", 0.0)

    def run(story, **budget):
        async def whole():
            (tmp_path / "locks").mkdir(exist_ok=True)
            world = World(tmp_path)
            world.session.owner = {"XDG_CONFIG_HOME": str(tmp_path)}
            metered = Metered(world, **budget)
            try:
                async with asyncio.timeout(60):
                    await story(metered)
            finally:
                metered.meter.close()
                await world.close()

        asyncio.run(whole())

    return run


def sse(events):
    texts = (e.data if isinstance(e.data, str) else json.dumps(e.data) for e in events)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def answer(tap, reply=REPLY, dialect=None):
    """A whole exchange."""
    tap.response(200, SSE)
    tap.data(sse((dialect or Chat()).stream(reply)))
    tap.end()


def test_answers_are_counted_and_priced(play):
    async def story(metered):
        answer(metered.observe())
        assert await metered.usage() == [USAGE]
        answer(metered.observe("/v1/messages"), REPLY._replace(model="claude-x"), Anthropic())
        other = ModelUsage("claude-x", 1, 1000, 100, 400, None, 0)
        assert await metered.usage() == [other, USAGE]
        for _ in range(2):
            answer(metered.observe())
        assert (await metered.usage())[1].requests == 3

    play(story)


def test_what_is_no_model_traffic_is_not_counted(play):
    async def story(metered):
        assert metered.meter.counts("POST", "/v1/messages")
        assert not metered.meter.counts("POST", "/api/event_logging/batch")
        for status in (404, 500, 529):
            tap = metered.observe()
            tap.request_data(b"{}")
            tap.response(status, JSON)
            tap.data(b'{"error": {"type": "overloaded_error"}}')
            tap.end()
        metered.observe().end("the server closed the connection")
        assert await metered.usage() == []

    play(story)


def test_an_answer_without_usage(play):
    async def story(metered):
        answer(metered.observe(body=b'{"model": "gpt-4o"}'), REPLY._replace(usage=None))
        assert await metered.usage() == [ModelUsage(MODEL, 1, 0, 0, 0, None, 1)]

    play(story)


def test_a_client_that_hangs_up_is_counted(play):
    async def story(metered):
        tap = metered.observe(body=b'{"model": "gpt-4o"')
        tap.request_data(b"x" * 6000)
        tap.request_data(b"x" * 2000)
        tap.response(200, SSE)
        tap.data(sse(list(Chat().stream(REPLY))[:2]))
        tap.end(CLIENT_GONE)
        [used] = await metered.usage()
        assert (used.requests, used.input_tokens, used.output_tokens) == (1, 2000, 2)
        assert (await metered.traffic()).trouble == ""

    play(story)


@pytest.mark.parametrize("error", [CLIENT_GONE, "the server closed the connection"])
def test_a_request_without_an_answer_is_counted_once_it_is_sent(play, error):
    async def story(metered):
        tap = metered.observe(body=b'{"model": "gpt-4o"}')
        tap.request_data(b"x" * 4000)
        tap.end(error)
        tap = metered.observe(body=b'{"model": "gpt-4o"}')
        tap.request_data(b"")
        tap.end(error)
        used = ModelUsage(MODEL, 2, 1001, 0, 0, 1001 * 2.5 / 1e6, 0)
        assert await metered.usage() == [used]

    play(story)


def test_a_handshake_without_an_answer_costs_nothing(play):
    async def story(metered):
        tap = metered.meter.observe("GET", "/v1/responses", (), b"")
        tap.request_data(b"")
        tap.end(CLIENT_GONE)
        assert await metered.usage() == []

    play(story)


@pytest.mark.parametrize("error", [CLIENT_GONE, ""])
def test_an_answer_with_a_content_coding_is_uncounted(play, error):
    async def story(metered):
        tap = metered.observe(body=b'{"model": "gpt-4o"}')
        tap.request_data(b"x" * 4000)
        tap.response(200, (*SSE, (b"Content-Encoding", b"gzip")))
        tap.data(gzip.compress(sse(Chat().stream(REPLY))))
        tap.end(error)
        assert await metered.usage() == [ModelUsage(MODEL, 1, 0, 0, 0, None, 1)]

    play(story)


def test_the_size_of_a_request_with_a_content_coding(play):
    async def story(metered):
        body = gzip.compress(b"x" * 400_000)
        gzipped, brotli = ((b"Content-Encoding", coding) for coding in (b"gzip", b"br"))
        for headers in ((gzipped,), (brotli,), (gzipped, brotli)):
            tap = metered.observe(headers=headers)
            tap.request_data(body)
            tap.end(CLIENT_GONE)
        assert await metered.usage() == [ModelUsage("unknown", 3, 100_000, 0, 0, None, 2)]

    play(story)


def test_models_without_end_become_one_row(play):
    async def story(metered):
        for number in range(metering._MOST_MODELS + 10):
            answer(metered.observe(), REPLY._replace(model=f"m-{number}"))
        answer(metered.observe(), REPLY._replace(model="m-1"))
        found = {row.model: row.requests for row in await metered.usage()}
        assert len(found) == metering._MOST_MODELS + 1
        assert (found["others"], found["m-1"]) == (10, 2)

    play(story)


def test_a_budget_holds_requests_until_it_is_raised(play):
    async def story(metered):
        await metered.meter.admit()
        answer(metered.observe())
        waiting = asyncio.create_task(metered.meter.admit())
        await metered.until_state(AgentState.OVER_BUDGET)
        assert metered.state == (AgentState.OVER_BUDGET, "1,100 of 1,000 tokens")
        assert not waiting.done()
        metered.budget(tokens=5000)
        await waiting
        assert metered.state == (AgentState.WORKING, "")

    play(story, tokens=1000)


def test_a_budget_of_money_with_an_unknown_price(play):
    async def story(metered):
        await metered.meter.admit()
        answer(metered.observe(), REPLY._replace(model="made-up"))
        waiting = asyncio.create_task(metered.meter.admit())
        await metered.until_state(AgentState.OVER_BUDGET)
        assert "the price of `made-up` is unknown" in metered.agent.reason
        waiting.cancel()

    play(story, cost_usd=1.0)


def test_a_state_that_another_process_recorded_stays(play):
    async def story(metered):
        answer(metered.observe())
        waiting = asyncio.create_task(metered.meter.admit())
        await metered.until_state(AgentState.OVER_BUDGET)
        metered.store.set_agent_state(metered.capsule.id, AgentState.FAILED, "it was stopped")
        metered.budget()
        await waiting
        assert metered.state == (AgentState.FAILED, "it was stopped")

    play(story, tokens=10)


def test_counts_survive_the_daemon(play):
    async def story(metered):
        tap = metered.observe()
        answer(tap)
        metered.observe()
        await metered.meter.until_stored()
        metered.meter.close()
        assert metered.store.traffic(metered.capsule.id).in_flight == 0
        metered.meter = metered.new_meter()
        assert await metered.usage() == [USAGE]
        waiting = asyncio.create_task(metered.meter.admit())
        await metered.until_state(AgentState.OVER_BUDGET)
        waiting.cancel()

    play(story, tokens=1000)


def test_requests_of_a_killed_daemon_are_not_under_way(play):
    async def story(metered):
        metered.observe()
        assert (await metered.traffic()).in_flight == 1
        metered.new_meter()
        assert metered.store.traffic(metered.capsule.id).in_flight == 0

    play(story)


@pytest.mark.parametrize("dialect", [Anthropic(), Chat(), Gemini()])
def test_a_quota_pauses_until_it_is_reset(play, dialect):
    async def story(metered):
        limit = dialect.limit(60, metered.now + 60)
        tap = metered.observe()
        tap.response(429, [(k.encode(), v.encode()) for k, v in limit.headers.items()])
        tap.data(json.dumps(limit.body).encode())
        assert await tap.quota() == 60
        tap.end()
        assert metered.store.traffic(metered.capsule.id).paused_until == metered.now + 60
        waiting = asyncio.create_task(metered.meter.admit())
        await metered.until_state(AgentState.WAITING)
        assert metered.agent.reason == render_quota(metered.now + 60)
        again = metered.new_meter()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(again.admit(), 0.05)
        metered.now += 60
        await waiting
        assert metered.agent.state is AgentState.WORKING
        again.close()

    play(story)


def test_a_quota_without_a_time_is_passed_on(play):
    async def story(metered):
        tap = metered.observe()
        tap.response(429, JSON)
        tap.data(b'{"error": {"type": "rate_limit_error"}}')
        assert await tap.quota() is None
        tap.end()
        await metered.meter.admit()
        traffic = await metered.traffic()
        assert (traffic.last_status, traffic.trouble, traffic.paused_until) == (
            429, "the model refused the request: 429 (rate_limit_error)", None,
        )  # fmt: skip

    play(story)


def test_a_short_wait_is_at_least_a_second(play):
    async def story(metered):
        tap = metered.observe()
        tap.response(429, ((b"retry-after", b"0"),))
        assert await tap.quota() == 1.0
        tap.end()

    play(story)


def test_a_quota_that_the_broker_does_not_wait_for_pauses_the_next_request(play):
    async def story(metered):
        tap = metered.observe()
        tap.response(429, ((b"retry-after", b"30"),))
        tap.end()
        await metered.meter.until_stored()
        assert metered.store.traffic(metered.capsule.id).paused_until == metered.now + 30

    play(story)


def test_trouble_is_what_the_last_answer_was(play):
    async def story(metered):
        tap = metered.observe()
        tap.response(401, JSON)
        tap.data(b'{"error": {"type": "authentication_error", "message": "sk-secret"}}')
        tap.end()
        found = await metered.traffic()
        assert (found.last_status, found.trouble) == (
            401, "the model refused the request: 401 (authentication_error)",
        )  # fmt: skip
        metered.observe().end("`api.example.org`: nothing listens there")
        found = await metered.traffic()
        assert (found.last_status, found.trouble) == (
            None, "`api.example.org`: nothing listens there",
        )  # fmt: skip
        tap = metered.observe("/v1/messages")
        tap.response(200, SSE)
        tap.data(b'data: {"type": "error", "error": {"type": "overloaded_error"}}\n\n')
        tap.end()
        assert (
            await metered.traffic()
        ).trouble == "the model's answer is an error (overloaded_error)"
        answer(metered.observe())
        assert (await metered.traffic()).trouble == ""

    play(story)


def frames(events):
    return b"".join(frame(TEXT, json.dumps(event.data).encode()) for event in events)


def test_a_websocket_is_held_between_its_requests(play):
    async def story(metered):
        await metered.meter.admit()
        tap = metered.meter.observe("GET", "/v1/responses", (), b"")
        tap.response(101, ())
        request = frame(TEXT, b'{"type": "response.create"}', mask=b"abcd")
        await tap.frames_from_client(request)
        events = list(Responses().stream(REPLY))
        tap.frames_from_server(frames(events[:-1]))
        await tap.frames_from_client(frame(PING, b"", mask=b"abcd"))
        tap.frames_from_server(frames(events[-1:]))
        assert await metered.usage() == [USAGE]
        waiting = asyncio.create_task(tap.frames_from_client(request))
        await metered.until_state(AgentState.OVER_BUDGET)
        assert not waiting.done()
        metered.budget()
        await waiting
        tap.frames_from_server(frames(events))
        tap.end(CLIENT_GONE)
        assert [row.requests for row in await metered.usage()] == [2]

    play(story, tokens=1000)


def test_a_websocket_that_is_cut(play):
    async def story(metered):
        tap = metered.meter.observe("GET", "/v1/responses", (), b"")
        tap.request_data(b"")
        tap.response(101, ())
        body = b'{"type": "response.create", "model": "gpt-4o", "x": "' + b"y" * 400_000 + b'"}'
        request = frame(TEXT, body, mask=b"abcd")
        for at in range(0, len(request), 65536):
            await tap.frames_from_client(request[at : at + 65536])
        tap.end()
        used = ModelUsage(MODEL, 1, len(body) // 4, 0, 0, len(body) // 4 * 2.5 / 1e6, 0)
        assert await metered.usage() == [used]

    play(story)


def test_a_quota_in_a_websocket(play):
    async def story(metered):
        tap = metered.meter.observe("GET", "/v1/responses", (), b"")
        tap.response(101, ())
        limit = Responses().limit(60, metered.now + 60)
        error = {"type": "error", "status": 429, "headers": dict(limit.headers), **limit.body}
        assert tap.quota_of_frames() is None
        tap.frames_from_server(frame(TEXT, json.dumps(error).encode()))
        assert tap.quota_of_frames() == 60
        waiting = asyncio.create_task(tap.frames_from_client(b"next"))
        await metered.until_state(AgentState.WAITING)
        metered.now += 60
        await waiting
        tap.end()

    play(story)


def test_a_capsule_that_was_removed_is_not_counted(play):
    async def story(metered):
        tap = metered.observe()
        metered.store.forget_capsule(metered.capsule)
        answer(tap)
        assert await metered.usage() == []
        await metered.meter.admit()

    play(story)


def test_traffic_is_written_once_a_second(play, monkeypatch):
    async def story(metered):
        monkeypatch.setattr(metering, "WRITE_S", 3600.0)
        written = []
        original = metered.store.set_traffic

        def write(*given):
            written.append(given)
            original(*given)

        monkeypatch.setattr(metered.store, "set_traffic", write)
        metered.meter._written_at = metering.time.monotonic()
        tap = metered.observe()
        tap.response(200, SSE)
        for _ in range(1000):
            tap.data(b": ping\n\n")
        await metered.meter.until_stored()
        assert written == []
        tap.end()
        await metered.meter.until_stored()
        assert [traffic.last_status for _, traffic in written] == [200], "what is new, at once"

    play(story)


def test_a_client_that_has_read_enough_ends_the_trouble(play):
    async def story(metered):
        metered.observe().end("nothing listens there")
        assert (await metered.traffic()).trouble == "nothing listens there"
        tap = metered.observe()
        tap.end(CLIENT_GONE)
        assert (await metered.traffic()).trouble == "nothing listens there"
        tap = metered.observe()
        tap.response(200, SSE)
        tap.end(CLIENT_GONE)
        assert (await metered.traffic()).trouble == ""

    play(story)


def test_nothing_is_charged_for_an_answer_without_tokens(play):
    async def story(metered):
        answer(metered.observe(), REPLY._replace(model="", usage=Usage(0, 0, 0)))
        assert await metered.usage() == []

    play(story)
