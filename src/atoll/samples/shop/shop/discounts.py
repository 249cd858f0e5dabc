"""The bulk offer: 15 % off a line from ten pieces."""

from shop.money import percent_of

BULK_QUANTITY = 10
BULK_PERCENT = 15


def discount(cents, quantity):
    """Returns what to take off a line of this value and quantity."""
    if quantity > BULK_QUANTITY:
        return percent_of(cents, BULK_PERCENT)
    return 0
