"""looptap: attach to a running training loop, query it, watch the answers live.

In the loop:    agent = looptap.Agent("name"); agent.emit("batch", step=step, loss=loss)
Beside it:      run = looptap.attach("name"); stream = run.stream("step, loss", on="batch")

The public names stand in ``__init__.pyi``, a line each, for type checkers and for this module, which loads each when it
is first used.
"""

import sys
from importlib import import_module

_stub = __spec__.loader.get_data(f"{__file__.removesuffix('c')}i").decode()  # from a folder as from a zip file
_LINES = [words for line in _stub.splitlines() if (words := line.split())[:1] == ["from"]]
_MODULES = {name: module for _, module, _, name, *_ in _LINES if module != "."}
_ROOMS = {name for _, module, _, name, *_ in _LINES if module == "."}  # modules that are used by their own name

__all__ = sorted(_MODULES)  # noqa: PLE0605 - a list, made from the stub


def __getattr__(name):
    if name == "__version__":
        from looptap.streams.native.installed import installed_version

        return installed_version()
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        from looptap.streams.text import did_you_mean

        raise AttributeError(f"looptap has no {name!r}.{did_you_mean(name, __all__)} dir(looptap) lists its names.")
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__, *_ROOMS})


if "IPython" in sys.modules:
    from looptap.notebook_display import register

    register()
