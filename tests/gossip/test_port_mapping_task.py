"""What the mapper leaves behind: no port that it mapped, and no thread of those that others need."""

import threading

import trio

from gossip.reachability import port_mapping_task
from gossip.reachability.port_mapping_task import PortMapper
from gossip.reachability.upnp import RouterError

PATIENCE_S = 10.0


class Scripted:
    """A router: refuses some ports, and answers nothing while it is held, which is all that it can do to us."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused
        self.mapped: list[int] = []
        self.ever: list[int] = []
        self.held = threading.Event()
        self.held.set()
        self.inside = self.most = 0

    def find(self) -> str:
        self._wait()
        return "203.0.113.7"

    def map(self, port: int, lease_s: int) -> int:
        self._wait()
        if port in self.refused:
            raise RouterError("refused")
        self.mapped.append(port)
        self.ever.append(port)
        return port

    def unmap(self, port: int) -> None:
        self.mapped.remove(port)

    def _wait(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        assert self.held.wait(PATIENCE_S)
        self.inside -= 1


class Told:
    def __init__(self, router: Scripted, *ports: int) -> None:
        self.words: list[str] = []
        self.times = 0
        self.mapper = PortMapper(router, ports, mapped=self._mapped, tell=self.words.append)

    def _mapped(self, addresses: tuple[str, ...]) -> None:
        self.times += 1

    async def until(self, times: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while self.times < times:  # noqa: ASYNC110  # another thread's doing
                await trio.sleep(0.01)


async def test_what_was_mapped_before_a_refusal_is_taken_back() -> None:
    router = Scripted(4002)
    told = Told(router, 4001, 4002)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.mapper.run)
        await told.until(1)
        assert router.mapped == [4001]
        nursery.cancel_scope.cancel()
    assert told.words == ["the router forwards no port by itself: refused"]
    assert router.mapped == []


async def test_what_is_mapped_while_we_are_stopped_is_taken_back() -> None:
    router = Scripted()
    found = threading.Event()
    real = router.find

    def find() -> str:
        outside = real()
        router.held.clear()
        found.set()
        return outside

    router.find = find  # type: ignore[method-assign]
    told = Told(router, 4001)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.mapper.run)
        with trio.fail_after(PATIENCE_S):
            while not (found.is_set() and router.inside):  # noqa: ASYNC110  # another thread's doing
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
        threading.Timer(0.1, router.held.set).start()
    assert (router.ever, router.mapped) == ([4001], [])


async def test_a_router_that_hangs_keeps_one_thread_which_is_none_of_the_nodes(monkeypatch) -> None:
    for name in ("FIND_S", "RENEW_S", "UNMAP_S"):
        monkeypatch.setattr(port_mapping_task, name, 0.02)
    router = Scripted()
    router.held.clear()
    told = Told(router, 4001)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.mapper.run)
        await told.until(5)
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        assert router.most == 1
        router.held.set()
        with trio.fail_after(PATIENCE_S):
            while not router.mapped:  # noqa: ASYNC110  # another thread's doing
                await trio.sleep(0.01)
        monkeypatch.setattr(port_mapping_task, "UNMAP_S", PATIENCE_S)
        nursery.cancel_scope.cancel()
    assert router.mapped == []
