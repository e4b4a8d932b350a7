"""The doctor's checks of this machine, its page, its exit codes. Peers and routers: tests/integration."""

import json
import os
import resource
import socket
import time
from collections import namedtuple
from dataclasses import replace

import psutil
import pytest
import torch
import trio

from gossip.core.api import RunInfo
from gossip.core.identity import Identity
from gossip.core.ids import Digest, RunId
from gossip.reachability.dialback import encode_sighting, parse_sighting
from gossip.transport.spool.spool_folder import SpoolFolder, SpoolRelay
from node.cli.app import main
from node.config.budget_section import BudgetConfig
from node.config.schema import load
from node.doctor import examine, machine, network, peer_checks, router
from node.doctor.finding import Finding, Model, Subject, unless_one_is_fine
from node.system.addresses import LISTEN_ON_IPV6, UNDIALABLE
from node.system.run_dir import EPOCH

RELAY = Identity(bytes(32)).peer_id
MODEL = Model(parameters=10_000_000, device="cpu", run=RunInfo(run_id=RunId(b"r" * 16), genesis=Digest(b"g" * 32)))


@pytest.fixture
def subject(tmp_path):
    config = load(sets=["task.name=digits"])
    return Subject(network=config.network, node=config.node, learning=config, run_dir=tmp_path / "run")


@pytest.fixture
def offline(monkeypatch):
    """Nobody is asked: what waits for others has tests of its own."""

    async def nothing(*_):
        return []

    monkeypatch.setattr(router, "router", nothing)
    monkeypatch.setattr(examine, "_multicast", nothing)


@pytest.mark.parametrize(
    ("version", "specifiers", "fits"),
    [
        ("2.9.1+cpu", ">=2.9,<3", True),
        ("2.10", ">=2.9,<3", True),
        ("3.0", ">=2.9,<3", False),
        ("0.8.1", "==0.8.1", True),
        ("0.8.2", "==0.8.1", False),
        ("1.0", ">=1.0.0", True),
        ("2.0rc1", "!=2.0", False),
        ("3.11.7", ">=3.11", True),
        ("anything", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version, specifiers, fits):
    assert machine.fits(version, f"a-package {specifiers}") is fits


def test_this_python_has_what_it_needs():
    assert machine.python_and_packages().level == "ok"


def test_a_package_that_is_missing_or_old_is_named(monkeypatch):
    monkeypatch.setattr(
        machine.metadata, "requires", lambda name: ["no-such-package>=1", "trio<0.1", "x; extra == 'y'"]
    )
    finding = machine.python_and_packages()
    assert finding.level == "problem"
    assert "no-such-package is missing" in finding.seen
    assert "trio" in finding.seen


def test_the_model_is_that_of_the_configuration(subject):
    model = machine.model_of(subject)
    assert (model.parameters, model.device) == (9226, "cpu")
    assert machine.device_and_cores(subject, model).level in ("ok", "warning")


def test_threads_are_those_that_the_budget_leaves(subject, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    learning = load(sets=["budget.cpu=1", "train.threads=0"])
    assert ", 1 thread" in machine.device_and_cores(replace(subject, learning=learning), MODEL).seen


def test_more_threads_than_cores_are_too_many(subject):
    learning = subject.learning.model_copy(update={"train": replace(subject.learning.train, threads=4096)})
    finding = machine.device_and_cores(replace(subject, learning=learning), MODEL)
    assert (finding.level, "train.threads=" in finding.fix) == ("warning", True)


@pytest.mark.parametrize(("gigabytes", "level"), [(64, "ok"), (1.0, "warning"), (0.5, "problem")])
def test_memory_against_the_model(subject, monkeypatch, gigabytes, level):
    there = namedtuple("Memory", "available total")(int(gigabytes * 1e9), int(1e12))
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: there)
    assert machine.memory(subject, MODEL).level == level


@pytest.mark.parametrize(("gigabytes", "level"), [(64, "ok"), (1.0, "warning"), (0.5, "problem")])
def test_disk_against_the_checkpoints(subject, monkeypatch, gigabytes, level):
    there = namedtuple("Usage", "free")(int(gigabytes * 1e9))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: there)
    finding = machine.disk(subject, MODEL)
    assert (finding.level, bool(finding.fix)) == (level, level != "ok")


def test_disk_for_as_many_checkpoints_as_a_budget_lets_a_node_keep(subject, tmp_path):
    def seen(**budget):
        learning = subject.learning.model_copy(update={"budget": BudgetConfig(**budget)})
        return machine.disk(replace(subject, learning=learning, run_dir=tmp_path), MODEL).seen

    assert "for 4 checkpoints" in seen()
    assert "for 4 checkpoints" in seen(disk=10_000_000_000)
    assert "404 MB for 2 checkpoints" in seen(disk=600_000_000)
    assert "for 2 checkpoints" in seen(disk=1), "too little for any: the budget's own line says so"


def test_a_folder_that_cannot_be_one(subject, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert machine.disk(replace(subject, run_dir=file / "run"), None).level == "problem"


@pytest.mark.parametrize(("soft", "level"), [(64, "warning"), (100_000, "ok"), (resource.RLIM_INFINITY, "ok")])
def test_open_files_against_the_connections(subject, monkeypatch, soft, level):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (soft, resource.RLIM_INFINITY))
    assert machine.open_files(subject).level == level


def test_a_clock_that_is_earlier_than_our_own_past(subject):
    assert machine.clock(subject).level == "ok"
    folder = subject.run_dir / subject.node.name
    folder.mkdir(parents=True)
    (folder / EPOCH).write_text(str(int((time.time() + 3600) * 1000)))
    assert machine.clock(subject).level == "warning"


def test_a_port_in_use_names_who_has_it(subject):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        there = replace(subject, network=replace(subject.network, listen=(f"/ip4/127.0.0.1/tcp/{port}",)))
        (finding,) = network.ports(there)
        assert finding.level == "problem"
        assert f"process {os.getpid()}" in finding.seen
    assert [it.level for it in network.ports(there)] == ["ok"]


def test_a_port_of_another_machine(subject):
    there = replace(subject, network=replace(subject.network, listen=("/ip4/203.0.113.7/tcp/4001",)))
    (finding,) = network.ports(there)
    assert (finding.level, "network.announce" in finding.fix) == ("problem", True)


def test_any_free_port_is_fine_and_says_what_it_is_not(subject):
    (finding,) = network.ports(subject)
    assert (finding.level, "fixed one" in finding.fix) == ("ok", True)


@pytest.mark.parametrize(
    ("hosts", "level", "words"),
    [
        ([], "warning", "offline"),
        (["8.8.8.8"], "ok", "public"),
        (["192.168.1.5"], "warning", "private"),
        (["100.64.3.2"], "warning", "shared by the provider"),
        (["192.168.1.5", "2600::1"], "ok", "public"),
        (["fe80::1%eth0"], "warning", "this link alone"),
    ],
)
def test_kinds_of_addresses(subject, hosts, level, words):
    finding = network.addresses(subject, hosts, beside=[])
    assert (finding.level, words in finding.seen) == (level, True)


def test_a_network_that_leads_nowhere_else_is_one_to_run_on(subject, monkeypatch):
    finding = network.addresses(subject, [], beside=["10.1.2.3"])
    assert (finding.level, "10.1.2.3, and no route beyond" in finding.seen) == ("ok", True)
    monkeypatch.setattr(router, "default_sources", tuple)
    (finding,) = trio.run(router.router, subject)
    assert (finding.level, finding.seen) == ("ok", "not asked: no route leads out of this network")


@pytest.mark.parametrize(
    ("listen", "hosts", "undialable"),
    [
        (("/ip4/0.0.0.0/tcp/0",), ["2600::1"], True),
        (("/ip6/::/tcp/4001",), ["2600::1"], False),
        (("/ip4/0.0.0.0/tcp/0",), ["192.168.1.5", "2600::1"], False),
    ],
)
def test_a_machine_with_ipv6_alone_has_to_listen_on_it(subject, listen, hosts, undialable):
    finding = network.addresses(replace(subject, network=replace(subject.network, listen=listen)), hosts)
    assert (UNDIALABLE in finding.seen, finding.fix == LISTEN_ON_IPV6) == (undialable, undialable)
    forwarded = replace(subject.network, listen=listen, announce=("/ip6/2600::2/tcp/4001",))
    assert network.addresses(replace(subject, network=forwarded), hosts).level == "ok"


def test_multicast_that_does_not_come_back(monkeypatch):
    monkeypatch.setattr(network, "MULTICAST_S", 0.01)
    monkeypatch.setattr(network, "MDNS_GROUP", "192.0.2.1")
    assert network.multicast().level == "warning"


def test_one_way_that_is_fine_is_enough():
    wrong, fine = (Finding(check="peer", level=level, seen="") for level in ("problem", "ok"))
    assert [it.level for it in unless_one_is_fine([wrong, fine])] == ["warning", "ok"]
    assert [it.level for it in unless_one_is_fine([wrong, wrong])] == ["problem", "problem"]


def test_what_does_not_answer_in_time_is_said_to_be_unknown(subject, offline, monkeypatch):
    import trio

    async def never(*_):
        await trio.sleep_forever()

    monkeypatch.setattr(peer_checks, "peers", never)
    monkeypatch.setattr(examine, "ALL_S", 0.5)
    found = {it.check: it for it in examine.examine(subject).findings}
    assert (found["peers"].level, "not done within" in found["peers"].seen) == ("unknown", True)


def test_a_fit_machine_ends_with_0(offline, capsys, tmp_path):
    assert main(["doctor", "--task", "digits", "--run-dir", str(tmp_path), "--measure", "0", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["fit"] is True
    checks = {it["check"] for it in page["findings"]}
    assert checks >= {"packages", "port", "disk", "device", "memory", "clock", "peers"}


def test_a_run_folder_that_is_not_there_is_told_as_one_to_come(offline, capsys, tmp_path):
    """A mistyped name was answered with "A node can run here", of a default model."""
    there, absent = str(tmp_path), str(tmp_path / "firts")
    for folder in (there, absent):
        main(["doctor", "--task", "digits", "--run-dir", folder, "--measure", "0"])
        said = capsys.readouterr().err
        assert (f"there is no {folder} yet" in said) == (folder == absent)


def test_what_a_node_could_not_start_with_ends_with_1_and_the_fix(offline, capsys, tmp_path):
    task = ["--task", "byte-lm", "--data", str(tmp_path / "nothing here")]
    assert main(["doctor", *task, "--run-dir", str(tmp_path)]) == 1
    page = capsys.readouterr().out
    assert "cannot run here" in page
    assert "nothing here" in page.replace("\n", " ").replace("  ", " ") or "cannot be read" in page


@pytest.mark.parametrize("wrong", [["--no-such-flag"], ["--set", "network.degree=0"], ["--peer", "nonsense"]])
def test_wrong_flags_end_with_2(wrong, capsys):
    assert main(["doctor", *wrong]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_bootstrap_node_needs_no_model(offline, capsys, tmp_path):
    assert main(["doctor", "--role", "bootstrap", "--run-dir", str(tmp_path), "--json"]) == 0
    assert "device" not in {it["check"] for it in json.loads(capsys.readouterr().out)["findings"]}


def findings_of(capsys) -> dict[str, dict[str, str]]:
    return {it["check"]: it for it in json.loads(capsys.readouterr().out)["findings"]}


def test_who_reaches_nobody_but_a_relay_is_told_whether_it_is_there(offline, capsys, tmp_path):
    here = ["doctor", "--run-dir", str(tmp_path / "run"), "--json", "--task", "digits", "--measure", "0"]
    with socket.socket() as login:
        login.bind(("127.0.0.1", 0))
        login.listen()
        via = f"/ip4/127.0.0.1/tcp/{login.getsockname()[1]}/p2p/{RELAY}"
        assert main([*here, "--via", via]) == 0
        found = findings_of(capsys)
        assert found["relay"]["level"] == "ok"
        assert not {"peers", "port", "router", "multicast", "addresses"} & found.keys(), "nobody else is asked"
    assert main([*here, "--via", via]) == 1
    assert "whether that node runs" in findings_of(capsys)["peer"]["fix"]


def test_a_spool_folder_is_looked_at(offline, capsys, tmp_path):
    folder = tmp_path / "spool"
    here = ["doctor", "--run-dir", str(tmp_path / "run"), "--json", "--measure", "0"]
    here += ["--task", "digits", "--spool", str(folder)]
    for made, words in ((False, "cannot be used"), (True, "no relay serves")):
        if made:
            folder.mkdir(mode=0o700)
        assert main(here) == 1
        assert words in findings_of(capsys)["spool folder"]["seen"]
    SpoolFolder(folder).announce(SpoolRelay(peer=RELAY, host="login", pid=1, nonce="n", beat=1))
    assert main(here) == 0
    assert "a relay on login serves" in findings_of(capsys)["spool folder"]["seen"]
    folder.chmod(0o755)
    assert main(here) == 1
    assert "chmod 700" in findings_of(capsys)["spool folder"]["seen"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--via", "nonsense"], "network.via: 'nonsense' is no address"),
        (["--via", f"/ip4/10.0.0.1/tcp/4001/p2p/{RELAY}", "--spool", "s"], "two ways to the relay"),
        (["--allow", "10.20.0.1/16"], "one looks like 192.0.2.0/24"),
    ],
)
def test_wrong_ways_to_a_relay_end_with_2(words, said, capsys):
    assert main(["node", *words]) == 2
    assert said in capsys.readouterr().err


def test_who_holds_a_port_of_nobody_is_not_known(monkeypatch):
    def refused(kind):
        raise psutil.AccessDenied

    monkeypatch.setattr(network.psutil, "net_connections", refused)
    assert "another program" in network.holder_of(1)


class MappingRouter:
    """Maps what it is asked to, and remembers it."""

    def __init__(self) -> None:
        self.mapped: list[int] = []
        self.ended: list[int] = []

    def find(self) -> str:
        return "8.8.4.4"

    def map(self, port: int, lease_s: int) -> int:
        self.mapped.append(port)
        return port

    def unmap(self, port: int) -> None:
        self.ended.append(port)


def test_the_mapping_of_a_node_that_runs_is_left_alone(subject):
    """A router has one mapping a port: what the doctor maps and ends would be the node's."""
    made = MappingRouter()
    with network.bound("0.0.0.0", 0) as node:
        taken = node.getsockname()[1]
        there = replace(subject, network=replace(subject.network, listen=(f"/ip4/0.0.0.0/tcp/{taken}",)))
        (found,) = trio.run(router.router, there, made)
    assert found.level == "ok"
    assert taken not in made.mapped + made.ended
    (free,) = made.mapped
    (found,) = trio.run(router.router, there, made)
    assert made.mapped == made.ended == [free, taken], "once nobody has it, it is the one to try"


def test_a_peer_that_claims_an_address_without_a_host_ends_nothing(subject, monkeypatch):
    async def lies(*_):
        return parse_sighting(encode_sighting({"/memory/4001": True}), (4001,))

    class OnePeer:
        peers = (RELAY,)
        addresses = ("/ip4/127.0.0.1/tcp/4001",)

    monkeypatch.setattr(peer_checks, "ask_to_dial_back", lies)
    there = replace(subject, network=replace(subject.network, listen=("/ip4/127.0.0.1/tcp/4001",)))
    found = trio.run(peer_checks._reachability, there, OnePeer())
    assert (found.level, found.seen) == ("unknown", "no peer could be asked to dial back")
