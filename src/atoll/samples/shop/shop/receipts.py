"""Receipts: fixed columns, read by the accountants' programs."""

from shop.money import render
from shop.pricing import price


def receipt(order):
    """Returns the receipt of an order as text."""
    rows = [(f"{line.quantity} x {line.sku}", line.cents) for line in order.lines()]
    total = price(order)
    rows += [("discount", -total.discount)] if total.discount else []
    rows += [("tax", total.tax), ("total", total.total)]
    return "\n".join(f"{label:<16}{signed(cents):>14}" for label, cents in rows)


def signed(cents):
    return f"-{render(-cents)}" if cents < 0 else render(cents)
