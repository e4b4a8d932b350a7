"""Forty identities in turn, each gone in the middle of its model's download: what is held of them is bounded."""

import random

import pytest
from gossip_swarm import CONFIG, FakeRuntime, swarm, until

from gossip.blobs.blob_cache_task import CUT_DOWNLOADS, BlobCache
from gossip.core.limits import CHUNK_BYTES, MIB

IDENTITIES = 40
SIZE = 3 * CHUNK_BYTES + 5
UP = 4.0 * MIB
"""Bytes a second of each: 40 of them come and go within 40 s, while what was cut waits for 60."""


def shelf_of(node: FakeRuntime) -> BlobCache:
    return node.service._server.blob_cache


@pytest.mark.slow
async def test_forty_identities_in_turn_hold_no_more_downloads_than_a_node_has_places(autojump_clock, monkeypatch):
    monkeypatch.setattr("gossip.updates.mesh.DEPARTED_S", 0.0)
    async with swarm() as it:
        victim = await it.start(1)
        await victim.begin()
        blob_cache, counts, held = shelf_of(victim), [], []
        for number in range(IDENTITIES):
            model = random.Random(number).randbytes(SIZE)
            liar = await it.start(100 + number, peers=(victim.address,), up_bytes_per_s=UP)
            before = blob_cache.bytes_coming
            await liar.begin(snapshot=model)
            await until(lambda before=before: blob_cache.bytes_coming != before, 10.0)
            counts.append(blob_cache.coming)
            held.append(blob_cache.bytes_coming)
            liar.scope.cancel()
            await until(lambda: not victim.service.neighbours(), 120.0)
        assert victim.estimates == {}, "none was ever whole"
        assert max(counts) <= CONFIG.degree + CUT_DOWNLOADS
        assert max(held) <= (CONFIG.degree + CUT_DOWNLOADS) * SIZE
        assert max(counts) > CONFIG.degree, "they did not come quickly enough to show anything"
