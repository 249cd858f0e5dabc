import unittest

from shop.money import percent_of, render


class Money(unittest.TestCase):
    def test_whole_share(self):
        self.assertEqual(percent_of(3000, 15), 450)

    def test_less_than_half_a_cent_is_dropped(self):
        self.assertEqual(percent_of(1001, 10), 100)

    def test_rendered_with_two_digits(self):
        self.assertEqual(render(1205), "12.05 EUR")
