"""`Configuration`: the settings and facts of this job, for clients and its file."""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from looptap.agent.run.flat_settings import FlatSettings, flat_settings, shortened
from looptap.agent.run.working_tree import Diff, uncommitted
from looptap.protocol.messages import RunInfo
from looptap.protocol.run_config import BEING_READ, RunConfig
from looptap.protocol.secret_names import diff_without_secrets, without_secrets, words_without_secrets
from looptap.store.environment import git_commit

SHOWN_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "PBS_JOBID",
    "LSB_JOBID",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "TOKENIZERS_PARALLELISM",
    "CONDA_DEFAULT_ENV",
)
"""The environment variables that clients are shown; no other is read."""
MAX_WORDS = 500
"""Words of the command line that are kept."""
_MAX_VARIABLE_CHARACTERS = 200
_LIBRARIES = ("torch", "numpy", "transformers", "lightning", "accelerate", "jax")
_NVIDIA = Path("/proc/driver/nvidia/gpus")

log = logging.getLogger("looptap")


class Configuration:
    """The settings that the host gave, and the facts around them.

    Settings, command line and environment are read at once, on the host's thread. With settings, the commit and the
    diff are read at the start, on a thread of their own and in bounded time, and all goes to the file of the run;
    without, the commit is read when a client first asks, and no diff.
    """

    def __init__(self, run: RunInfo, config: Any = None) -> None:
        self._run, self._given = run, config is not None
        settings, note = flat_settings(config) if self._given else FlatSettings({})
        if note:
            log.warning("looptap: some of config= is left out: %s.", note)
        self._facts = RunConfig(
            settings=settings,
            note=note,
            command=tuple(map(shortened, words_without_secrets(sys.orig_argv[:MAX_WORDS]))),
            directory=str(_folders()[0]),
            environment={
                name: without_secrets(os.environ[name])[:_MAX_VARIABLE_CHARACTERS]
                for name in SHOWN_VARIABLES
                if os.environ.get(name)
            },
            host=run.host,
            diff_note=BEING_READ if self._given and not run.rank else "",
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the host gave, flat."""
        return dict(self._facts.settings)

    def start(self, store: Callable[[dict[str, Any]], object]) -> None:
        """Read commit and diff on a thread of its own, if the host gave settings.

        ``store`` takes the facts at once, so that the shortest run has its settings, and again when more is known. It
        must not block.
        """
        if self._given:
            store(msgspec.to_builtins(self.report()))
            read = threading.Thread(target=self._collect, args=(store,), name="looptap-config", daemon=True)
            try:
                read.start()
            except RuntimeError as error:
                self._facts = msgspec.structs.replace(self._facts, diff_note=f"not read: {error}")
                store(msgspec.to_builtins(self.report()))

    def report(self) -> RunConfig:
        """Return the settings and facts known so far."""
        if not self._given and not self._facts.commit:
            self._facts = msgspec.structs.replace(self._facts, commit=_repository()[1])
        return msgspec.structs.replace(self._facts, versions=_versions(self._run), devices=_devices())

    def _collect(self, store: Callable[[dict[str, Any]], object]) -> None:
        try:
            folder, commit = _repository()
            self._facts = msgspec.structs.replace(self._facts, commit=commit)
            store(msgspec.to_builtins(self.report()))
            if self._run.rank == 0:
                diff = uncommitted(folder) if folder is not None else Diff()
                text = diff_without_secrets(diff.text)
                self._facts = msgspec.structs.replace(self._facts, diff=text, diff_note=diff.note)
                store(msgspec.to_builtins(self.report()))
        except Exception as error:  # a thread prints no traceback into the output of the job
            log.warning("looptap: the facts about this run are incomplete: %s: %s", type(error).__name__, error)


def _repository() -> tuple[Path | None, str]:
    """Return the first folder that is in a git repository, and its commit."""
    found = ((folder, git_commit(folder)) for folder in _folders())
    return next((pair for pair in found if pair[1]), (None, ""))


def _folders() -> list[Path]:
    """Return the working directory and the folder of the script, those that exist."""
    try:
        found = [Path.cwd()]
    except OSError:  # it was removed
        found = [Path(os.sep)]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return [*found, Path(script).absolute().parent] if isinstance(script, str) else found


def _versions(run: RunInfo) -> dict[str, str]:
    found = {"python": platform.python_version(), "looptap": run.looptap}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)[:100]
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return found | ({"cuda": cuda} if isinstance(cuda, str) else {})


def _devices() -> tuple[str, ...]:
    """Return the names of the accelerators. Starts no driver.

    Those that the job uses, once it uses any; before, all that the NVIDIA driver lists.
    """
    try:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            return tuple(cuda.get_device_properties(index).name for index in range(min(64, cuda.device_count())))
        lines = [line for one in sorted(_NVIDIA.glob("*/information")) for line in one.read_text().splitlines()]
        return tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))[:64]
    except Exception:  # whatever a driver answers
        return ()
