"""When the router is asked for a port, and when that is of no use."""

import pytest

from gossip.reachability.port_mapping_task import PortMapper
from node.config.sections import NetworkConfig
from node.roles.port_forwarding import mapper_for

INSIDE = "/ip4/192.168.1.5/tcp/4001/p2p/x"
NAMED = "/dns4/home.example.org/tcp/4001"
LOOPBACK = "/ip4/127.0.0.1/tcp/4001/p2p/x"


def made(addresses, sources, **network):
    return mapper_for(
        NetworkConfig(**network), addresses, mapped=lambda addresses: None, tell=lambda words: None, sources=sources
    )


def test_a_node_in_a_private_network_asks():
    assert isinstance(made([LOOPBACK, INSIDE], ["192.168.1.5", "fd00::5"]), PortMapper)


@pytest.mark.parametrize(
    ("addresses", "sources", "network"),
    [
        ([INSIDE], ["192.168.1.5"], {"upnp": False}),
        ([INSIDE], ["192.168.1.5"], {"announce": ("/ip4/203.0.113.7/tcp/4001",)}),
        ([NAMED], ["192.168.1.5"], {"announce": (NAMED,)}),
        ([NAMED], ["192.168.1.5"], {"announce": (NAMED,), "upnp": False}),
        ([LOOPBACK], ["192.168.1.5"], {}),
        (["/ip4/8.8.8.8/tcp/4001/p2p/x"], ["8.8.8.8"], {}),
        ([INSIDE], [], {}),
        (["/ip6/fd00::5/tcp/4001/p2p/x"], ["fd00::5"], {}),
        ([], ["192.168.1.5"], {}),
    ],
)
def test_where_it_is_of_no_use_nobody_is_asked(addresses, sources, network):
    assert made(addresses, sources, **network) is None
