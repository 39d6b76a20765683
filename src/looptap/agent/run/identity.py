"""Identity of a run: its id, its machine, its rank and its job."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Collection, Mapping

from looptap.protocol.file_names import as_text
from looptap.protocol.messages import RunInfo
from looptap.streams.native.installed import installed_version

LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMIX_NAMESPACE")
"""Variables that each process of one job has alike, unless a launcher started it by itself."""
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def run_info(name: str) -> RunInfo:
    """Return the facts of a run that begins now, with a unique id."""
    started = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    rank, ranks = _place()
    return RunInfo(
        id=f"{name}-{stamp}-{os.urandom(3).hex()}",
        name=name,
        host=socket.gethostname() or platform.node(),
        pid=os.getpid(),
        started=started,
        rank=rank,
        ranks=ranks,
        python=sys.version_info[:2],
        looptap=installed_version(),
        job=job_of(os.environ) if ranks > 1 else "",
        attempt=max(_environment_int(name, 0) for name in RESTARTS),
    )


def job_of(environment: Mapping[str, str]) -> str:
    """Return the identity of this process's job; empty without a launcher.

    A port of the address where all ranks meet is held by one job; a step of Slurm may be a part of one.

    >>> job_of({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"})
    'none at node7:29500'
    """
    parts = [environment[name] for name in LAUNCHERS if environment.get(name)]
    if environment.get("MASTER_PORT"):
        parts.append(f"at {environment.get('MASTER_ADDR', '')}:{environment['MASTER_PORT']}")
    elif environment.get("SLURM_STEP_ID"):
        parts.append(f"step {environment['SLURM_STEP_ID']}")
    return " ".join(parts)[:500]


def _place() -> tuple[int, int]:
    """Return rank and world size, from the process group or the launcher."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return int(torch.get_rank()), int(torch.get_world_size())
    rank, ranks = _environment_int("RANK", 0), _environment_int("WORLD_SIZE", 1)
    # Without a place where ranks meet, or beyond their number, the variables are left over from another job.
    return (rank, ranks) if job_of(os.environ) and 0 <= rank < ranks else (0, 1)


def _environment_int(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


def checked_name(name: str) -> str:
    """Return the name of a run. Raises ValueError for an invalid one."""
    name = as_text(name) if isinstance(name, str) else name
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable() or "/" in name:
        raise ValueError(f"a run's name is 1 to 100 printable characters without '/', not {name!r}.")
    return name


def checked_groups(groups: Collection[str]) -> tuple[str, ...]:
    """Return the event types whose groups nest. Raises ValueError for bad names."""
    names = tuple(groups) if not isinstance(groups, str) else ()
    if not all(isinstance(g, str) for g in names) or len(set(names)) != len(names) or isinstance(groups, str):
        raise ValueError(f"groups={groups!r}: they must be different event types, innermost first.")
    return names
