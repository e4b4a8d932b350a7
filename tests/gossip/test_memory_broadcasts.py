"""Broadcasts of the network in memory: each is handled once, also one that goes through a relay as bytes."""

import random

import pytest

from gossip.transport.memory import network as module
from gossip.transport.memory.network import MemoryNetwork


def test_what_comes_out_of_a_circuit_is_the_message_that_went_in() -> None:
    network = MemoryNetwork(random.Random(1))
    message = network.broadcast(b"link")
    assert network.out_of_circuits(message.number, b"link") is not message, "it has not gone in"
    network.into_circuits(message)
    assert network.out_of_circuits(message.number, b"link") is message
    assert network.out_of_circuits(message.number, b"other") is not message, "its number alone is a claim"


def test_no_more_messages_are_remembered_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OVER_CIRCUITS", 8)
    network = MemoryNetwork(random.Random(1))
    messages = [network.broadcast(b"") for _ in range(50)]
    for message in messages:
        network.into_circuits(message)
    known = [message for message in messages if network.out_of_circuits(message.number, b"") is message]
    assert known == messages[-8:]
