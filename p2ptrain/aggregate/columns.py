"""Passes over the columns of a matrix that does not fit a cache, by as many threads as torch may use.

torch lets go of the interpreter's lock while it computes, so threads that each take the next chunk use all cores. Every
operation is kept below GRAIN values: at that size torch would wake threads of its own inside ours, and all would wait
for each other. A chunk writes to places of its own, so that the result does not depend on who does which.

On a GPU one thread queues all chunks; they are larger there, and nothing waits for a result.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from p2ptrain.aggregate.base import Rows

GRAIN = 1 << 15
"""Values from which torch's CPU kernels divide an operation among threads (at::internal::GRAIN_SIZE)."""
WIDTH = GRAIN - 64
"""Columns in a chunk on a CPU: the widest row below GRAIN. An operation's fixed cost, 1 us, is a fifth then."""
GPU_WIDTH = 1 << 20
"""Columns in a chunk on a GPU: wide enough that a kernel outlasts its launch."""
MAX_THREADS = 8
"""Aggregating moves memory: a few cores take all the bandwidth there is, and each contends for the interpreter."""
SCRATCH_NUMEL = 1 << 23
"""Values (32 MiB) that the threads' chunks may hold together; many rows on many threads get narrower ones."""
NUMEL_A_THREAD = 1 << 20
"""Values below which another thread costs more than it does."""

Work = Callable[[slice], None]


def threads_for(rows: Rows) -> int:
    """Return how many threads a pass over such a matrix is worth."""
    return max(1, min(torch.get_num_threads(), MAX_THREADS, rows.values // NUMEL_A_THREAD))


def width_for(rows: Rows, scratch_rows: int, device: torch.device) -> int:
    """Columns in a chunk, where each thread holds so many rows of scratch, and a reader perhaps two for each row."""
    held = scratch_rows + 2 * rows.n
    if device.type != "cpu":
        return max(1, min(GPU_WIDTH, SCRATCH_NUMEL // held))
    return max(1, min(WIDTH, SCRATCH_NUMEL // (held * threads_for(rows))))


def new_vector(rows: Rows) -> torch.Tensor:
    """Return an unset (d,) like the rows. ValueError unless they are fp32."""
    with torch.no_grad():
        first_n1 = checked(rows.read(slice(0, min(1, rows.d))))
    return first_n1.new_empty(rows.d)


def checked(x_nc: torch.Tensor) -> torch.Tensor:
    """Return columns that were read. ValueError unless they are fp32."""
    if x_nc.dtype != torch.float32:
        raise ValueError(f"an aggregator needs fp32 vectors, not {x_nc.dtype}")
    return x_nc


def parts(start: int, stop: int, width: int) -> list[slice]:
    """start..stop in slices of `width`."""
    return [slice(each, min(each + width, stop)) for each in range(start, stop, width)]


def sweep(rows: Rows, parts: list[slice], worker: Callable[[], Work], device: torch.device) -> None:
    """`worker()(part)` for every part. Each thread makes a worker, with scratch, for itself."""
    threads = min(threads_for(rows), len(parts)) if device.type == "cpu" else 1
    queue = iter(parts)  # shared: a list's iterator gives each element to one thread

    def run() -> None:
        with torch.inference_mode():
            work = worker()
            try:
                for part in queue:
                    work(part)
            finally:
                list(queue)  # after an error nobody goes on

    if threads <= 1:  # of small models: a pool costs more than they do
        if parts:
            run()
        return
    with ThreadPoolExecutor(threads - 1, thread_name_prefix="aggregate") as pool:
        helpers = [pool.submit(run) for _ in range(threads - 1)]
        run()
        for helper in helpers:
            helper.result()
