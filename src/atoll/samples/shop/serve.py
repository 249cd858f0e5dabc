"""Answers price questions over HTTP on $PORT (8000 when it is not set)."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from shop.catalog import UnknownProduct
from shop.orders import Order
from shop.pricing import price


def answer(target):
    """Returns the status and the body for one request target."""
    url = urlsplit(target)
    if url.path == "/health":
        return 200, {"status": "ok"}
    if url.path != "/price":
        return 404, {"error": "try /price?sku=notebook&quantity=12"}
    query = parse_qs(url.query)
    order = Order()
    try:
        order.add(query["sku"][0], int(query.get("quantity", ["1"])[0]))
    except (KeyError, ValueError, UnknownProduct) as error:
        return 400, {"error": str(error)}
    return 200, price(order)._asdict()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = answer(self.path)
        content = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    address = ("127.0.0.1", int(os.environ.get("PORT", "8000")))
    with ThreadingHTTPServer(address, Handler) as server:
        print(f"listening on http://{address[0]}:{server.server_port}", flush=True)
        server.serve_forever()
