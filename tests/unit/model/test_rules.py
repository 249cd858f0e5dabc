"""Validators of single values."""

from __future__ import annotations

import pytest

from atoll.model.rules import require_webhook


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/hook?x=1",
        "https://example.org:8443/@me",
        "http://127.0.0.1:8080/x",
        "http://localhost/x",
    ],
)
def test_webhook(url: str) -> None:
    assert require_webhook(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "http://127.0.0.1:1@evil.example/x",
        "http://localhost:x@evil.example/x",
        "http://127.0.0.1.evil.example/x",
        "http://127.0.0.1:1\\@evil.example/x",
        "http://localhost:99999999/x",
        "https://ada:secret@example.org/x",
        "https:///x",
        "https://[::1/x",
        "ftp://127.0.0.1/x",
        "https://example.org/\n",
        "",
    ],
)
def test_url_that_is_no_webhook(url: str) -> None:
    with pytest.raises(ValueError, match="must be an `https://` URL"):
        require_webhook(url)
