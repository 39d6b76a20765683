"""looptap: attach to a running training loop, query it, watch the answers live.

In the loop:    agent = looptap.Agent("name"); agent.emit("batch", step=step, loss=loss)
Beside it:      run = looptap.attach("name"); stream = run.stream("step, loss", on="batch")

The public names stand in ``__init__.pyi``, a line each, for type checkers and for this module, which loads each when it
is first used.
"""

import sys
from importlib import import_module

_stub = __spec__.loader.get_data(f"{__file__.removesuffix('c')}i").decode()  # from a folder as from a zip file
_MODULES = {words[3]: words[1] for line in _stub.splitlines() if (words := line.split())[:1] == ["from"]}

__all__ = sorted(_MODULES)  # noqa: PLE0605 - a list, made from the stub


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in _MODULES:
        raise AttributeError(f"looptap has no {name!r}; it has {', '.join(__all__)}.")
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})


if "IPython" in sys.modules:
    from looptap.notebook_display import register

    register()
