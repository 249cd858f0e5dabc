import unittest

from shop.catalog import UnknownProduct
from shop.orders import Order
from shop.pricing import price


class Orders(unittest.TestCase):
    def test_same_product_twice_is_one_line(self):
        order = Order()
        order.add("pencil")
        order.add("pencil", 2)
        self.assertEqual([(line.sku, line.quantity) for line in order.lines()], [("pencil", 3)])

    def test_unknown_product_is_refused(self):
        with self.assertRaises(UnknownProduct):
            Order().add("unicorn")

    def test_no_pieces_are_refused(self):
        with self.assertRaises(ValueError):
            Order().add("pencil", 0)

    def test_price_of_a_bulk_order(self):
        order = Order()
        order.add("notebook", 12)
        self.assertEqual(price(order), (3000, 450, 510, 3060))

    def test_discount_counts_each_line_alone(self):
        order = Order()
        order.add("notebook", 6)
        order.add("pencil", 5)
        self.assertEqual(price(order).discount, 0)
