"""Facts that exposed objects kept in the files of earlier runs like this one."""

from __future__ import annotations

import glob
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from looptap.protocol.messages import RunInfo
from looptap.store.errors import StoreError
from looptap.store.layout.run_path import SUFFIX, store_path
from looptap.streams.loop.loop_observer import LoopObserver

MAX_FILES = 32
"""Files that are read, the newest ones."""
_SEEDS = ("seed", ".seed", "_seed")  # settings that differ between runs of one job end so

log = logging.getLogger("looptap")


class EarlierRuns:
    """The runs with the name, rank and settings of ``run``, beside its ``file``.

    Settings that end with "seed" may differ. Without settings no run is like another.
    """

    def __init__(self, run: RunInfo, file: Path | None, settings: Mapping[str, Any]) -> None:
        self._run, self._file, self._settings = run, file, _compared(settings)

    def tell(self, observables: Mapping[str, Any]) -> None:
        """Hand the observers their kept facts, from a thread of its own."""
        asked = {name: one for name, one in observables.items() if issubclass(type(one), LoopObserver)}
        if asked and self._settings and self._file is not None:
            read = threading.Thread(target=self._read, args=(asked,), name="looptap-earlier", daemon=True)
            try:
                read.start()
            except RuntimeError as error:
                log.warning("looptap: earlier runs are not used: %s.", error)

    def _read(self, asked: dict[str, LoopObserver]) -> None:
        try:
            found = list(self._facts())[::-1]
            for name, observer in asked.items():
                if kept := [facts[name] for facts in found if name in facts]:
                    observer.on_earlier_runs(kept)
        except Exception as error:  # a thread prints no traceback into the output of the job
            log.warning("looptap: earlier runs are not used: %s: %s", type(error).__name__, error)

    def _facts(self) -> Iterator[dict[str, Any]]:
        """Yield the facts kept in each file, the newest first."""
        from looptap.store.reader import open as open_stored  # loads much, and few jobs need it

        assert self._file is not None
        pattern = f"{glob.escape(store_path(self._run.name, '.').stem)}*{SUFFIX}"
        files = [(one.stat().st_mtime, one) for one in self._file.parent.glob(pattern) if one != self._file]
        for _, file in sorted(files, reverse=True)[:MAX_FILES]:
            try:
                with open_stored(file) as stored:
                    facts, same = stored.metadata.get("kept"), _compared(stored.config.settings) == self._settings
                    same = same and (stored.name, stored.metadata.get("rank", 0)) == (self._run.name, self._run.rank)
            except (OSError, StoreError):  # removed, damaged, or of another looptap
                continue
            if same and isinstance(facts, dict):
                yield facts


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not f".{name}".lower().endswith(_SEEDS)}
