"""The factor of `auto`: steady under load, quick after a change, for any reader."""

from __future__ import annotations

import random
import statistics

import pytest

from looptap.training.echoing.auto_factor import Auto, Recent, StageMeter

DOWN_SECONDS = 0.01


def simulated(up, *, workers=2, steps=1500, seed=0, preempted=0.0, spell=0.03, timed=True):
    """Run a loop with a queue of four fresh batches; return the factor at each step.

    ``up(step)`` is how many seconds a fresh batch takes; work is held up by others for a ``spell`` on average, with the
    probability ``preempted``. ``timed`` workers report how long they took.
    """
    meter, auto, noise = StageMeter(workers), Auto(16.0), random.Random(seed)
    now = arrival = copies = 0.0
    factor, ready, factors = 1.0, [0.0] * 4, []

    def took(seconds):
        more = noise.expovariate(1 / spell) if noise.random() < preempted else 0.0
        return seconds * noise.uniform(0.8, 1.2) + more

    for step in range(steps):
        before, factor = factor, auto.next(factor, meter, step)
        if factor != before:
            meter.changed()
        wait = 0.0
        if copies < 1:
            wait = max(0.0, ready.pop(0) - now)
            now += wait
            reading = took(up(step))
            meter.arrived(wait, now - arrival, {"read": reading * workers} if timed else {})
            ready.append(max(ready[-1], arrival) + reading)
            arrival, copies = now, copies + factor
        copies -= 1
        spent = took(DOWN_SECONDS)
        now += spent
        meter.handed(spent, 0.0, wait)
        factors.append(factor)
    return factors


def near(factors, share=0.2):
    """Return which part of the factors is within a share of their median."""
    usual = statistics.median(factors)
    return sum(abs(factor - usual) <= share * usual for factor in factors) / len(factors)


@pytest.mark.parametrize(("up", "preempted", "spell"), [(0.06, 0.2, 0.03), (0.06, 0.3, 0.03), (0.03, 0.3, 0.03)])
@pytest.mark.parametrize("seed", range(3))
def test_the_factor_is_steady_on_a_machine_whose_processors_are_shared(up, preempted, spell, seed):
    factors = simulated(lambda step: up, preempted=preempted, spell=spell, seed=seed)
    assert near(factors[200:]) > 0.95


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.06), (0.06, 0.02), (0.06, 0.004)])
def test_the_factor_follows_a_reader_that_becomes_faster_or_slower(before, after):
    factors = simulated(lambda step: before if step < 500 else after)
    assert statistics.median(factors[300:500]) == pytest.approx(before / DOWN_SECONDS, rel=0.15)
    expected = max(1.0, after / DOWN_SECONDS)
    assert factors[-1] == pytest.approx(expected, rel=0.15)
    assert all(abs(factor - expected) <= 0.2 * expected for factor in factors[600:])


def test_a_reader_that_says_nothing_of_its_times_is_followed_too():
    factors = simulated(lambda step: 0.06 if step < 500 else 0.02, timed=False, steps=2500)
    assert near(factors[200:500]) > 0.9
    assert statistics.median(factors[200:500]) == pytest.approx(6, rel=0.2)
    assert statistics.median(factors[-500:]) == pytest.approx(2, rel=0.2)


def test_a_reader_of_unknown_workers_is_found_to_read_ahead():
    """Taken for one that does not, its factor would swing between 1 and R."""
    assert near(simulated(lambda step: 0.06, workers=0, timed=False)[200:]) > 0.95


def test_values_before_a_change_are_forgotten_and_noise_is_none():
    recent, noise = Recent(maxlen=64), random.Random(0)
    assert not any(recent.put(noise.uniform(0.5, 1.5)) for _ in range(500))
    assert any(recent.put(noise.uniform(2.5, 3.5)) for _ in range(12))
    assert min(recent) > 2
