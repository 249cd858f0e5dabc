import unittest

from shop.discounts import discount


class Discounts(unittest.TestCase):
    def test_small_orders_pay_in_full(self):
        self.assertEqual(discount(1000, 4), 0)

    def test_bulk_orders_pay_less(self):
        self.assertEqual(discount(3000, 12), 450)
