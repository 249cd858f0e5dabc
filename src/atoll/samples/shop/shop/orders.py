"""An order is a list of lines, one per product."""

from collections import namedtuple

from shop.catalog import price_of

Line = namedtuple("Line", "sku quantity cents")


class Order:
    def __init__(self):
        self.quantities = {}

    def add(self, sku, quantity=1):
        """Adds pieces of a product; the same product twice is one line."""
        if quantity < 1:
            raise ValueError(f"quantity must be at least 1, not {quantity}")
        price_of(sku)
        self.quantities[sku] = self.quantities.get(sku, 0) + quantity

    def lines(self):
        return [
            Line(sku, quantity, price_of(sku) * quantity)
            for sku, quantity in self.quantities.items()
        ]
