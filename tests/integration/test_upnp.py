"""A router on loopback that speaks SSDP and SOAP: a port is mapped, renewed, taken back, and never waited for."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from gateway import Gateway, gateway
from libp2p_harness import until
from sizes import thorough_but

from gossip.reachability import port_mapping_task, upnp
from gossip.reachability.port_mapping_task import LEASE_S, PortMapper
from gossip.reachability.upnp import OTHER_PORTS, RouterError, UpnpRouter
from node.config.sections import NetworkConfig, NodeConfig
from node.doctor.finding import Subject
from node.doctor.router import TRY_PORT, router

LOOPBACK = "127.0.0.1"
SUBJECT = Subject(network=NetworkConfig(), node=NodeConfig(), learning=None, run_dir=Path("nowhere"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "DISCOVER_MS", 300)  # a router on loopback answers in one


class Kept:
    """A mapper, and what it told."""

    def __init__(self, *ports: int) -> None:
        self.addresses: list[tuple[str, ...]] = []
        self.words: list[str] = []
        self.mapper = PortMapper(UpnpRouter(LOOPBACK), ports, mapped=self.addresses.append, tell=self.words.append)


def test_a_port_is_mapped_and_taken_back() -> None:
    with gateway() as it:
        found = UpnpRouter(LOOPBACK)
        assert found.find() == "203.0.113.7"
        assert found.map(4001, 600) == 4001
        assert it.mappings == {4001: (LOOPBACK, 4001, 600)}
        found.unmap(4001)
        assert it.mappings == {}
        found.unmap(4001)  # which it is not any more: nothing is raised


def test_a_port_of_another_machine_is_left_alone() -> None:
    with gateway() as it:
        it.taken = {4001, 4002}
        found = UpnpRouter(LOOPBACK)
        found.find()
        assert found.map(4001, 600) == 4003
        it.taken = set(range(4001, 4001 + OTHER_PORTS))
        with pytest.raises(RouterError, match="does not forward port 4001"):
            found.map(4001, 600)


def test_a_router_that_refuses_everything_is_none() -> None:
    with gateway() as it:
        it.broken = True
        with pytest.raises(RouterError):
            UpnpRouter(LOOPBACK).find()


async def test_a_mapping_is_renewed_and_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_mapping_task, "RENEW_S", 0.2)
    kept = Kept(4001)
    with gateway() as it:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.mapper.run)
            await until(lambda: len(it.added) >= 2)
            nursery.cancel_scope.cancel()
        assert it.mappings == {}
    assert kept.addresses[0] == ("/ip4/203.0.113.7/tcp/4001",)
    assert kept.words == ["the router forwards /ip4/203.0.113.7/tcp/4001 to this machine"]  # once


async def test_a_router_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_mapping_task, "FIND_S", 1.5)
    kept = Kept(4001)
    gaps: list[float] = []

    async def watch() -> None:
        last = trio.current_time()
        while True:
            await trio.sleep(0.01)
            last, before = trio.current_time(), last
            gaps.append(last - before)

    with gateway() as it:
        it.held.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(kept.mapper.run)
            await until(lambda: kept.words)
            nursery.cancel_scope.cancel()
    assert kept.words == ["the router forwards no port by itself: the router takes too long"]
    assert kept.addresses == [()]
    assert max(gaps) < 1.0  # it would be all of FIND_S on the event loop


async def test_a_router_that_goes_away_takes_its_address_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_mapping_task, "RENEW_S", 0.2)
    kept = Kept(4001)
    with gateway() as it:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.mapper.run)
            await until(lambda: it.added)
            it.broken = True
            await until(lambda: kept.addresses[-1] == () if kept.addresses else False)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("outside", "level"),
    [("8.8.8.8", "ok"), ("100.64.0.9", "warning"), pytest.param("10.0.0.1", "warning", marks=pytest.mark.thorough)],
)
async def test_the_doctor_tries_a_port_and_takes_it_back(outside: str, level: str) -> None:
    with gateway(outside) as it:
        (finding,) = await router(SUBJECT, UpnpRouter(LOOPBACK))
        assert (it.added, it.mappings) == ([TRY_PORT], {})
    assert finding.level == level
    assert ("another router" in finding.seen) == (level == "warning")


@pytest.mark.parametrize(
    "outside",
    thorough_but({"999.1.1.1"}, ["home.example.org", "203.0.113.7/tcp/1", "fe80::1%x", "999.1.1.1"]),
)
async def test_a_router_whose_address_is_none_is_none(outside: str) -> None:
    with gateway(outside):
        with pytest.raises(RouterError, match="no IPv4 address"):
            UpnpRouter(LOOPBACK).find()
        (finding,) = await router(SUBJECT, UpnpRouter(LOOPBACK))
    assert finding.level == "unknown"


async def test_the_doctor_says_where_there_is_no_router() -> None:
    (finding,) = await router(SUBJECT, Silent())
    assert (finding.level, "no router answers" in finding.seen) == ("unknown", True)
    off = replace(SUBJECT, network=NetworkConfig(upnp=False))
    assert [it.level for it in await router(off)] == ["ok"]


class Silent:
    """No router."""

    def find(self) -> str:
        raise RouterError("no router answers")

    def map(self, port: int, lease_s: int) -> int:
        raise AssertionError("it was not found")

    def unmap(self, port: int) -> None:
        raise AssertionError("it was not found")


def test_a_lease_ends_by_itself() -> None:
    with gateway() as it:
        found = UpnpRouter(LOOPBACK)
        found.find()
        found.map(4001, LEASE_S)
        assert isinstance(it, Gateway)
        assert it.mappings[4001][2] == LEASE_S
