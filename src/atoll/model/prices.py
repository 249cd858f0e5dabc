"""What models cost, in US dollars per million tokens, so that budgets can be in money.

These are the vendors' published list prices as far as they were known on `AS_OF`. They may be wrong
or outdated, and a subscription or a discount is not taken into account: the owner's settings
override them (`[prices."MODEL"]`). The price of a model that is not listed is unknown, never
guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

AS_OF = "2026-11-18"
_MILLION = 1_000_000


class LongPrompt(NamedTuple):
    """How a long prompt changes the prices of its whole request."""

    above_tokens: int
    input_factor: float = 2.0
    output_factor: float = 1.5


class Price(NamedTuple):
    """Of a million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """Of input that the vendor has in its cache; None: the price of other input."""
    cache_write: float | None = None
    """Of input that is written to it; None: likewise."""
    long_prompt: LongPrompt | None = None

    def cost_usd(
        self, *, input_tokens: int, output_tokens: int, cache_read: int = 0, cache_write: int = 0
    ) -> float:
        """Of one request; `input_tokens` includes the cached ones."""
        factors = self.long_prompt or LongPrompt(0, 1.0, 1.0)
        is_long = input_tokens > factors.above_tokens
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        plain = max(0, input_tokens - cache_read - cache_write)
        given = plain * self.input + cache_read * read + cache_write * write
        made = output_tokens * self.output
        if is_long:
            given, made = given * factors.input_factor, made * factors.output_factor
        return (given + made) / _MILLION


def find_price(model: str, overrides: Mapping[str, Price]) -> Price | None:
    """The price of a model: the longest of the overrides that it begins with, or the known one.

    None when it is unknown.
    """
    fitting = [prefix for prefix in overrides if model.startswith(prefix)]
    if fitting:
        return overrides[max(fitting, key=len)]
    match = _NAME.fullmatch(_plain(model))
    return None if match is None else _PRICES.get(match[1])


def _plain(model: str) -> str:
    """The name without the prefixes of clouds and gateways."""
    name = model.rpartition("/")[2]
    name = re.sub(r"^(?:[a-z]{2,6}\.)?anthropic\.", "", name)
    return name.replace(".", "-") if name.startswith("claude") else name


def _anthropic(
    input_usd: float, output_usd: float, read_usd: float, long_prompt: LongPrompt | None = None
) -> Price:
    """Cache writes cost a quarter more than other input."""
    return Price(input_usd, output_usd, read_usd, input_usd * 1.25, long_prompt)


_OPENAI_LONG, _GOOGLE_LONG = LongPrompt(272_000), LongPrompt(200_000)
_OPUS_4, _OPUS_4_5 = _anthropic(15, 75, 1.5), _anthropic(5, 25, 0.5)
_SONNET = _anthropic(3, 15, 0.3)
_GPT_5, _GPT_5_2 = Price(1.25, 10, 0.125), Price(1.75, 14, 0.175)
_PRO_3 = Price(2, 12, 0.2, None, _GOOGLE_LONG)
_FLASH_3_6 = Price(1.5, 7.5, 0.15)
"""Half of it until the end of 2026."""

_PRICES: Mapping[str, Price] = {
    "claude-3-haiku": _anthropic(0.25, 1.25, 0.03),
    "claude-3-5-haiku": _anthropic(0.8, 4, 0.08),
    "claude-haiku-4-5": _anthropic(1, 5, 0.1),
    "claude-haiku-5-5": _anthropic(0.1, 0.5, 0.01, LongPrompt(100_000, 5.0, 5.0)),
    "claude-3-sonnet": _SONNET,
    "claude-3-5-sonnet": _SONNET,
    "claude-3-7-sonnet": _SONNET,
    "claude-sonnet-4": _SONNET,
    "claude-sonnet-4-0": _SONNET,
    "claude-sonnet-4-5": _SONNET,
    "claude-sonnet-4-6": _SONNET,
    "claude-sonnet-5": _anthropic(2, 10, 0.2),
    "claude-sonnet-5-5": _anthropic(2, 10, 0.1),
    "claude-3-opus": _OPUS_4,
    "claude-opus-4": _OPUS_4,
    "claude-opus-4-0": _OPUS_4,
    "claude-opus-4-1": _OPUS_4,
    "claude-opus-4-5": _OPUS_4_5,
    "claude-opus-4-6": _OPUS_4_5,
    "claude-opus-4-7": _OPUS_4_5,
    "claude-opus-4-8": _OPUS_4_5,
    "claude-opus-5": _OPUS_4_5,
    "claude-opus-5-5": _anthropic(4, 20, 0.2),
    "claude-fable-5": _anthropic(10, 50, 1),
    "claude-fable-5-1": _anthropic(10, 50, 0.25),
    "claude-fable-5-2": _anthropic(8, 40, 0.2),
    "claude-mythos-5": _anthropic(10, 50, 1),
    "claude-mythos-5-1": _anthropic(10, 50, 0.25),
    "claude-mythos-5-2": _anthropic(8, 40, 0.2),
    "gpt-4.1": Price(2, 8, 0.5),
    "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
    "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
    "gpt-4o": Price(2.5, 10, 1.25),
    "gpt-4o-mini": Price(0.15, 0.6, 0.075),
    "o3": Price(2, 8, 0.5),
    "o3-mini": Price(1.1, 4.4, 0.55),
    "o3-pro": Price(20, 80),
    "o4-mini": Price(1.1, 4.4, 0.275),
    "gpt-5": _GPT_5,
    "gpt-5-chat": _GPT_5,
    "gpt-5-codex": _GPT_5,
    "gpt-5-mini": Price(0.25, 2, 0.025),
    "gpt-5-nano": Price(0.05, 0.4, 0.005),
    "gpt-5-pro": Price(15, 120),
    "gpt-5.1": _GPT_5,
    "gpt-5.1-chat": _GPT_5,
    "gpt-5.1-codex": _GPT_5,
    "gpt-5.1-codex-max": _GPT_5,
    "gpt-5.1-codex-mini": Price(0.25, 2, 0.025),
    "gpt-5.2": _GPT_5_2,
    "gpt-5.2-chat": _GPT_5_2,
    "gpt-5.2-codex": _GPT_5_2,
    "gpt-5.2-pro": Price(21, 168),
    "gpt-5.3-chat": _GPT_5_2,
    "gpt-5.3-codex": _GPT_5_2,
    "gpt-5.3-codex-spark": _GPT_5_2,
    "gpt-5.4": Price(2.5, 15, 0.25, None, _OPENAI_LONG),
    "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
    "gpt-5.4-nano": Price(0.2, 1.25, 0.02),
    "gpt-5.4-pro": Price(30, 180, None, None, _OPENAI_LONG),
    "gpt-5.5": Price(5, 30, 0.5, None, _OPENAI_LONG),
    "gpt-5.5-pro": Price(30, 180, None, None, _OPENAI_LONG),
    "gpt-5.6": Price(4, 20, 0.4, 5, _OPENAI_LONG),
    "gpt-5.6-sol": Price(4, 20, 0.4, 5, _OPENAI_LONG),
    "gpt-5.6-terra": Price(2, 12, 0.2, 2.5, _OPENAI_LONG),
    "gpt-5.6-luna": Price(0.2, 1.2, 0.02, 0.25, _OPENAI_LONG),
    "gpt-6-astra": Price(10, 50, 1, 12.5, _OPENAI_LONG),
    "gpt-6-sol": Price(2, 10, 0.2, 2.5, _OPENAI_LONG),
    "gpt-6-luna": Price(0.1, 0.5, 0.01, 0.125, _OPENAI_LONG),
    "gpt-6.1-sol": Price(2, 10, 0.1, 2.5, _OPENAI_LONG),
    "gemini-2.0-flash": Price(0.1, 0.4, 0.025),
    "gemini-2.0-flash-lite": Price(0.075, 0.3),
    "gemini-2.5-pro": Price(1.25, 10, 0.125, None, _GOOGLE_LONG),
    "gemini-2.5-flash": Price(0.3, 2.5, 0.03),
    "gemini-2.5-flash-lite": Price(0.1, 0.4, 0.01),
    "gemini-3-pro": _PRO_3,
    "gemini-3-flash": Price(0.5, 3, 0.05),
    "gemini-3.1-pro": _PRO_3,
    "gemini-3.1-flash-lite": Price(0.25, 1.5, 0.025),
    "gemini-3.5-flash": Price(1.5, 9, 0.15),
    "gemini-3.5-flash-lite": Price(0.3, 2.5, 0.03),
    "gemini-3.6-flash": _FLASH_3_6,
    "gemini-3.7-flash": _FLASH_3_6,
    "gemini-3.8-flash": _FLASH_3_6,
}

_VERSION = (
    r"-(?:20\d{6}|20\d\d-\d\d-\d\d|\d\d-20\d\d|\d\d-\d\d|00\d|latest|preview(?:-[a-z0-9-]+)?)"
)
_NAME = re.compile(
    "("
    + "|".join(re.escape(name) for name in sorted(_PRICES, key=len, reverse=True))
    + rf")(?:{_VERSION}){{0,2}}(?:-v\d{{1,2}})?(?::\d{{1,2}})?(?:@[0-9]{{8}}|\[1m\])?"
)
"""A known name, with the date or the state of a release, which does not change the price."""
