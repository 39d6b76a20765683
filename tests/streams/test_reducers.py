from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
import operator
import pickle
import random
import statistics
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.streams.aggregations import distributions, sketches
from looptap.streams.aggregations.registry import REDUCERS, Bounds, group_by, histogram, mean, median, quantile, stdev
from looptap.streams.columns.value_columns import as_columns
from looptap.streams.errors import QueryError
from looptap.streams.operators.slots import Items, Slot

many = settings(max_examples=examples(400), deadline=None, database=None)
integers = st.integers(-(10**30), 10**30)
floats = st.floats(-1e150, 1e150, allow_nan=False)
TINY = 1e-280  # below it, a quotient or a square has fewer than 53 bits
splits = st.lists(st.integers(0, 40), max_size=3)


def reduced(name, xs, *args, cut=(), **kwargs):
    """Return the reducer's result over xs; with cuts, over parts that are merged."""
    spec = REDUCERS[name]
    edges = [0, *sorted(min(c, len(xs)) for c in cut), len(xs)]
    parts = []
    for low, high in itertools.pairwise(edges):
        part = spec.create(*args, **kwargs)
        for x in xs[low:high]:
            part.add(x)
        parts.append(part)
    for part in parts[1:]:
        parts[0].merge(part)
    return parts[0].result()


def outcome(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


def plainly(name, xs, *args, **kwargs):
    spec = REDUCERS[name]
    return spec.plain(*args[: spec.sequence], xs, *args[spec.sequence :], **kwargs)


def same(a, b):
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


EXACT = [
    ("len", (), {}),
    ("any", (), {}),
    ("all", (), {}),
    ("min", (), {}),
    ("max", (), {}),
    ("max", (), {"default": 0}),
    ("min", (), {"key": abs}),
    ("max", (), {"key": lambda x: x % 7, "default": None}),
    ("sum", (), {}),
    ("sum", (5,), {}),
    ("sum", (), {"start": -1}),
    ("median", (), {}),
    ("list", (), {}),
    ("tuple", (), {}),
    ("set", (), {}),
    ("sorted", (), {}),
    ("sorted", (), {"key": lambda x: x % 5, "reverse": True}),
    ("nlargest", (3,), {}),
    ("nlargest", (2,), {"key": lambda x: x % 3}),
    ("nsmallest", (3, lambda x: -x), {}),
    ("nsmallest", (0,), {}),
    ("Counter", (), {}),
    ("first", (), {"default": None}),
    ("last", (None,), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), EXACT)
@many
@given(xs=st.lists(integers, max_size=40), cut=splits)
def test_integers_reduce_exactly_as_in_python_however_they_are_split(name, args, kwargs, xs, cut):
    expected = outcome(plainly, name, xs, *args, **kwargs)
    assert same(outcome(reduced, name, xs, *args, cut=cut, **kwargs), expected)


COPIED = [("mean", (), {}), ("variance", (), {}), ("stdev", (), {}), ("quantile", (0.3,), {})]


@pytest.mark.parametrize(("name", "args", "kwargs"), EXACT + COPIED)
@many
@given(xs=st.lists(st.floats(-1e6, 1e6), max_size=40), at=st.integers(0, 40))
def test_a_copy_continues_as_the_reducer_would_have_and_leaves_it_as_it_was(name, args, kwargs, xs, at):
    first, whole = (Slot(Items(float, one=True), lambda: REDUCERS[name].create(*args, **kwargs)) for _ in range(2))
    for x in xs[:at]:
        first.push(x)
        whole.push(x)
    before = outcome(first.result)
    copy = Slot(first.sequence, first.make)
    copy.continue_from(first)
    for x in xs[at:]:
        copy.push(x)
        whole.push(x)
    for found, expected in ((outcome(copy.result), outcome(whole.result)), (outcome(first.result), before)):
        assert found == expected or repr(found) == repr(expected)


@pytest.mark.parametrize("name", ["min", "max"])
@many
@given(xs=st.lists(st.floats() | st.sampled_from([math.nan, -0.0, math.inf]), max_size=12), cut=splits)
def test_extremes_treat_nan_as_python_does_with_any_split(name, xs, cut):
    assert same(outcome(reduced, name, xs, cut=cut), outcome(plainly, name, xs))


@many
@given(xs=st.lists(floats | integers, max_size=40), cut=splits)
def test_sum_and_mean_of_floats_are_compensated(xs, cut):
    exact = sum(map(Fraction, xs))
    scale = float(sum(abs(Fraction(x)) for x in xs)) + TINY
    assert float(abs(Fraction(reduced("sum", xs, cut=cut)) - exact)) <= 1e-15 * scale
    if xs:
        assert float(abs(Fraction(reduced("mean", xs, cut=cut)) - exact / len(xs))) <= 1e-15 * scale


def test_small_numbers_are_not_lost_among_large_ones():
    for cut in ([], [1], [2], [1, 2]):
        assert reduced("sum", [1e16, 1.0, -1e16], cut=cut) == 1.0
        assert reduced("mean", [1e16, 3.0, -1e16], cut=cut) == 1.0
    assert reduced("sum", [0.1] * 1000) == 100.0


@pytest.mark.parametrize("cut", [[], [1], [2]])
def test_an_infinity_leaves_no_variance(cut):
    assert math.isnan(reduced("variance", [1.0, math.inf, 2.0], cut=cut))
    assert math.isnan(reduced("variance", [1.0, math.inf], cut=cut))


@many
@given(xs=st.lists(st.sampled_from([1.0, 2, math.inf, -math.inf, math.nan]), max_size=6), cut=splits)
def test_sum_and_mean_carry_infinities_and_nans_as_python_does(xs, cut):
    assert same(float(reduced("sum", xs, cut=cut)), float(sum(xs)))
    if xs:
        assert same(float(reduced("mean", xs, cut=cut)), float(sum(xs)) / len(xs))


@many
@given(xs=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), cut=splits, offset=st.sampled_from([0.0, 1e9]))
def test_variance_and_stdev_agree_with_statistics_at_any_offset(xs, cut, offset):
    xs = [x + offset for x in xs]
    exact = statistics.variance(xs)
    spread = sum(abs(x - xs[0]) ** 2 for x in xs) + TINY
    assert abs(reduced("variance", xs, cut=cut) - exact) <= 1e-12 * spread
    assert abs(reduced("stdev", xs, cut=cut) ** 2 - exact) <= 1e-12 * spread


@many
@given(xs=st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=40), q=st.floats(0, 1), cut=splits)
def test_quantile_is_numpys_and_median_is_statistics(xs, q, cut):
    assert reduced("quantile", xs, q, cut=cut) == quantile(xs, q) == pytest.approx(np.quantile(xs, q), rel=1e-14)
    assert reduced("median", xs, cut=cut) == median(xs) == statistics.median(xs)


@many
@given(
    xs=st.lists(st.floats(-1e6, 1e6) | st.integers(-9, 9), max_size=40),
    cut=splits,
    bins=st.integers(1, 20) | st.lists(st.floats(-100, 100), min_size=2, max_size=9, unique=True).map(sorted),
    range_=st.sampled_from([None, (-5, 5)]),
)
def test_histogram_is_numpys_however_it_is_split(xs, cut, bins, range_):
    counts, edges = np.histogram(np.array(xs, dtype=float), bins, range_)
    for found in (reduced("histogram", xs, bins, range_, cut=cut), histogram(xs, bins, range_)):
        assert found[0].tolist() == counts.tolist()
        assert found[1].tolist() == edges.tolist()


@many
@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), max_size=40), cut=splits)
def test_group_by_gives_every_key_its_own_reducer(pairs, cut):
    for reducer in (max, sum, mean, list, len, functools.partial(quantile, q=0.25), lambda xs: xs[-1]):
        assert reduced("group_by", pairs, reducer, cut=cut) == group_by(pairs, reducer)


@many
@given(xs=st.lists(st.integers(), max_size=20), k=st.integers(0, 25), cut=splits)
def test_sample_is_a_subset_in_order_of_arrival(xs, k, cut):
    found = reduced("sample", list(enumerate(xs)), k, cut=cut)
    assert len(found) == min(k, len(xs))
    assert found == sorted(set(found))


@many
@given(xs=st.lists(st.integers(), max_size=20))
def test_reduce_folds_as_functools_does(xs):
    assert reduced("reduce", xs, operator.sub, 7) == functools.reduce(operator.sub, xs, 7)
    expected = outcome(functools.reduce, operator.sub, xs)
    assert outcome(reduced, "reduce", xs, operator.sub) == expected


@settings(max_examples=examples(150), deadline=None, database=None)
@given(
    sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=4),
    arrange=st.sampled_from([list, sorted, lambda xs: sorted(xs, key=abs), lambda xs: sorted(xs)[::-1]]),
    spread=st.sampled_from([3, 500, 10**6]),
    seed=st.integers(0, 10**6),
)
def test_the_sketch_keeps_its_promise_about_ranks(sizes, arrange, spread, seed):
    draw = random.Random(seed)
    parts = [arrange([draw.randint(-spread, spread) for _ in range(n)]) for n in sizes]
    merged = sketches.QuantileSketch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "MAX_EXACT_NUMBERS", 16)
        for xs in parts:
            part = sketches.QuantileSketch()
            for x in xs:
                part.add(x)
            merged.merge(part)
    everything = sorted(itertools.chain(*parts))
    # Between two neighbours, an exact quantile is less than a rank away from either.
    bound = max(merged.error() * len(everything), 1) if everything else 0
    for q in (0, 0.03, 0.1, 0.5, 0.77, 1) if everything else ():
        assert _rank_error(everything, merged.quantile(q), q) <= bound


def _rank_error(ordered, value, q):
    """Return the distance of the ranks (from 1) of ``value`` to the quantile's rank."""
    rank = q * (len(ordered) - 1) + 1
    low = sum(x < value for x in ordered)
    high = sum(x <= value for x in ordered)
    return max(low - rank, rank - high, 0)


def test_a_million_numbers_have_their_median_to_two_thousandths():
    sketch = distributions.Median()
    xs = np.random.default_rng(0).lognormal(size=1_000_000)
    for x in xs.tolist():
        sketch.add(x)
    assert sketch.error() < 0.002
    assert abs((xs < sketch.result()).mean() - 0.5) <= sketch.error()
    assert sketch.nbytes() < 1_000_000


def test_a_quantile_is_exact_up_to_4096_numbers_and_says_so():
    xs = random.Random(3).choices(range(10**6), k=4097)
    reducer = distributions.Quantile(0.3)
    for x in xs[:-1]:
        reducer.add(x)
    assert (reducer.result(), reducer.error()) == (np.quantile(xs[:-1], 0.3), 0.0)
    reducer.add(xs[-1])
    assert reducer.error() > 0


def test_a_nan_makes_the_median_nan_however_many_numbers_there_are():
    for n in (3, 9000):
        assert math.isnan(reduced("median", [math.nan] + [1.0] * n))
    for numbers in itertools.permutations([1.0, 2.0, math.nan]):
        assert math.isnan(median(numbers))


@settings(max_examples=examples(100), deadline=None, database=None)
@given(
    scale=st.sampled_from([1e-300, 1e-3, 1.0, 1e9, 1e300]),
    centre=st.sampled_from([0.0, 1.0, -1e6]),
    seed=st.integers(0, 1000),
    bins=st.integers(1, 50),
    cut=st.lists(st.integers(0, 3000), max_size=2),
)
def test_the_fine_grid_keeps_its_promise_about_counts(scale, centre, seed, bins, cut):
    xs = np.random.default_rng(seed).standard_normal(3000) * scale + centre
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributions, "MAX_EXACT_HISTOGRAM_NUMBERS", 200)
        patch.setattr(distributions, "MAX_EXACT_NUMBERS", 64)
        whole = distributions.Histogram(bins)
        for low, high in itertools.pairwise([0, *sorted(cut), 3000]):
            part = distributions.Histogram(bins)
            for x in xs[low:high].tolist():
                part.add(x)
            whole.merge(part)
        counts, edges = whole.result()
        exact, exact_edges = np.histogram(xs, bins)
        assert edges.tolist() == exact_edges.tolist()
        assert counts.sum() == 3000
        assert np.abs((counts - exact).cumsum()).max() <= whole.error() * 3000


def test_a_histogram_of_a_million_numbers_is_within_one_percent():
    reducer = distributions.Histogram(20)
    xs = np.random.default_rng(1).standard_normal((100, 10_000))
    for part in xs:
        reducer.add(part)
    exact, edges = np.histogram(xs, 20)
    counts, found = reducer.result()
    assert found.tolist() == edges.tolist()
    assert np.abs(counts - exact).sum() / xs.size <= 2 * reducer.error() < 0.01
    assert reducer.nbytes() < 200_000


def test_a_histogram_is_exact_up_to_65536_numbers_and_says_so():
    xs = np.random.default_rng(2).standard_normal(65_537)
    reducer = distributions.Histogram(20)
    reducer.add(xs[:-1])
    assert reducer.result()[0].tolist() == np.histogram(xs[:-1], 20)[0].tolist()
    assert reducer.error() == 0.0
    reducer.add(xs[-1:])
    assert reducer.error() > 0


def test_a_few_numbers_are_not_lost_when_a_grid_is_merged_into_them():
    few, many = distributions.Histogram(4), distributions.Histogram(4)
    few.add(np.full(100, 0.5))
    many.add(np.linspace(0, 1, 70_000))
    few.merge(many)
    assert few.result()[0].sum() == 70_100


def test_a_histogram_counts_the_bytes_of_its_numbers():
    reducer = distributions.Histogram(10)
    empty = reducer.nbytes()
    assert empty == 8 * 10
    for number in range(100):
        reducer.add(number / 3)
    few = 100 * (sys.getsizeof(0.5) + 8)  # each with its place in a list
    assert reducer.nbytes() == empty + few
    reducer.add(np.arange(5000.0))
    assert reducer.nbytes() == empty + few + 8 * 5000
    reducer.add(np.arange(70_000.0))
    assert empty + few + 8 * 4096 < reducer.nbytes() < 8 * 70_000  # of a grid


def test_a_histogram_flattens_arrays_and_tensors():
    items = [np.array([[1, 2], [3, 4]]), torch.tensor([2.5], dtype=torch.bfloat16), 3]
    assert reduced("histogram", items, [0, 2, 4])[0].tolist() == [1, 5]


def test_a_histogram_without_a_range_refuses_nan_and_says_what_to_do():
    with pytest.raises(ValueError, match=r"found nan .* cannot choose a range"):
        reduced("histogram", [1.0, math.nan])
    assert reduced("histogram", [1.0, math.nan, math.inf], 2, (0, 2))[0].tolist() == [0, 1]


def test_a_histogram_of_more_bins_than_may_be_held_is_refused():
    with pytest.raises(ValueError, match="takes at most 100 bins, and 101 were asked for"):
        REDUCERS["histogram"].create(101, bounds=Bounds(items=100))
    with pytest.raises(ValueError, match="takes at most 100 bins, and 102 were asked for"):
        REDUCERS["histogram"].create(list(range(102)), bounds=Bounds(items=100))
    assert len(REDUCERS["histogram"].create(100, bounds=Bounds(items=100)).result()[0]) == 100


def test_a_quantile_of_nothing_is_an_error_as_a_function_too():
    for q in (0.5, [0.1, 0.9]):
        with pytest.raises(statistics.StatisticsError, match="at least one data point"):
            quantile([], q)


EMPTY = {
    "min": ValueError,
    "max": ValueError,
    "mean": statistics.StatisticsError,
    "median": statistics.StatisticsError,
    "variance": statistics.StatisticsError,
    "stdev": statistics.StatisticsError,
    "first": ValueError,
    "last": ValueError,
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_window_raises_what_python_raises(name):
    streamed, plain = outcome(reduced, name, []), outcome(plainly, name, [])
    assert streamed == plain
    assert issubclass(streamed[0], EMPTY[name])


def test_one_number_has_no_standard_deviation():
    with pytest.raises(statistics.StatisticsError, match="at least two data points"):
        reduced("stdev", [1.0])
    with pytest.raises(statistics.StatisticsError, match="at least two data points"):
        stdev([1.0])


@pytest.mark.parametrize("key", [lambda x: x, lambda x: (x, "a"), lambda x: ((1, x), None)])
@given(cut=splits)
def test_all_nans_are_one_key_whichever_objects_they_are_and_from_whichever_process(cut, key):
    nans = [math.nan, float("nan"), np.float64("nan"), torch.tensor(math.nan), math.inf - math.inf, 1.0]
    nans = [key(x) for x in nans]
    for name, args, pairs in (("Counter", (), False), ("set", (), False), ("group_by", (len,), True)):
        items = [(nan, 0) for nan in nans] if pairs else nans
        found, sent = reduced(name, items, *args, cut=cut), REDUCERS[name].create(*args)
        sent.load_state(pickled(part := filled(name, items, *args)))
        part.merge(sent)
        assert len(found) == len(part.result()) == 2
        assert pairs is False or sorted(found.values()) == [1, 5]
        assert pairs is False or sorted(part.result().values()) == [2, 10]


def filled(name, items, *args):
    reducer = REDUCERS[name].create(*args)
    for item in items:
        reducer.add(item)
    return reducer


def pickled(reducer):
    return pickle.loads(pickle.dumps(reducer.state()))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sizes", [(1, 1), (70_000, 1), (1, 70_000), (70_000, 70_000), (0, 1), (1, 0)])
def test_a_histogram_refuses_what_any_of_its_parts_has_met_however_they_are_merged(bad, sizes):
    """A count without the numbers of a part that met a NaN would be silently wrong."""
    for which in (0, 1):
        parts = [REDUCERS["histogram"].create() for _ in sizes]
        for part, size in zip(parts, sizes, strict=True):
            part.add(np.linspace(0, 1, size))
        parts[which].add(bad)
        parts[0].merge(parts[1])
        third = REDUCERS["histogram"].create()
        third.add(np.linspace(0, 1, 100_000))
        parts[0].merge(third)
        with pytest.raises(ValueError, match=rf"found {bad} .* cannot choose a range"):
            parts[0].result()
        third.merge(parts[0])
        with pytest.raises(ValueError, match=rf"found {bad}"):
            third.result()


@pytest.mark.parametrize("bad", [-0.1, 95, math.nan])
def test_a_quantile_out_of_range_is_refused_with_a_way_out(bad):
    with pytest.raises(ValueError, match=r"Write 0\.95"):
        REDUCERS["quantile"].create(bad)


def test_several_quantiles_come_as_a_list():
    assert reduced("quantile", [1, 2, 3], [0, 0.5, 1]) == quantile([1, 2, 3], [0, 0.5, 1]) == [1, 2, 3]


def test_wrong_arguments_name_the_reducer():
    with pytest.raises(TypeError, match=r"mean\(\): besides the sequence, too many"):
        REDUCERS["mean"].create(3)


def test_sum_joins_lists_as_python_does_but_not_without_bound():
    assert reduced("sum", [[1], [2, 3]], []) == [1, 2, 3]
    with pytest.raises(TypeError):
        reduced("sum", [[1]])
    with pytest.raises(TypeError, match="strings"):
        reduced("sum", ["a"], "")
    with pytest.raises(ValueError, match="100,000 elements"):
        reduced("sum", [[0] * 60_000] * 2, [])


def test_sum_takes_what_can_be_added():
    assert reduced("sum", [Fraction(1, 3)] * 3, cut=[1]) == 1
    assert reduced("sum", [1j, 2.0, 3]) == 5 + 1j
    assert reduced("sum", [np.float32(0.5), np.int8(100), np.int8(100), True]) == 201.5


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_sum_mean_and_variance_of_arrays_go_element_by_element(make):
    items = [make([1.0, 2.0]), make([3.0, 5.0]), make([5.0, 2.0])]
    kept = [item.tolist() for item in items]
    for cut in ([], [1], [1, 2]):
        assert reduced("sum", items, cut=cut).tolist() == [9, 9]
        assert reduced("mean", items, cut=cut).tolist() == [3, 3]
        assert reduced("variance", items, cut=cut).tolist() == [4, 3]
    assert [item.tolist() for item in items] == kept
    assert reduced("sum", items).dtype == items[0].dtype


def test_a_result_and_a_merged_part_stay_as_they_are_when_more_comes():
    a, b = REDUCERS["sum"].create(), REDUCERS["sum"].create()
    b.add(np.array([1.0]))
    a.merge(b)
    result = a.result()
    a.add(np.array([5.0]))
    assert (a.result().tolist(), result.tolist(), b.result().tolist()) == ([6], [1], [1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_does_not_stall_a_long_mean(dtype):
    items = [torch.tensor([0.5, 1.0], dtype=dtype)] * 4000
    found = reduced("mean", items)
    assert found.dtype == dtype
    assert found.tolist() == [0.5, 1.0]


def test_the_mean_of_bytes_does_not_wrap_around():
    assert reduced("mean", [np.array([200], dtype=np.uint8)] * 3).tolist() == [200]
    assert reduced("mean", [torch.tensor([200], dtype=torch.uint8)] * 3).tolist() == [200]
    assert mean(torch.tensor([1, 2, 6])) == 3.0


@pytest.mark.parametrize("name", ["sum", "mean", "min", "max", "variance", "stdev", "first", "last"])
def test_scalars_of_a_device_are_never_read(name):
    item = torch.tensor(1.5, device="meta", requires_grad=True)  # reading a meta tensor raises
    found = reduced(name, [item, item, item], cut=[1])
    assert (found.device.type, found.shape) == ("meta", ())
    assert name in ("first", "last") or not found.requires_grad


def test_the_largest_tensor_of_a_device_must_be_a_scalar():
    with pytest.raises(TypeError, match=r"shape \(2,\).*max\(e.x.max\(\)"):
        reduced("max", [torch.zeros(2, device="meta")])


def test_quantile_refuses_arrays_with_a_way_out():
    with pytest.raises(TypeError, match=r"shape \(2,\).*for x in e.losses"):
        reduced("quantile", [np.zeros(2)], 0.5)


def test_equal_tensors_are_one_key():
    labels = [torch.tensor(3), torch.tensor(3), np.array(4)]
    assert reduced("Counter", labels) == {3: 2, 4: 1}
    assert reduced("set", labels) == {3, 4}
    assert reduced("group_by", [(label, 1) for label in labels], sum) == {3: 2, 4: 1}


SMALL = Bounds(items=5, bytes=2000, keys=5)
GROW = [
    ("list", ()),
    ("tuple", ()),
    ("set", ()),
    ("sorted", ()),
    ("Counter", ()),
    ("reduce", (lambda a, x: [*a, x], [])),
    ("group_by", (max,)),
]


@pytest.mark.parametrize(("name", "args"), GROW)
def test_too_many_items_are_an_error_that_names_the_bound_and_a_way_out(name, args):
    items = [(i, i) for i in range(100)]
    assert len(reduced(name, items[:5], *args, bounds=SMALL)) == 5
    with pytest.raises(QueryError, match=r"(more than 5 (items|different keys)|.*Limits\.)"):
        reduced(name, items, *args, bounds=SMALL)
    if REDUCERS[name].create(*args).mergeable:
        with pytest.raises(QueryError, match=r"Limits\.(collected_items|keys)"):
            reduced(name, items[:6], *args, bounds=SMALL, cut=[3])


@pytest.mark.parametrize(
    ("name", "args"), [("list", ()), ("set", ()), ("nlargest", (3,)), ("sample", (3,)), ("Counter", ())]
)
def test_too_many_bytes_are_an_error_too(name, args):
    with pytest.raises(QueryError, match=r"2,000 bytes.*\n.*Limits.collected_bytes"):
        reduced(name, [str(i) * 1000 for i in range(5)], *args, bounds=SMALL)


def test_a_reducer_that_gave_up_holds_nothing():
    reducer = REDUCERS["list"].create(bounds=SMALL)
    for i in range(1000):
        reducer.add(i)
    assert reducer.nbytes() == 0


def test_groups_that_collect_share_one_bound_of_bytes():
    pairs = [(i % 4, float(i)) for i in range(200)]
    assert len(reduced("group_by", pairs, list)[0]) == 50
    for reducer in (list, median, functools.partial(heapq.nlargest, 50)):
        with pytest.raises(QueryError, match="2,000 bytes"):
            reduced("group_by", pairs, reducer, bounds=Bounds(bytes=2000))


def test_a_bound_is_kept_when_parts_merge():
    with pytest.raises(QueryError, match="1 of 11 items had other keys"):
        reduced("Counter", [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6], bounds=SMALL, cut=[5])
    pairs = [(i // 50, float(i)) for i in range(100)]
    with pytest.raises(QueryError, match=r"group_by collects .* 2,000 bytes"):
        reduced("group_by", pairs, list, bounds=Bounds(bytes=2000), cut=[50])


def test_counter_says_how_many_items_had_other_keys():
    with pytest.raises(QueryError, match="2 of 7 items had other keys"):
        reduced("Counter", [1, 2, 3, 4, 5, 6, 7], bounds=SMALL)


def test_group_by_wants_pairs_and_a_reducer():
    with pytest.raises(TypeError, match=r"\(key, value\) pairs, and an item is 3"):
        reduced("group_by", [3], mean)
    with pytest.raises(TypeError, match=r"partial\(quantile, q=0.9\)"):
        REDUCERS["group_by"].create(functools.partial(quantile, 0.9))
    with pytest.raises(TypeError, match="'mean' is not one"):
        REDUCERS["group_by"].create("mean")


def test_group_by_streams_named_reducers_and_collects_other_functions():
    pairs = [("a", 3), ("a", 1), ("b", 2)]
    assert reduced("group_by", pairs, functools.partial(heapq.nlargest, 1)) == {"a": [3], "b": [2]}
    assert reduced("group_by", pairs, statistics.fmean) == {"a": 2.0, "b": 2.0}
    assert reduced("group_by", [("x", p) for p in pairs], functools.partial(group_by, reducer=sum)) == {
        "x": {"a": 4, "b": 2}
    }


def test_every_item_is_equally_likely_in_a_sample_also_after_merging():
    counts = collections.Counter()
    for _ in range(4000):
        counts.update(reduced("sample", range(10), 3, cut=[2]))
    expected = 4000 * 3 / 10
    chi_squared = sum((counts[i] - expected) ** 2 / expected for i in range(10))
    assert chi_squared < 40  # 9 degrees of freedom: 1 in 100,000


def test_sampling_leaves_the_random_numbers_of_the_job_alone():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    reduced("sample", range(100), 5)
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_reduce_starts_every_window_afresh():
    initial: list[int] = []
    fold = functools.partial(reduced, "reduce", [1, 2], lambda a, x: a.append(x) or a, initial)
    assert (fold(), fold(), initial) == ([1, 2], [1, 2], [])


def test_reduce_cannot_be_merged_and_says_so():
    assert not REDUCERS["reduce"].create(max).mergeable
    with pytest.raises(TypeError, match="cannot merge"):
        reduced("reduce", [1, 2], max, cut=[1])


def test_every_reducer_is_registered_under_the_name_of_its_function():
    assert {name: spec.plain.__name__ for name, spec in REDUCERS.items()} == {name: name for name in REDUCERS}


@pytest.mark.parametrize("one", [0.5, 3, np.float64(0.5), np.array(0.5), torch.tensor(0.5)])
@pytest.mark.parametrize("name", ["mean", "stdev", "median"])
def test_a_mean_of_one_value_says_where_there_are_several(name, one):
    with pytest.raises(TypeError, match=r"one value, not several.*mean\(e\.loss for e in events\)"):
        REDUCERS[name].plain(one)


NUMBERS = st.one_of(
    st.lists(st.floats(), min_size=1, max_size=90), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40),
    st.lists(st.sampled_from([math.nan, -0.0, 0.0, math.inf, -math.inf, 1e308]), min_size=1, max_size=40),
    st.lists(st.booleans(), min_size=1, max_size=40),
)  # fmt: skip


@pytest.mark.parametrize(("name", "args"), [
    *((name, ()) for name in ("len", "any", "all", "min", "max", "sum", "mean", "variance", "stdev", "median")),
    *((name, ()) for name in ("first", "last", "list", "tuple", "set", "sorted", "Counter")), ("nlargest", (3,)),
    ("quantile", ([0.1, 0.5],)), ("histogram", (5, (-3, 3))), ("sum", (2,)),
])  # fmt: skip
@many
@given(parts=st.lists(NUMBERS, min_size=1, max_size=4))
def test_arrays_of_items_reduce_as_the_items_do_one_by_one(name, args, parts):
    spec = REDUCERS[name]
    if not all(spec.takes([np.array(part)]) for part in parts):
        return  # a NaN is found in a set by its identity
    one_by_one, at_once = spec.create(*args), spec.create(*args)
    for part in parts:
        items = np.array(part)
        for x in items.tolist():
            one_by_one.add(x)
        at_once.extend(items)
    results = [repr(outcome(reducer.result)) for reducer in (one_by_one, at_once)]
    assert results[0] == results[1]


@pytest.mark.parametrize("bounds", [Bounds(), Bounds(keys=3)])
@pytest.mark.parametrize("reducer", [mean, max, list, len])
@many
@given(pairs=st.lists(st.tuples(st.integers(-3, 3), st.floats(-9, 9)), min_size=1, max_size=60), cut=st.integers(0, 60))
def test_columns_of_pairs_group_as_the_pairs_do_one_by_one(reducer, bounds, pairs, cut):
    one_by_one, at_once = (REDUCERS["group_by"].create(reducer, bounds=bounds) for _ in range(2))
    for pair in pairs:
        one_by_one.add(pair)
    for part in filter(None, (pairs[:cut], pairs[cut:])):
        at_once.extend(as_columns(part))
    results = [repr(outcome(made.result)) for made in (one_by_one, at_once)]
    assert results[0] == results[1]
    assert one_by_one.nbytes() == at_once.nbytes()
