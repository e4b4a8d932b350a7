"""Runs a hundred visitors for real: hosts that are processes, programs in Python, and tabs of Chromium.

    python scripts/hundred_visitors.py --visitors 0
    python scripts/hundred_visitors.py --visitors 100
    python scripts/hundred_visitors.py --visitors 100 --liars 0.1

Three hosts train on the digits, at a set pace, with the default rules among each other. Each has a twentieth of the
digits (`--host-digits few`) or all (`all`). Half of the visitors are examples/visitors/visit.py, a process a visit, and
half are examples/visitors/visit.html, a tab each. Each has a key and a dozen digits of its own, stays with one host,
and visits it some times. Liars run the same code, and leave minus ten times what they learned. Every byte between a
visitor and its host is counted on the way. It needs Chromium and a checkout: it uses what tests/integration has.
"""

import argparse
import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from browser_harness import Browser  # noqa: E402
from local_http import http_served  # noqa: E402
from processes_harness import PATIENCE_S, Program, node  # noqa: E402
from test_visiting_nodes import LINES, Quiet, fill_in, free_port  # noqa: E402

from node.system.script_end import ended_in_a_line  # noqa: E402
from p2ptrain import tasks  # noqa: E402
from p2ptrain.tasks import Shard  # noqa: E402

EXAMPLES = ROOT / "examples" / "visitors"
HOST_SHARDS = 20
ALL_HELD_OUT = 359
INNER_STEPS = 20
SLOWED = 3
"""How many times its pace a run may take on a busy machine."""
PAYLOAD_BYTES, DIFFERENCE_BYTES = 9266, 9402
LIE = -10
LAST_ROUNDS = 2
"""A visit that begins so late may find the run over."""
LOOK_EVERY_S = 0.1
LYING_PROGRAM = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("visit", sys.argv[1])
program = sys.modules["visit"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
honest = program.encode
program.encode = lambda x, block: honest({LIE} * x, block)
del sys.argv[0]
program.main()
"""
LYING_PAGE = f"encode = (honest => (x, block) => honest(x.map(value => {LIE} * value), block))(encode)"
IS_READY = "!globalThis.isThePageBefore && typeof gradient === 'function' && document.readyState === 'complete'"
LEFT = re.compile(r"^round \d+: loss [\d.]+, left a difference \(model: (\w+)\)$")


@dataclass
class Traffic:
    """Bytes of TCP's payload that came from a visitor, and that went to it."""

    sent: int = 0
    received: int = 0

    @property
    def total(self) -> int:
        """Return both."""
        return self.sent + self.received


@contextmanager
def counted(port: int) -> Iterator[tuple[str, Traffic]]:
    """Pass on to a port of loopback from a port of its own; yield the URL, and what passes."""
    traffic = Traffic()

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                with socket.create_connection(("127.0.0.1", port)) as host:
                    back = threading.Thread(target=self._pass_on, args=(host, self.request, False))
                    back.start()
                    self._pass_on(self.request, host, True)
                    back.join()
            except OSError:  # the host is away: the visitor sees its connection end
                return

        def _pass_on(self, one: socket.socket, other: socket.socket, is_sent: bool) -> None:
            try:
                while part := one.recv(1 << 16):
                    traffic.sent += len(part) if is_sent else 0
                    traffic.received += 0 if is_sent else len(part)
                    other.sendall(part)
                other.shutdown(socket.SHUT_WR)
            except OSError:
                return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", traffic
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Visitor:
    """A visitor: its digits, its host, what it left, and the bytes a visit (of a tab: the mean of those begun)."""

    nth: int
    data: Path
    port: int
    lies: bool
    models: list[str] = field(default_factory=list)
    """How each model came that a difference was left to, where that is told."""
    refusals: Counter[str] = field(default_factory=Counter)
    bytes_a_visit: list[float] = field(default_factory=list)
    accepted: int = 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line says."""

    hosts: int
    host_digits: str
    visitors: int
    visits: int
    tab_visits: int
    liars: float
    rounds: int
    step_s: float
    seed: int
    tabs: int
    programs: int


class Run:
    """Hosts in processes, and their visitors."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.hosts: list[Program] = []
        self.ports = [free_port() for _ in range(settings.hosts)]
        self.visitors = self._visitors()

    def start(self, stack: ExitStack, origin: str) -> None:
        """Start the hosts, and wait until each has closed a round."""
        given, peers = self.settings, []
        count = HOST_SHARDS if given.host_digits == "few" else 1
        for nth, port in enumerate(self.ports):
            words = {
                "train.threads": 1,
                "train.warmup_steps": 20,
                "train.learning_rate": 2e-3,
                "train.inner_steps": INNER_STEPS,
                "train.rounds": given.rounds,
                "train.eval_examples": ALL_HELD_OUT,
                "train.seed": given.seed,
                "task.step_s": given.step_s,
                "node.wait_for": given.hosts - 1,
                "node.shard_count": count,
                "node.shard_index": nth if count > 1 else 0,
                "visits.listen": f"127.0.0.1:{port}",
                "visits.most_of_network": 64,
                "visits.origins": json.dumps([origin]),
            }
            options = [word for key, value in words.items() for word in ("--set", f"{key}={value}")]
            host = node(self.folder / f"host-{nth}", "--task", "paced_digits:create", *options, *peers)
            self.hosts.append(stack.enter_context(host))
            peers += ["--peer", host.hear("started")["addresses"][0]]
        for host in self.hosts:
            host.hear_round(1)

    def round(self) -> int:
        """Return how many rounds the slowest host has closed."""
        return min(max((event["round"] for event in host.heard("round")), default=0) for host in self.hosts)

    def is_over(self) -> bool:
        """Return whether a visit that begins now may find the run over."""
        return self.round() >= self.settings.rounds - LAST_ROUNDS

    def wait_for(self, share: float) -> None:
        """Wait until this share of the rounds is closed."""
        while self.round() < share * (self.settings.rounds - LAST_ROUNDS):
            time.sleep(LOOK_EVERY_S)

    def losses(self) -> list[float]:
        """Wait for the end. Return the hosts' held-out losses after the last round, by which all have been averaged."""
        given = self.settings
        within_s = PATIENCE_S + SLOWED * given.rounds * INNER_STEPS * given.step_s
        for host in self.hosts:
            assert host.end(within_s) == 0, host.stderr
        return [host.heard("finished")[0]["summary"]["eval_loss_last"] for host in self.hosts]

    def _visitors(self) -> list[Visitor]:
        given, task = self.settings, tasks.get("digits")
        left = [task.examples(Shard(index=nth, count=HOST_SHARDS)) for nth in range(given.hosts, HOST_SHARDS)]
        rng = np.random.default_rng(given.seed)
        parts = np.array_split(rng.permutation(np.concatenate(left)), max(given.visitors, 1))
        rows = torch.cat([task.train.images * 16, task.train.labels[:, None].float()], dim=1).int()
        # Every so many visitors one lies, so that half of the liars are tabs.
        lies = {int((nth + 0.5) / given.liars) for nth in range(round(given.liars * given.visitors))}
        visitors = []
        for nth in range(given.visitors):
            data = self.folder / f"digits-{nth}.csv"
            mine = rows[torch.from_numpy(parts[nth])].tolist()
            data.write_text("".join(",".join(map(str, row)) + "\n" for row in mine))
            port = self.ports[int(rng.integers(given.hosts))]
            visitors.append(Visitor(nth, data, port, lies=nth in lies))
        return visitors


def visit_by_program(run: Run, visitor: Visitor) -> None:
    """Visit once, in a process of its own, in Python's isolated mode: p2ptrain is not found."""
    with counted(visitor.port) as (url, traffic):
        words = [EXAMPLES / "visit.py", url, visitor.data, "--state", run.folder / f"visitor-{visitor.nth}"]
        command = [sys.executable, "-I", *(("-c", LYING_PROGRAM) if visitor.lies else ()), *map(str, words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    visitor.bytes_a_visit.append(traffic.total)
    visitor.accepted += ended.returncode == 0
    if ended.returncode:
        visitor.refusals[re.sub(r"http://\S+", "the host", ended.stderr.strip())] += 1


def visit_by_programs(run: Run, visitors: Sequence[Visitor]) -> None:
    """Let each visit as often as is asked for: all once, then all again, evenly over the run."""
    given, turns = run.settings, [each for _ in range(run.settings.visits) for each in visitors]
    waiting = iter(enumerate(turns))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                found = next(waiting, None)
            if found is None:
                return
            run.wait_for(found[0] / len(turns))
            if run.is_over():
                return
            visit_by_program(run, found[1])

    threads = [threading.Thread(target=work) for _ in range(given.programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Tabs(Browser):
    """A browser with several tabs, of which one is asked at a time."""

    def open_tab(self) -> str:
        """Open one more, and return what it is known by."""
        self._session = ""
        tab = self.ask("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session: str = self.ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        self.turn_to(session)
        for domain in ("Runtime", "Log", "Page"):
            self.ask(f"{domain}.enable")
        return session

    def turn_to(self, session: str) -> None:
        """Ask this tab from now on."""
        self._session = session


def visit_by_tabs(run: Run, visitors: Sequence[Visitor], origin: str) -> None:
    """Let each visit in a tab of its own, which begin evenly over the run, some at a time."""
    given = run.settings
    with Tabs(run.folder / "browser") as browser:
        free = [browser.open_tab() for _ in range(given.tabs)]
        busy: list[tuple[str, Visitor, Callable[[], None]]] = []
        waiting = list(enumerate(visitors))
        while (waiting or busy) and not run.is_over():
            while free and waiting and run.round() >= waiting[0][0] / len(visitors) * (given.rounds - LAST_ROUNDS):
                tab, (_, visitor) = free.pop(), waiting.pop(0)
                browser.turn_to(tab)
                busy.append((tab, visitor, _begin(browser, visitor, origin, given.tab_visits)))
            for tab, visitor, end in tuple(busy):
                browser.turn_to(tab)
                if not browser.evaluate("document.getElementById('go').disabled"):
                    end()
                    busy.remove((tab, visitor, end))
                    free.append(tab)
            time.sleep(LOOK_EVERY_S)
        for tab, _, end in busy:  # the run is over
            browser.turn_to(tab)
            end()


def _begin(browser: Tabs, visitor: Visitor, origin: str, visits: int) -> Callable[[], None]:
    """Open the page, send off its form, and return what notes how it went."""
    stack = ExitStack()
    url, traffic = stack.enter_context(counted(visitor.port))
    browser.evaluate("globalThis.isThePageBefore = true")
    browser.open(f"{origin}/visit.html")
    browser.until(IS_READY)
    if visitor.lies:
        browser.evaluate(f"void ({LYING_PAGE})")
    fill_in(browser, url, visitor.data, visits=visits)

    def end() -> None:
        lines: list[str] = browser.evaluate(LINES)
        stack.close()
        found = [LEFT.match(line) for line in lines]
        visitor.models += [each[1] for each in found if each]
        visitor.accepted = len(visitor.models)
        visitor.refusals.update(
            re.sub(r"http://\S+", "the host", line) for line, each in zip(lines, found, strict=True) if not each
        )
        begun = visitor.accepted + (visitor.accepted < visits)
        visitor.bytes_a_visit.append(traffic.total / begun)

    return end


def told(run: Run, losses: Sequence[float]) -> dict[str, object]:
    """Return a run's figures."""
    given, visitors = run.settings, run.visitors
    kinds = {"programs": visitors[::2], "tabs": visitors[1::2]}
    return {
        "host_digits": given.host_digits,
        "visitors": given.visitors,
        "liars": sum(each.lies for each in visitors),
        "seed": given.seed,
        "loss": round(fmean(losses), 4),
        "of_each_host": [round(loss, 4) for loss in losses],
        "came": sum(bool(each.accepted) for each in visitors),
        "accepted": {name: sum(each.accepted for each in some) for name, some in kinds.items()},
        "lies_accepted": sum(each.accepted for each in visitors if each.lies),
        "refusals": sum((each.refusals for each in visitors), Counter()),
        "models_of_tabs": Counter(form for each in visitors for form in each.models),
        "most_bytes_allowed": 2 * PAYLOAD_BYTES + DIFFERENCE_BYTES,
        "bytes_a_visit": {
            name: _spread([size for it in some for size in it.bytes_a_visit]) for name, some in kinds.items()
        },
    }


def _spread(sizes: Sequence[float]) -> dict[str, int]:
    return {"mean": round(fmean(sizes)), "most": round(max(sizes))} if sizes else {}


def play(settings: Settings, folder: Path) -> dict[str, object]:
    """Run the hosts and their visitors to the end, and return the figures."""
    run = Run(settings, folder)
    with ExitStack() as stack:
        origin = stack.enter_context(http_served(partial(Quiet, directory=EXAMPLES)))
        run.start(stack, origin)
        programs = threading.Thread(target=visit_by_programs, args=(run, run.visitors[::2]))
        programs.start()
        if run.visitors[1::2]:
            visit_by_tabs(run, run.visitors[1::2], origin)
        programs.join()
        return told(run, run.losses())


def main() -> None:
    """Print one JSON line."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--hosts", type=int, default=3)
    words.add_argument("--host-digits", choices=["few", "all"], default="few")
    words.add_argument("--visitors", type=int, default=100)
    words.add_argument("--visits", type=int, default=4, help="visits of each program")
    words.add_argument("--tab-visits", type=int, default=2, help="visits of each tab")
    words.add_argument("--liars", type=float, default=0.0, help="the part of the visitors that lie")
    words.add_argument("--rounds", type=int, default=60)
    words.add_argument("--step-s", type=float, default=0.08, help="least seconds of a host's step")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--tabs", type=int, default=4, help="tabs open at a time")
    words.add_argument("--programs", type=int, default=3, help="programs that run at a time")
    given = words.parse_args()
    if given.visitors < 0 or not 0 <= given.liars <= 1 or min(given.hosts, given.tabs, given.programs) < 1:
        words.error("--visitors is 0 or more, --liars from 0 to 1, --hosts, --tabs and --programs are 1 or more")
    with TemporaryDirectory() as folder:
        print(json.dumps(play(Settings(**vars(given)), Path(folder))), flush=True)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
