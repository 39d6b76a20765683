"""Whether a loop is left: where its function is, to the instruction."""

from __future__ import annotations

import contextlib
import sys

import pytest

from looptap.streams.loop.loop_place import is_left, place_of_loop, spots_from


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


def test_a_loop_that_fetches_with_a_function_runs_to_its_end():
    batches, others, last = Batches(), Batches(), Batches()
    iterator = iter(batches)
    while next(iterator, 2) < 2:
        assert batches.place.runs
    assert not batches.place.runs
    iterator = iter(others)
    while True:
        try:
            if next(iterator) == 2:
                break
            raise ValueError
        except ValueError:
            assert others.place.runs
    assert not others.place.runs
    next(iter(last))
    assert last.place.runs  # no loop is around it: it is over with its function


def test_an_iterator_that_was_made_before_several_loops_serves_the_outer_one():
    frame = sys._getframe()
    for outer in range(2):
        inside = spots_from(frame)
        for _ in range(2):
            within, before = place_of_loop(frame, inside), place_of_loop(frame, ())
        assert before.runs
        assert within.runs == (outer > 1)
    assert not before.runs


def test_a_loop_is_left_where_another_one_of_its_function_begins_after_it_and_not_within_it():
    outer, inner, later = Batches(), Batches(), Batches()
    for _ in outer:
        for _ in inner:
            assert not is_left(outer.place, inner.place)
        break
    for _ in later:
        assert is_left(outer.place, later.place)
        assert is_left(inner.place, later.place)
