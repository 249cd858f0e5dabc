import unittest

from shop.money import percent_of, render


class Money(unittest.TestCase):
    def test_whole_share(self):
        self.assertEqual(percent_of(3000, 15), 450)

    def test_share_is_rounded_half_up(self):
        self.assertEqual(percent_of(1999, 19), 380)

    def test_rendered_with_two_digits(self):
        self.assertEqual(render(1205), "12.05 EUR")
