"""What a transport refuses, lets go or survives, by kind: a closed set, so that metrics can begin at 0 with each."""

from collections.abc import Mapping
from typing import Final

DROPS: Final[Mapping[str, str]] = {
    "too_many_connections": "callers, while every place was a neighbour's",
    "too_many_of_network": "callers of a network (a /24, a /48) whose every place was a neighbour's",
    "too_many_connections_of_peer": "connections of a peer beyond its bound",
    "refused_address": "callers from outside the networks that may call (`network.allow`)",
    "made_room": "idle strangers that were let go for a newcomer",
    "handshake": "handshakes that failed: garbage, another protocol, another key than expected, hung up",
    "handshake_timeout": "handshakes that took too long, also a byte at a time",
    "handshake_cut_short": "the oldest handshake of the most crowded network, when too many were under way",
    "refused_no_member": "callers, or peers that we dialled, that showed no membership of the private swarm",
    "refused_expired": "the same, whose membership is over",
    "refused_revoked": "the same, whose membership was revoked",
    "refused_used_up": "the same, of an invite that others had used up",
    "refused_wrong_role": "the same, with a role that may not connect so",
    "refused_wrong_swarm": "the same, with the membership of another swarm",
    "refused_forged": "the same, with a signature that is not good: of another key, or none of ours",
    "refused_malformed": "the same, with bytes that are no membership",
    "refused_oversize": "the same, with more bytes than a membership has",
    "refused_other": "the same, for another reason",
    "refused_protocol": "callers that speak another security than members do: stock libp2p, plain text, TLS",
    "refused_psk": "callers that have not the pre-shared key of the private network",
    "visited": "callers that asked what their short invite leaves out, and were told",
    "silent_peer": "connections over which nothing came for some heartbeats",
    "connection_write": "connections that broke while we sent",
    "data_open": "data connections that could not be made: a libp2p stream was taken instead",
    "data_token": "callers for a data connection that nobody expected",
    "data_record": "data connections on which something else than a stream began",
    "circuit": "circuits through a relay that somebody wanted with us, and that came to nothing",
    "circuit_unasked": "circuits from a peer with which we have no reservation",
    "control_flood": "connections of a peer that asks (pings, streams) and does not read",
    "frame_flood": "connections with a flood of frames that carry nothing",
    "unknown_frame": "connections with a frame of no known kind",
    "frame_too_large": "connections with a frame beyond its bound",
    "unread": "connections of those that had sent most, when too much waited unread over all of them",
    "window_overrun": "connections of a peer that sent more than its window",
    "too_many_streams": "streams of a connection beyond its bound",
    "stream": "streams with bytes that no protocol allows",
    "too_many_pubsub_streams": "gossipsub streams of a peer beyond its bound",
    "pubsub_malformed": "broadcasts on another topic, or too long",
    "pubsub_message": "broadcasts with a bad signature or key, or another malformed field",
    "pubsub_flood": "broadcasts beyond a peer's rate, or that of all peers",
    "publish": "broadcasts of our own that the library could not send",
    "task": "tasks of the library that raised",
    "handler": "our own handlers that raised: a bug of ours",
    "other": "what has no name of its own",
}
"""Kind -> of what. docs/operations.md has the same table."""


def counted(counts: Mapping[str, int]) -> dict[str, int]:
    """Every kind, at 0 where nothing was counted; what is not of the set is added up as `other`."""
    found = dict.fromkeys(DROPS, 0)
    for kind, times in counts.items():
        found[kind if kind in DROPS else "other"] += times
    return found
