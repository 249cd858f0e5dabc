#!/usr/bin/env python3
"""An attempt at the shop's task that fixes both parts, adds tests and runs them.

It stands in for a coding agent: it edits the project in the current directory.
"""

import subprocess
import sys
from pathlib import Path


def replace(path, old, new):
    text = Path(path).read_text(encoding="utf-8")
    if text.count(old) != 1:
        sys.exit(f"fast: expected one place in {path} with {old!r}")
    Path(path).write_text(text.replace(old, new), encoding="utf-8")
    print(f"fast: edited {path}", flush=True)


replace("shop/discounts.py", "quantity > BULK_QUANTITY", "quantity >= BULK_QUANTITY")
replace("shop/money.py", "int(cents * percent / 100)", "(cents * percent + 50) // 100")
replace(
    "tests/testdiscounts.py",
    "    def test_bulk_orders_pay_less(self):\n",
    "    def test_bulk_starts_at_ten_pieces(self):\n"
    "        self.assertEqual([discount(250 * n, n) for n in (9, 10)], [0, 375])\n"
    "\n"
    "    def test_bulk_orders_pay_less(self):\n",
)
replace(
    "tests/testmoney.py",
    "    def test_rendered_with_two_digits(self):\n",
    "    def test_half_a_cent_goes_up_and_less_goes_down(self):\n"
    "        self.assertEqual([percent_of(cents, 1) for cents in (49, 50, 149, 150)], [0, 1, 1, 2])\n"
    "\n"
    "    def test_rendered_with_two_digits(self):\n",
)
print("fast: running the tests", flush=True)
tests = [sys.executable, "-m", "unittest", "discover", "-q", "-s", "tests"]
sys.exit(subprocess.run(tests, check=False).returncode)
