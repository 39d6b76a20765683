"""Whether a loop is left: where its function is, to the instruction."""

from __future__ import annotations

import contextlib
import sys

import pytest

from looptap.streams.loop.loop_place import is_left, place_of_loop


class Batches:
    """Yields numbers, and notes where the loop over them stands."""

    def __init__(self):
        self.place = None

    def __iter__(self):
        self.place = place_of_loop(sys._getframe(1))
        yield from range(3)


def looks_of(leaves):
    """Leave a loop in some way; return what `runs` was within it, and after it."""
    batches, within, after = Batches(), [], []
    looks = within

    def look():
        looks.append(batches.place.runs)

    try:
        with contextlib.suppress(KeyError):
            for number in batches:
                look()
                try:
                    if leaves != "end":
                        raise ValueError
                except ValueError:
                    look()
                    try:
                        raise TypeError
                    except TypeError:
                        look()
                    with contextlib.suppress(OSError):
                        raise OSError from None
                    look()
                finally:
                    look()
                if leaves == "break" and number:
                    break
                if leaves in ("error", "suppressed") and number:
                    raise {"error": RuntimeError, "suppressed": KeyError}[leaves]
                try:
                    {}[number]
                except KeyError:
                    look()
            looks = after
            look()
        looks = after
        look()
    except RuntimeError:
        looks = after
        look()
    for _ in range(2):
        look()
    return within, after


@pytest.mark.parametrize("leaves", ["end", "break", "error", "suppressed"])
def test_a_loop_runs_from_its_first_instruction_to_its_end_handlers_included(leaves):
    for _ in range(3):  # later ones are specialized
        within, after = looks_of(leaves)
        assert len(within) >= 8
        assert all(within)
        assert len(after) >= 3
        assert not any(after)


def test_a_loop_that_fetches_with_a_function_runs_as_long_as_its_function():
    batches = Batches()
    iterator = iter(batches)
    while next(iterator, 2) < 2:
        assert batches.place.runs
    assert batches.place.runs


def test_a_loop_is_left_where_another_one_of_its_function_begins_after_it_and_not_within_it():
    outer, inner, later = Batches(), Batches(), Batches()
    for _ in outer:
        for _ in inner:
            assert not is_left(outer.place, inner.place)
        break
    for _ in later:
        assert is_left(outer.place, later.place)
        assert is_left(inner.place, later.place)
