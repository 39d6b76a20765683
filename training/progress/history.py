"""What earlier runs of a job teach about the next: a prior for its learning curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from looptap.training.progress.ensemble import Prior
from looptap.training.progress.rules import Floats

_OWN = 2.0  # earlier runs that the general prior weighs as much as


def prior_of(curves: Sequence[Floats]) -> Prior | None:
    """The prior of curves that are like ``curves``, lists of errors at raw points; None if none is long enough.

    Where they ended, over where they began, says what to expect of c; how much the ends differ says how sure that is.
    """
    ends = []
    for curve in curves:
        errors = np.asarray(curve, float)
        errors = errors[np.isfinite(errors)]
        if len(errors) >= 4 and errors[0] > 0:
            ends.append(float(np.median(errors[-max(3, len(errors) // 10) :]) / errors[0]))
    if not ends:
        return None
    general = Prior()
    share = len(ends) / (len(ends) + _OWN)
    centre = share * float(np.mean(ends)) + (1 - share) * float(general.means[0])
    spread = max(float(np.std(ends)), 0.03) * np.sqrt(1 + 1 / len(ends))
    means, spreads = general.means.copy(), general.spreads.copy()
    means[0], spreads[0] = centre, share * spread + (1 - share) * float(general.spreads[0])
    means[1] = max(0.1, 0.9 - centre)
    return Prior(means, spreads)
