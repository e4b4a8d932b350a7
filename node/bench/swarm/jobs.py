"""Many runs on the cores there are: processes with one thread each, since small models gain nothing from more."""

import gc
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import torch

from node.bench.swarm.measure import measure
from node.bench.swarm.run_spec import Document, RunSpec
from node.system.errors import RunError
from node.system.gc_tuning import left_out


def run_all(recipes: Sequence[RunSpec], jobs: int) -> Iterator[tuple[RunSpec, Document | ValueError]]:
    """Yield each run with its row, as they finish; with the ValueError of one whose settings do not go together.

    One job runs here, in the recipes' order. RunError when a process dies.
    """
    if jobs <= 1 or len(recipes) <= 1:
        with left_out():  # a collection of all that torch brings takes a third of a second
            yield from ((recipe, _attempt(recipe)) for recipe in recipes)
        return
    # Spawned, not forked: a fork of a process that has used torch may hang in its thread pool.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(recipes)), mp_context=context, initializer=_prepare)
    try:
        running: dict[Future[Document | ValueError], RunSpec] = {pool.submit(_attempt, each): each for each in recipes}
        for future in as_completed(running):
            yield running[future], future.result()
    except BrokenProcessPool as error:
        raise RunError("a process of the benchmark died (out of memory?)", "fewer --jobs need less memory") from error
    except BaseException:  # Ctrl-C: nobody waits for runs of minutes
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attempt(recipe: RunSpec) -> Document | ValueError:
    try:
        return measure(recipe)
    except ValueError as error:
        return ValueError(str(error))  # a plain one: others may not survive the way between processes
    finally:
        # A run's nodes refer to each other, and are few objects: hundreds of runs' models would wait for the collector.
        gc.collect()


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its processes
    gc.freeze()
    torch.set_num_threads(1)
