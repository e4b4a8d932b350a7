"""Tables of the runtime that peers fill by their names alone."""

import torch
from typed_events import said

from node.events import peers_seen
from node.events.peers_seen import MAX_PEERS
from p2ptrain import compress
from p2ptrain.compress.base import PayloadError
from p2ptrain.sync import decoding
from p2ptrain.sync.decoding import MAX_CODECS, Decoder


def test_codecs_that_peers_name_are_kept_up_to_a_number(monkeypatch):
    monkeypatch.setattr(decoding, "MAX_CODECS", 4)
    decoder, x_d = Decoder(2048), torch.zeros(2048)
    stages = ("q2", "int8", "sign1", "topk", "none", "fp16", "bf16", "int4")
    for name in stages:
        for codec in (name, f"lossless+{name}", f"rotated+{name}"):
            try:
                payload = compress.get(codec).encode(x_d)
            except ValueError:
                continue
            decoder.advance(x_d, codec, payload)
            assert len(decoder._codecs) <= 4
    for number in range(100):
        try:
            decoder.advance(x_d, f"no such codec {number}", b"")
        except PayloadError as error:
            assert error.reason == "unknown_codec"  # noqa: PT017  # the next name is tried as well
    assert len(decoder._codecs) <= 4 < MAX_CODECS


def test_peers_that_come_in_turn_are_remembered_up_to_a_number_and_those_here_stay():
    peers: peers_seen.Peers = {}
    peers_seen.observe(peers, said("neighbour_up", peer="first"))
    for number in range(3 * MAX_PEERS):
        for event in ("neighbour_up", "rejected", "neighbour_lost"):
            peers_seen.observe(peers, said(event, peer=str(number), reason="malformed"))
    assert len(peers) == MAX_PEERS
    assert peers["first"]["here"]
