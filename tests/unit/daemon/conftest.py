"""Stories about a publisher, each in a loop of its own."""

from __future__ import annotations

import asyncio
import os

import pytest

from atoll.daemon.ports.publisher import Publisher
from worlds import World


@pytest.fixture
def descriptors():
    """Every test gives back the descriptors that it took."""

    def count():
        return len(os.listdir("/proc/self/fd"))

    return count


@pytest.fixture
def play(tmp_path):
    """`play(story)`: runs `story(world, publisher)` in a loop of its own, and closes both."""

    def run(story):
        async def whole():
            (tmp_path / "locks").mkdir(exist_ok=True)
            world = World(tmp_path)
            publisher = Publisher(world.session, clock=world.clock)
            try:
                async with asyncio.timeout(60):
                    await story(world, publisher)
            finally:
                await publisher.close()
                await world.close()

        asyncio.run(whole())

    return run
