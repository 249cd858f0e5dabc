#!/usr/bin/env python3
"""An attempt at the shop's task that fixes the first part, reports success, and runs nothing.

It stands in for a coding agent: it edits the project in the current directory.
"""

import sys
from pathlib import Path

path = Path("shop/discounts.py")
text = path.read_text(encoding="utf-8")
if "quantity > BULK_QUANTITY" not in text:
    sys.exit(f"hasty: nothing to change in {path}")
path.write_text(
    text.replace("quantity > BULK_QUANTITY", "quantity >= BULK_QUANTITY"), encoding="utf-8"
)
print(f"hasty: edited {path}")
print("hasty: done, all tests pass")  # the claim is not true: that is the point of checks
