"""The version of looptap that is installed."""

from __future__ import annotations

import functools
import os
import sys

_BEGINNING, _END = "looptap-", ".dist-info"


@functools.cache
def installed_version() -> str:
    """Return the version; empty if none is installed, or no file can be opened.

    It stands in the name of the folder that installers make. `importlib.metadata` reads it there as well, and takes as
    long to load as all of zmq: where there is such a folder, an agent starts without it.
    """
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:  # an archive, or nothing
            continue
        for name in names:
            if name.startswith(_BEGINNING) and name.endswith(_END):
                return name.removeprefix(_BEGINNING).removesuffix(_END)
    try:
        from importlib.metadata import version

        return version("looptap")
    except (ImportError, OSError):  # the latter in a process without a free descriptor
        return ""
