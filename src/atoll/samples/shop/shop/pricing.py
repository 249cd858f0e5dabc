"""From an order to what the customer pays."""

from collections import namedtuple

from shop.discounts import discount
from shop.money import percent_of

TAX_PERCENT = 20

Price = namedtuple("Price", "subtotal discount tax total")


def price(order):
    """Returns the price of an order; tax is on what is left after the discount."""
    lines = order.lines()
    subtotal = sum(line.cents for line in lines)
    off = sum(discount(line.cents, line.quantity) for line in lines)
    tax = percent_of(subtotal - off, TAX_PERCENT)
    return Price(subtotal, off, tax, subtotal - off + tax)
