"""Loads a query from source text or a pickled function.

Only the I/O thread calls this, and only for an authenticated operator, who may run code in the job by design.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from looptap.protocol.messages import Code
from looptap.streams.errors import QueryError


def loaded_code(code: Code) -> str | Callable[..., Any]:
    """Load the text or the function of ``code``. Raises QueryError."""
    if code.text:
        return code.text
    if code.pickled and code.python == sys.version_info[:2]:
        import cloudpickle  # on the I/O thread, once a client sends a function

        try:
            function = cloudpickle.loads(code.pickled)
        except Exception as error:
            raise QueryError(
                f"the function could not be unpickled in the job ({type(error).__name__}: {error}); "
                "write the query as text, which does not need the client's modules."
            ) from None
        if not callable(function):
            raise QueryError(f"a query is text or a function, not a {type(function).__name__}.")
        return function  # type: ignore[no-any-return]  # cloudpickle gives Any
    if not code.pickled:
        return code.text
    theirs = ".".join(map(str, code.python))
    ours = ".".join(map(str, sys.version_info[:2]))
    raise QueryError(
        f"the function was pickled by Python {theirs} and the job runs Python {ours}; write it as text: "
        "'lambda e: …' or an expression."
    )
