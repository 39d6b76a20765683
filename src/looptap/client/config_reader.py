"""`ConfigReader`: what a run was started with, as far as this client may know."""

from __future__ import annotations

from looptap.client.exported_run import ExportedFile, ExportedRun
from looptap.client.run import Run
from looptap.protocol.errors import NotAllowed
from looptap.protocol.run_config import BEING_READ, RunConfig
from looptap.store.run import StoredRun


class ConfigReader:
    """Reads the config of a run, until it is complete: the diff comes later."""

    def __init__(self, run: Run | StoredRun | ExportedRun | ExportedFile) -> None:
        self._run = run
        self._found: RunConfig | None = None

    def read(self) -> RunConfig | None:
        """Return the config; None if it is not shared. Raises NoAnswer."""
        if self._found is None or self._found.diff_note == BEING_READ:
            try:
                self._found = self._run.config
            except NotAllowed:
                return None
        return self._found
