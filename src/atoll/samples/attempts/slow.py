#!/usr/bin/env python3
"""An attempt at the shop's task that fixes both parts, but counts out every cent.

It stands in for a coding agent: it edits the project in the current directory.
"""

import sys
from pathlib import Path

MONEY = '''\
"""Money is a whole number of cents."""


def percent_of(cents, percent):
    """Returns that share of an amount, rounded half up to the cent."""
    left, share = cents * percent, 0
    while at_least_half_a_cent(left):
        left, share = left - 100, share + 1
    return share


def at_least_half_a_cent(hundredths):
    return hundredths >= 50


def render(cents):
    """Returns an amount as the accountants expect it: `12.50 EUR`."""
    return f"{cents // 100}.{cents % 100:02d} EUR"
'''

money, discounts = Path("shop/money.py"), Path("shop/discounts.py")
text = discounts.read_text(encoding="utf-8")
if not money.is_file() or text.count("quantity > BULK_QUANTITY") != 1:
    sys.exit("slow: this is not the project that the task is about")
money.write_text(MONEY, encoding="utf-8")
print(f"slow: rewrote {money}", flush=True)
discounts.write_text(
    text.replace("quantity > BULK_QUANTITY", "quantity >= BULK_QUANTITY"), encoding="utf-8"
)
print(f"slow: edited {discounts}", flush=True)
tests = Path("tests/testmoney.py")
tests.write_text(
    tests.read_text(encoding="utf-8")
    + "\n    def test_share_is_rounded_half_up(self):\n"
    + "        self.assertEqual(percent_of(1999, 19), 380)\n",
    encoding="utf-8",
)
print(f"slow: edited {tests}")
