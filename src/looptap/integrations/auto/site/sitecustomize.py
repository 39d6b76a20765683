"""Starts looptap as Python starts, then does what the next `sitecustomize` does.

Python imports a module of this name before it runs a script. `looptap run` puts this folder on PYTHONPATH, so that the
script and its children run in a plain interpreter: with their own arguments, main module, tracebacks and signals. The
folder leaves sys.path again at once.
"""

import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    try:
        from looptap.integrations.auto.entry import begin_from_environment

        begin_from_environment()
    except Exception:  # another interpreter, without looptap: it is none of the job's concern
        pass


def _next() -> None:
    """Import the module of this name that would have been imported without this one."""
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - it is run by its import
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize":
    _begin()
    _next()
