"""What models cost."""

from __future__ import annotations

from datetime import date

import pytest

from atoll.model import prices
from atoll.model.prices import LongPrompt, Price, find_price


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("anthropic/claude-opus-4.5", "claude-opus-4-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("claude-opus-4-1@20250805", "claude-opus-4-1"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-5-mini", "gpt-5-mini"),
        ("gemini-2.5-pro-preview-06-05", "gemini-2.5-pro"),
        ("gemini-3-pro-preview", "gemini-3-pro"),
    ],
)
def test_releases_cost_what_their_model_costs(name, same):
    assert find_price(name, {}) == find_price(same, {}) is not None


@pytest.mark.parametrize(
    "name", ["", "gpt-5.99", "gpt-5-giant", "claude-sonnet", "xgpt-4o", "gpt-4o-mini-tts", "o33"]
)
def test_other_models_have_no_price(name):
    assert find_price(name, {}) is None


def test_the_owners_prices_win():
    low, lower = Price(1, 2), Price(0.5, 1)
    overrides = {"gpt-": low, "gpt-4o": lower}
    assert find_price("gpt-4o-mini", overrides) is lower
    assert find_price("gpt-99", overrides) is low
    assert find_price("claude-opus-4-5", overrides) == find_price("claude-opus-4-5", {})


def test_costs():
    price = Price(3, 15, 0.3, 3.75)
    assert price.cost_usd(input_tokens=1_000_000, output_tokens=100_000) == pytest.approx(4.5)
    cached = price.cost_usd(
        input_tokens=1_000_000, output_tokens=0, cache_read=500_000, cache_write=400_000
    )
    assert cached == pytest.approx(0.1 * 3 + 0.5 * 0.3 + 0.4 * 3.75)
    assert Price(2, 8).cost_usd(input_tokens=1000, output_tokens=0, cache_read=1000) == (
        pytest.approx(0.002)
    ), "without a price of its own cached input costs what other input does"


def test_long_prompts_cost_more():
    price = Price(2, 10, 0.2, long_prompt=LongPrompt(200))
    short = price.cost_usd(input_tokens=200, output_tokens=10, cache_read=100)
    longer = price.cost_usd(input_tokens=201, output_tokens=10, cache_read=101)
    assert short * 1_000_000 == pytest.approx(100 * 2 + 100 * 0.2 + 10 * 10)
    assert longer * 1_000_000 == pytest.approx(2 * (100 * 2 + 101 * 0.2) + 1.5 * 100)


def test_the_table_has_a_date_and_is_plausible():
    assert date.fromisoformat(prices.AS_OF)
    for name, price in prices._PRICES.items():
        assert find_price(name, {}) is price, name
        assert price.input <= price.output, name
        assert (price.cache_read or 0) <= price.input <= (price.cache_write or price.input), name
