import unittest

from shop.orders import Order
from shop.receipts import receipt


class Receipts(unittest.TestCase):
    def test_columns(self):
        order = Order()
        order.add("notebook", 12)
        self.assertEqual(
            receipt(order).splitlines(),
            [
                "12 x notebook        30.00 EUR",
                "discount             -4.50 EUR",
                "tax                   5.10 EUR",
                "total                30.60 EUR",
            ],
        )

    def test_no_discount_no_row(self):
        order = Order()
        order.add("backpack")
        self.assertNotIn("discount", receipt(order))
