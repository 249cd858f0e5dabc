"""Budgets of agents and projects: what counts, what is too much, and how they are written."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.agent import budgets
from atoll.engine.agent.budgets import Spent, find_excess, parse_budget
from atoll.model import units
from atoll.model.agent import AgentBudget, AgentTask, AgentTurn, ModelTraffic, ModelUsage
from atoll.model.errors import SpecError
from atoll.model.prices import Price
from atoll.model.state import Outcome, Reason

KNOWN, UNKNOWN = "gpt-4o", "made-up-1"


class Agents:
    def __init__(self, world, config):
        self.world = world
        self.session = world.session
        self.config = config

    def spawn(self, name="x", **budget):
        capsule = self.world.new(name)
        task = AgentTask("do it", budget=AgentBudget(**budget))
        self.session.store.save_agent(capsule.id, "claude", task)
        return capsule.id

    def use(self, capsule_id, model=KNOWN, cost=0.01, **counts):
        row = ModelUsage(model, requests=1, cost_usd=cost)._replace(**counts)
        self.session.store.add_usage(capsule_id, row)

    def turn(self, capsule_id, run):
        number = 1 + len(self.session.store.turns(capsule_id))
        self.session.store.add_turn(AgentTurn(capsule_id, number, run, "do it", 0.0))

    def run(self, capsule_id, number, took_s):
        """A run that has ended."""
        store = self.session.store
        capsule = store.capsule(capsule_id)
        store.add_found_run(capsule, number, token=f"{number}", argv=["x"], started_at=1000.0)
        [run] = [run for run in store.runs(capsule) if run.number == number]
        store.set_ended(run, Outcome(Reason.EXITED, 0), ended_at=1000.0 + took_s)

    def configure(self, text):
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)

    def excess(self, capsule_id, **given):
        return find_excess(self.session, capsule_id, **given)


@pytest.fixture
def agents(world, tmp_path, monkeypatch):
    world.session.owner = {**world.session.owner, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return Agents(world, tmp_path / "config/atoll/config.toml")


def test_without_a_budget_nothing_is_too_much(agents):
    capsule = agents.spawn()
    agents.use(capsule, input_tokens=10**9, cost=None, uncounted=1)
    assert agents.excess(capsule) is None
    assert agents.excess(10**6) is None, "a capsule that is gone"


def test_tokens(agents):
    capsule = agents.spawn(tokens=10_000)
    agents.use(capsule, input_tokens=9_000, output_tokens=999, cached_tokens=9_000)
    assert agents.excess(capsule) is None
    agents.use(capsule, "other", output_tokens=2_001)
    assert agents.excess(capsule) == "12,000 of 10,000 tokens"


def test_cost(agents):
    capsule = agents.spawn(cost_usd=5.0)
    agents.use(capsule, cost=4.99)
    assert agents.excess(capsule) is None
    agents.use(capsule, cost=0.03)
    assert agents.excess(capsule) == "$5.02 of $5.00"


def test_a_budget_of_nothing(agents):
    assert agents.excess(agents.spawn(cost_usd=0.0)) == "$0.00 of $0.00"


def test_an_unknown_price_uses_a_budget_of_money_up(agents):
    capsule = agents.spawn(cost_usd=5.0)
    agents.use(capsule, UNKNOWN, cost=None, input_tokens=1_000_000)
    assert agents.excess(capsule) == (
        f'the price of `{UNKNOWN}` is unknown: set [prices."{UNKNOWN}"] in your settings'
    )
    agents.configure('[prices."made-up"]\ninput = 1\noutput = 2\n')
    assert agents.excess(capsule) is None, "the price that is known now counts"
    agents.configure('[prices."made-up"]\ninput = 6\noutput = 2\n')
    assert agents.excess(capsule) == "$6.00 of $5.00"


def test_uncounted_answers_use_budgets_of_tokens_and_money_up(agents):
    for name, budget in (("a", {"tokens": 10_000}), ("b", {"cost_usd": 5.0})):
        capsule = agents.spawn(name, **budget)
        agents.use(capsule, cost=None, uncounted=1)
        assert agents.excess(capsule) == f"`{KNOWN}` did not say how many tokens were used"
    capsule = agents.spawn("c", turns=5, time_s=60.0)
    agents.use(capsule, cost=None, uncounted=1)
    assert agents.excess(capsule) is None


def test_turns_are_answers_of_the_model(agents):
    capsule = agents.spawn(turns=2)
    agents.turn(capsule, 1)
    agents.use(capsule)
    assert agents.excess(capsule) is None
    agents.use(capsule, "other")
    assert agents.excess(capsule) == "2 of 2 turns of the model"


def test_messages_count_where_no_model_was_seen(agents):
    capsule = agents.spawn(turns=1)
    assert agents.excess(capsule, messages=1) is None
    agents.turn(capsule, 1)
    assert agents.excess(capsule) is None, "the first one is still being answered"
    assert agents.excess(capsule, messages=1) == "1 of 1 turn"


def test_time(agents):
    capsule = agents.spawn(time_s=3600.0)
    agents.turn(capsule, 7)
    agents.run(capsule, 7, took_s=3599.0)
    assert agents.excess(capsule) is None
    agents.run(capsule, 8, took_s=99.0)
    assert agents.excess(capsule) is None, "a run of the owner's own"
    agents.turn(capsule, 8)
    assert agents.excess(capsule) == "1h1m38s of 1h"
    agents.session.store.set_traffic(capsule, ModelTraffic(held_s=100.0))
    assert agents.excess(capsule) is None, "the time in which the model was held"


def test_time_that_is_left(agents):
    capsule = agents.spawn(time_s=3600.0)
    agents.turn(capsule, 1)
    agents.run(capsule, 1, took_s=600.0)
    assert budgets.time_left_s(agents.session, capsule) == 3000.0
    agents.configure('[budget]\ntime = "30m"\n')
    assert budgets.time_left_s(agents.session, capsule) == 1200.0
    assert budgets.time_left_s(agents.session, agents.spawn("other")) == 1200.0


def test_the_project_has_a_budget_too(agents):
    agents.configure('[budget]\ntokens = "1k"\n')
    one, two = agents.spawn("a", tokens=10**6), agents.spawn("b")
    agents.use(one, input_tokens=600)
    assert agents.excess(two) is None
    agents.use(two, input_tokens=600)
    assert agents.excess(one) == agents.excess(two) == "1,200 of 1,000 tokens in this project"
    agents.configure("[budget]\ncost = 0.015\n")
    assert agents.excess(one) == "$0.02 of $0.015 in this project"


def test_settings_that_cannot_be_read_hold_everything(agents):
    capsule = agents.spawn()
    agents.configure("[budget\n")
    assert (agents.excess(capsule) or "").startswith("your settings cannot be read: ")
    agents.config.unlink()
    assert agents.excess(capsule) is None
    os.mkfifo(agents.config)
    assert "not a regular file" in (agents.excess(capsule) or "")


def test_settings_are_read_again_only_when_they_changed(agents):
    agents.configure("[budget]\nturns = 5\n")
    first = budgets.owner_limits(agents.session)
    assert budgets.owner_limits(agents.session) is first
    agents.configure("[budget]\nturns = 66\n")
    assert budgets.owner_limits(agents.session).project.turns == 66
    own, project = budgets.limits_of(agents.session, agents.spawn(cost_usd=1.0))
    assert (own, project) == (AgentBudget(cost_usd=1.0), AgentBudget(turns=66))


def test_the_price_of_then_counts():
    usage = ModelUsage(KNOWN, 1, 1_000_000, 0, 0, 0.5)
    assert budgets.cost_usd(usage, {KNOWN: Price(9, 9)}) == 0.5
    assert budgets.cost_usd(usage._replace(cost_usd=None), {}) == pytest.approx(2.5)
    assert budgets.cost_usd(usage._replace(cost_usd=None, uncounted=1), {}) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "$0.00"), (0.0018, "$0.0018"), (0.5, "$0.50"), (5.018, "$5.02"), (12345, "$12,345.00")],
)
def test_shown_money(number, text):
    assert units.render_usd(number) == text


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("5", AgentBudget(cost_usd=5.0)),
        ("$0.50", AgentBudget(cost_usd=0.5)),
        ("5usd", AgentBudget(cost_usd=5.0)),
        ("5 USD", AgentBudget(cost_usd=5.0)),
        ("+5", AgentBudget(cost_usd=5.0)),
        ("cost=5", AgentBudget(cost_usd=5.0)),
        ("cost=$5", AgentBudget(cost_usd=5.0)),
        ("cost=0", AgentBudget(cost_usd=0.0)),
        ("tokens=200k", AgentBudget(tokens=200_000)),
        ("turns=20", AgentBudget(turns=20)),
        ("time=30m", AgentBudget(time_s=1800.0)),
        (" time=90 ", AgentBudget(time_s=90.0)),
    ],
)
def test_words_of_a_new_budget(text, budget):
    assert parse_budget(text, AgentBudget()) == budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("+5", AgentBudget(10.0, 20, 3000, 9.0)),
        ("+$5", AgentBudget(10.0, 20, 3000, 9.0)),
        ("5", AgentBudget(10.0, 20, 3000, 5.0)),
        ("cost=+0.25", AgentBudget(10.0, 20, 3000, 4.25)),
        ("+tokens=1k", AgentBudget(10.0, 20, 4000, 4.0)),
        ("tokens=+1k", AgentBudget(10.0, 20, 4000, 4.0)),
        ("turns=+5", AgentBudget(10.0, 25, 3000, 4.0)),
        ("time=+1m", AgentBudget(70.0, 20, 3000, 4.0)),
        ("time=none", AgentBudget(None, 20, 3000, 4.0)),
        ("cost=none", AgentBudget(10.0, 20, 3000, None)),
    ],
)
def test_words_that_change_a_budget(text, budget):
    assert parse_budget(text, AgentBudget(10.0, 20, 3000, 4.0)) == budget


def test_what_is_added_to_no_limit_is_added_to_what_was_used():
    spent = Spent(requests=7, tokens=900, cost_usd=12.5, messages=2, time_s=30.0)
    assert parse_budget("+5", AgentBudget(), spent).cost_usd == 17.5
    assert parse_budget("turns=+3", AgentBudget(), spent).turns == 10
    assert parse_budget("tokens=+100", AgentBudget(), spent).tokens == 1000
    assert parse_budget("time=+1m", AgentBudget(), spent).time_s == 90.0
    assert parse_budget("+5", AgentBudget(cost_usd=1.0), spent).cost_usd == 6.0


@pytest.mark.parametrize(
    "text",
    [
        "", "+", "-5", "cost=-5", "cost=", "=5", "money=5", "5eur", "200k", "30m", "tokens=5usd",
        "turns=1.5", "turns=0", "tokens=0", "time=0", "cost=1e9", "cost=nan", "cost=inf", "++5",
        "cost=99999999999", "cost==5", "tokens=200k,turns=3", "time=2y", "$", "5 5",
    ],
)  # fmt: skip
def test_what_is_no_budget(text):
    with pytest.raises(SpecError) as caught:
        parse_budget(text, AgentBudget())
    assert "is not a budget" in caught.value.message
    assert "--budget" in (caught.value.hint or "")


@given(st.text(max_size=30))
def test_any_words_are_read_or_refused(text):
    try:
        found = parse_budget(text, AgentBudget(1.0, 1, 1, 1.0))
    except SpecError:
        return
    assert all(limit is None or limit >= 0 for limit in found)
