import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import logax
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax.loggers._numbers import XAxis


def _runs(number):
    return [RunInfo(f"id-{i}", f"run {i}") for i in range(number)]


def _shown(batch, axis=None, stream=0):
    """By name, the pairs of x and value of one stream."""
    found = {}
    for part in (axis or XAxis()).metric_batches(batch):
        for table in part.tables:
            for x, row in table.rows(stream):
                for name, value in zip(table.names, row, strict=True):
                    found.setdefault(name, []).append((x, value))
    return found


def _one(values, real=None, **steps):
    """A batch of one run, from arrays (records, ...)."""
    values = jax.tree.map(lambda x: x[None], values)
    steps = {name: np.asarray(step)[None] for name, step in steps.items()}
    return RecordBatch.of(_runs(1), values, real=real, **steps)


def test_scalars_stand_at_the_step_called_step():
    shown = _shown(_one({"loss": np.float32([0.5, 0.25])}, update=[7, 8], step=[3, 4]))
    assert shown == {"loss": [(3, 0.5), (4, 0.25)], "update": [(3, 7), (4, 8)]}


def test_without_a_step_called_step_the_first_one_named_is_x():
    shown = _shown(_one({"loss": np.float32([0.5])}, update=[7], episode=[1]))
    assert shown == {"loss": [(7, 0.5)], "episode": [(7, 1)]}


def test_without_steps_the_records_of_a_key_are_counted_across_batches():
    axis, runs = XAxis(), _runs(2)
    first = RecordBatch.of(runs, {"a": np.zeros((2, 2)), "b": np.ones((2, 2))})
    second = RecordBatch.of(runs, {"b": np.ones((2, 1)), "c": np.zeros((2, 1))})
    assert _shown(first, axis) == {"a": [(0, 0.0), (1, 0.0)], "b": [(0, 1.0), (1, 1.0)]}
    assert _shown(second, axis, 1) == {"b": [(2, 1.0)], "c": [(0, 0.0)]}


def test_keys_with_the_same_x_share_a_table_and_others_do_not():
    axis, runs = XAxis(), _runs(1)
    list(axis.metric_batches(RecordBatch.of(runs, {"b": np.ones((1, 1))})))
    (part,) = axis.metric_batches(RecordBatch.of(runs, {k: np.zeros((1, 1)) for k in "abc"}))
    assert [table.names for table in part.tables] == [("a", "c"), ("b",)]


def test_counts_are_of_each_stream_and_only_of_real_records():
    axis, runs = XAxis(), _runs(2)
    real = np.array([[True, False, True], [False, True, False]])
    values = {"a": np.arange(6.0).reshape(2, 3)}
    assert _shown(RecordBatch.of(runs, values, real=real), axis, 0) == {"a": [(0, 0.0), (1, 2.0)]}
    assert _shown(RecordBatch.of(runs, values, real=real), axis, 1) == {"a": [(1, 4.0)]}
    assert _shown(RecordBatch.of(runs, values), axis, 0) == {"a": [(4, 0.0), (5, 1.0), (6, 2.0)]}


def test_lanes_of_one_run_are_counted_apart():
    axis, (run,) = XAxis(), _runs(1)
    for lane, expected in ((0, 0), (1, 0), (0, 1)):
        batch = RecordBatch.of([run], {"a": np.zeros((1, 1))})
        object.__setattr__(batch, "streams", (Stream(run, (lane,)),))
        assert _shown(batch, axis) == {"a": [(expected, 0.0)]}


def test_a_run_that_was_forgotten_leaves_its_place_to_others_with_a_count_of_zero():
    axis, (first, second, third) = XAxis(), _runs(3)
    list(axis.metric_batches(RecordBatch.of([first, second], {"a": np.zeros((2, 3))})))
    axis.forget([first])
    batch = RecordBatch.of([third, second], {"a": np.zeros((2, 1))})
    (part,) = axis.metric_batches(batch)
    assert part.tables[0].x.tolist() == [[0], [3]]


def test_a_step_that_is_not_whole_is_x_where_floats_are_fine():
    assert _shown(_one({"a": np.zeros(2)}, step=[0.5, 1.0])) == {"a": [(0.5, 0.0), (1.0, 0.0)]}


def test_floats_that_are_whole_become_integers():
    (part,) = XAxis(whole=True).metric_batches(_one({"a": np.zeros(2)}, step=np.float32([2, 3])))
    assert part.tables[0].x.dtype == np.int64
    assert part.tables[0].x.tolist() == [[2, 3]]


def test_a_step_that_is_not_whole_goes_beside_the_count_where_x_must_be_whole():
    axis, runs = XAxis(whole=True), _runs(1)
    for x, step in enumerate((0.5, 1.0, 1.5)):
        batch = RecordBatch.of(runs, {"a": np.zeros((1, 1))}, step=np.array([[step]]))
        assert _shown(batch, axis) == {"a": [(x, 0.0)], "step": [(x, step)]}


@pytest.mark.parametrize("step", [np.array([np.inf]), np.array([2**63], np.uint64)])
def test_what_64_bits_do_not_hold_is_not_whole(step):
    shown = _shown(_one({"a": np.zeros(1)}, step=step), XAxis(whole=True))
    assert shown == {"a": [(0, 0.0)], "step": [(0, step[0])]}


def test_a_step_with_the_name_of_a_key_gets_another():
    batch = _one({"episode": np.zeros(1), "step": np.ones(1)}, step=[5], episode=[9])
    assert _shown(batch) == {"episode": [(5, 0.0)], "step": [(5, 1.0)], "steps/episode": [(5, 9)]}
    (part,) = XAxis().metric_batches(batch)
    assert (part.step, part.step_name) == ("step", "steps/step")


def test_records_that_lack_a_step_have_the_next_one_or_a_count():
    least = np.iinfo(np.int32).min
    batch = _one(
        {"a": np.arange(3.0)}, step=np.int32([4, least, least]), episode=[1.0, 2.0, np.nan]
    )
    assert _shown(batch) == {"a": [(4, 0.0), (2, 1.0), (0, 2.0)], "episode": [(4, 1.0)]}


def test_small_arrays_go_element_by_element_and_large_ones_as_mean_min_and_max():
    batch = _one(
        {
            "v": np.array([[1.0, 2.0]]),
            "m": np.arange(4).reshape(1, 2, 2),
            "large": np.arange(17).reshape(1, 17),
            "none": np.zeros((1, 0)),
        }
    )
    assert {name: pairs[0][1] for name, pairs in _shown(batch).items()} == {
        "v/0": 1.0, "v/1": 2.0, "m/0,0": 0, "m/0,1": 1, "m/1,0": 2, "m/1,1": 3,
        "large/mean": 8.0, "large/min": 0, "large/max": 16,
    }  # fmt: skip


def test_leaves_of_a_pytree_are_named_by_their_path():
    assert list(_shown(_one({"g": {"w": np.zeros(1), "b": [np.zeros(1)]}}))) == ["g/b/0", "g/w"]


def test_two_values_with_one_name_are_both_shown():
    batch = _one({"a": {"0": np.array([1.0])}, "a/0": np.array([2.0])})
    assert _shown(batch) == {"a/0": [(0, 1.0)], "a/0~": [(0, 2.0)]}


def test_every_dtype_becomes_plain_numbers():
    values = {
        "bool": np.array([True]),
        "complex": np.array([1 + 2j]),
        "bfloat16": np.array([1.5], ml_dtypes.bfloat16),
        "float8": np.array([0.5], ml_dtypes.float8_e4m3fn),
        "int4": np.array([-3], ml_dtypes.int4),
        "half": np.array([0.25], np.float16),
        "long": np.array([2**64 - 1], np.uint64),
        "nan": np.array([np.inf]),
    }
    shown = {name: pairs[0][1] for name, pairs in _shown(_one(values)).items()}
    assert shown == {
        "bool": 1, "complex/real": 1.0, "complex/imag": 2.0, "bfloat16": 1.5, "float8": 0.5,
        "int4": -3, "half": 0.25, "long": 2**64 - 1, "nan": np.inf,
    }  # fmt: skip
    assert {type(value) for value in shown.values()} == {int, float}


def test_infinities_of_both_signs_have_no_mean_and_no_warning():
    shown = _shown(_one({"a": np.array([[np.inf, -np.inf, *np.zeros(20)]])}))
    assert np.isnan(shown["a/mean"][0][1])
    assert (shown["a/min"][0][1], shown["a/max"][0][1]) == (-np.inf, np.inf)


def test_random_keys_are_left_out():
    assert _shown(_one({"key": jax.random.split(jax.random.key(0), 2), "a": np.ones(2)})) == {
        "a": [(0, 1.0), (1, 1.0)]
    }


def test_histograms_and_images_are_given_apart():
    bins = logax.HistogramBins(np.ones((1, 2, 4)), np.ones((1, 2, 5)), np.zeros((1, 2), int))
    image = logax.ImagePixels(np.zeros((1, 2, 5, 6, 3), np.uint8))
    batch = RecordBatch.of(
        _runs(1), {"h": bins, "net": {"i": image}, "a": np.zeros((1, 2))}, step=np.array([[3, 4]])
    )
    (part,) = XAxis().metric_batches(batch)
    (h,), (i,) = part.histograms, part.images
    assert (h.name, h.value.counts.shape, h.value.edges.shape) == ("h", (1, 2, 4), (1, 2, 5))
    assert (i.name, i.value.pixels.shape, i.x.tolist()) == ("net/i", (1, 2, 5, 6, 3), [[3, 4]])
    assert [table.names for table in part.tables] == [("a",)]
    assert list(part.record_indices(0)) == [0, 1]


def test_only_real_records_have_histograms_and_images():
    image = logax.ImagePixels(np.zeros((2, 3, 5, 6), np.uint8))
    real = np.array([[True, False, True], [False, True, False]])
    (part,) = XAxis().metric_batches(RecordBatch.of(_runs(2), {"i": image}, real=real))
    assert [list(part.record_indices(stream)) for stream in (0, 1)] == [[0, 2], [1]]


def test_histograms_and_images_of_many_lanes_are_told_apart_by_index():
    bins = logax.HistogramBins(np.ones((1, 1, 2, 4)), np.ones((1, 1, 2, 5)), np.ones((1, 1, 2)))
    image = logax.ImagePixels(np.zeros((1, 1, 2, 5, 6), np.uint8))
    (part,) = XAxis().metric_batches(RecordBatch.of(_runs(1), {"h": bins, "i": image}))
    assert [x.name for x in part.histograms] == ["h/0", "h/1"]
    assert [(x.name, x.value.pixels.shape) for x in part.images] == [
        ("i/0", (1, 1, 5, 6)),
        ("i/1", (1, 1, 5, 6)),
    ]


def test_a_batch_without_records_has_no_parts():
    runs = _runs(2)
    nothing = np.zeros((2, 3), bool)
    assert list(XAxis().metric_batches(RecordBatch.of(runs, {"a": np.zeros((2, 0))}))) == []
    assert (
        list(XAxis().metric_batches(RecordBatch.of(runs, {"a": np.zeros((2, 3))}, real=nothing)))
        == []
    )


def test_what_stands_where_no_record_is_does_not_matter():
    real = np.array([[True, False]])
    batch = _one({"a": np.array([1.0, np.nan])}, real=real, step=np.array([2.0, np.nan]))
    assert _shown(batch, XAxis(whole=True)) == {"a": [(2, 1.0)]}
    batch = _one({"a": jnp.zeros(2)}, real=real, step=np.array([2.0, 0.5]))
    assert _shown(batch, XAxis(whole=True)) == {"a": [(2, 0.0)]}
