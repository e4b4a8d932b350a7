"""Counts all bytes that a node writes to its connections and reads from them, framing and handshakes included.

A transport over sockets counts where it hands bytes to the kernel, below encryption and multiplexing, so nothing that a
peer is sent can be left out. The headers of TCP and IP, and what TCP sends again, are the kernel's and not counted.
"""

from dataclasses import dataclass


@dataclass
class WireBytes:
    """Bytes since the start, of all connections of a transport together. Only the event loop's thread counts.

    A write counts as a whole before it is made: one that breaks off with its connection is counted in full.
    """

    sent: int = 0
    received: int = 0
