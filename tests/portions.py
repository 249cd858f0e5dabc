"""A byte stream in pieces, as a network brings it."""

from __future__ import annotations

import itertools


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data, cut at any places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]
