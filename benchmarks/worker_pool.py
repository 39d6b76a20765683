"""A pool of processes for trainings that run side by side."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor

import torch


def worker_pool(processes: int | None = None) -> ProcessPoolExecutor:
    """Return a pool, by default of one process per processor, that trains in them.

    A worker has one thread for torch, and ends with the process that started it, however that one ended.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes or os.cpu_count(), context, _start_worker)


def _start_worker() -> None:
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
