import unittest

from serve import answer


class Serve(unittest.TestCase):
    def test_health(self):
        self.assertEqual(answer("/health"), (200, {"status": "ok"}))

    def test_price(self):
        status, body = answer("/price?sku=notebook&quantity=12")
        self.assertEqual((status, body["total"]), (200, 3060))

    def test_bad_requests(self):
        for target in ("/price", "/price?sku=unicorn", "/price?sku=pencil&quantity=many"):
            self.assertEqual(answer(target)[0], 400, target)

    def test_elsewhere(self):
        self.assertEqual(answer("/")[0], 404)
