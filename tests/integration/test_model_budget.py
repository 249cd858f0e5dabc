"""Budgets and quotas of an agent, from a client inside through the broker to a scripted model."""

from __future__ import annotations

import os
import signal

import pytest

from atoll.testing.model_script import Fault, Turn, Usage, turns
from atoll.testing.model_server import ModelServer

KEY = "sk-real-model-key-77"
PATIENT = "--retry 60 --retry-all-errors --retry-delay 1 --max-time 240"
AGENT = """\
#!/bin/sh
ask() {
    curl -sS --fail-with-body PATIENCE \\
        -H "Authorization: Bearer $MODEL_KEY" -H 'Content-Type: application/json' \\
        -d '{"model": "gpt-4o", "stream": true, "messages": [{"role": "user", "content": "hi"}],
             "tools": [{"type": "function", "function": {"name": "bash"}}]}' \\
        https://api.openai.com/v1/chat/completions
}
for number in 1 2 3; do ask >> answers.txt || exit 1; done
echo '{"type": "done"}'
"""


@pytest.fixture
def model():
    reply = Turn("Done.", usage=Usage(600, 10), faults=(Fault(status=429, retry_after_s=1),))
    with ModelServer(turns(reply), keys=[KEY]) as server:
        yield server
        assert server.violations == []


@pytest.fixture
def make(person, model):
    """Spawns an agent that asks the model three times."""
    person.wants_daemon()
    grant(person, model)
    return lambda patience, *options: spawn(person, patience, *options)


def grant(person, model):
    person.atoll("new", "x")
    broker = ("--broker", "api.openai.com", "--upstream", model.url)
    person.atoll("secret", "set", "MODEL_KEY", *broker, input=KEY)
    person.atoll("secret", "grant", "MODEL_KEY", "x")


def spawn(person, patience, *options):
    script = person.place / "agent.sh"
    script.write_text(AGENT.replace("PATIENCE", patience))
    script.chmod(0o755)
    person.atoll("spawn", f"script:{script}", "do it", "--in", "x", *options)
    return person


@pytest.fixture
def spawned(make):
    """It may use the tokens of two answers."""
    return make(PATIENT, "--budget", "tokens=1000")


def agent_of(person):
    [found] = person.answer("agents")
    return found


def test_a_budget_is_a_state_that_survives_the_daemon(spawned, model, wait_for):
    found = wait_for(lambda: is_in(spawned, "over-budget"), what="a budget that is used up")
    assert found["reason"] == "1,220 of 1,000 tokens"
    # Another budget than the one that is used up does not help, and is not said to.
    told = spawned.atoll("tell", "x", "--budget", "turns=20").stderr
    assert "`x` may not use more: 1,220 of 1,000 tokens" in told
    assert "hint: atoll tell x --budget tokens=+200k" in told
    assert (found["tokens"], found["cost_usd"]) == (1220, pytest.approx(2 * 0.0016))
    # The answer about the quota stayed with the broker.
    assert [request.status for request in model.model_requests] == [429, 200, 200]

    worker = spawned.answer("daemon", "status")["pid"]
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: spawned.answer("daemon", "status")["pid"] != worker, what="another worker")
    assert agent_of(spawned)["tokens"] == 1220
    assert is_in(spawned, "over-budget")
    assert len(model.model_requests) == 3

    spawned.atoll("tell", "x", "--budget", "tokens=+1000")
    found = wait_for(lambda: is_in(spawned, "finished"), what="the end of the agent")
    assert found["tokens"] == 1830
    assert [request.status for request in model.model_requests] == [429, 200, 200, 200]
    answers = spawned.sh("x", "grep -c '\\[DONE\\]' answers.txt")
    assert answers.strip() == "3"


def is_in(person, state):
    found = agent_of(person)
    return found if found["state"] == state else None


def test_watch_says_what_holds_an_agent(spawned, wait_for):
    wait_for(lambda: is_in(spawned, "over-budget"), what="a budget that is used up")
    with spawned.popen("watch", "x") as watching:
        lines = [watching.stderr.readline() for _ in range(2)]
        watching.terminate()
    assert lines == [
        b"x: over-budget: 1,220 of 1,000 tokens\n",
        b"hint: atoll tell x --budget tokens=+200k\n",
    ]


def test_a_client_that_gives_up_while_it_is_held_goes_on_later(make, model, wait_for):
    person = make("--max-time 3", "--budget", "tokens=1000")
    wait_for(lambda: is_in(person, "over-budget"), what="a budget that is used up")
    person.atoll("wait", "x", check=False)
    assert wait_for(lambda: verdicts(person), what="the end of the turn") == ["failed"]
    # What it had does not change because its program has ended.
    assert is_in(person, "over-budget")
    told = person.atoll("tell", "x", "--budget", "tokens=+5000").stderr
    assert "the agent of `x` goes on" in told
    wait_for(lambda: is_in(person, "finished"), what="the end of the agent")
    assert verdicts(person) == ["failed", "finished"]
    assert {request.status for request in model.model_requests} == {200, 429}


def verdicts(person):
    turns = person.answer("transcript", "x")["turns"]
    return [turn["verdict"]["state"] for turn in turns if turn["verdict"] is not None]


def test_a_turn_that_ended_during_a_quota_goes_on_when_it_is_reset(person, wait_for):
    person.wants_daemon()
    quota = Fault(status=429, retry_after_s=15)
    reply = Turn("Done.", usage=Usage(600, 10), faults=(quota,))
    with ModelServer(turns(reply), keys=[KEY]) as server:
        grant(person, server)
        spawn(person, "--max-time 2")
        found = wait_for(lambda: is_in(person, "waiting"), what="a quota that is used up")
        assert found["reason"].startswith("the quota of its model is used up until ")
        wait_for(lambda: verdicts(person) == ["failed"], what="the end of the first turn")
        found = wait_for(lambda: is_in(person, "finished"), what="the end of the agent")
        assert found["turns"] == 2
        assert verdicts(person) == ["failed", "finished"]
        assert server.violations == []
