"""`logdict` as a dictionary and as a pytree."""

from __future__ import annotations

import copy
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from logax import logdict, stepdict
from logax._logdict.logdict import leaf_name, missing_step

STEP = jnp.arange(4)


def example() -> logdict:
    return logdict(
        {"loss": jnp.array([3.0, 2.0, 1.0, 0.5]), "grad": {"w": jnp.ones((4, 2)), "b": STEP}},
        steps={"step": {"loss": STEP, "grad": STEP}, "update": {"loss": STEP * 10}},
        site={"loss": ("train.py:12",)},
    )


def ragged() -> logdict:
    """Return logs of two lanes with one and three records."""
    values = {"x": jnp.array([[5.0, 0.0, 0.0], [6.0, 7.0, 8.0]])}
    steps = {"step": {"x": jnp.array([[0, 0, 0], [0, 1, 2]])}}
    return logdict(values, steps=steps, count={"x": jnp.array([1, 3])}, rank={"x": 0})


def test_it_is_a_dictionary_of_arrays() -> None:
    logs = example()
    assert isinstance(logs, dict)
    assert list(logs) == ["loss", "grad"]
    assert len(logs) == 2
    assert "loss" in logs
    assert logs["loss"][3] == 0.5
    assert logs.get("nothing", 1) == 1


def test_an_unknown_key_says_which_there_are() -> None:
    with pytest.raises(KeyError, match="'los' was not logged; there is 'loss', 'grad'"):
        example()["los"]


def test_steps_are_found_by_name_and_key() -> None:
    logs = example()
    assert logs.steps["update"]["loss"].tolist() == [0, 10, 20, 30]
    assert logs.step["grad"].tolist() == [0, 1, 2, 3]
    assert list(logs.steps) == ["step", "update"]
    assert list(logs.steps["update"]) == ["loss"]


@pytest.mark.parametrize("given", [STEP, [0, 1, 2, 3]])
def test_an_array_of_steps_is_that_of_all_keys(given: object) -> None:
    logs = logdict({"a": STEP * 2, "b": {"c": jnp.ones((4, 2))}}, steps={"step": given})
    assert {key: x.tolist() for key, x in logs.step.items()} == {key: [0, 1, 2, 3] for key in "ab"}
    assert len(jax.tree.leaves(logs)) == 3  # the keys share it
    with pytest.raises(ValueError, match=r"the step 'step' of 'b' has the shape \(4,\)"):
        logdict({"a": STEP, "b": STEP[:3]}, steps={"step": given})
    with pytest.raises(TypeError, match=r'mapping from .* Write `steps=\{"step": array\}`\.$'):
        logdict({"a": STEP}, steps=given)


def test_steps_can_be_completed() -> None:
    assert {"step", "update", "reduce"} <= set(dir(example()))


def test_an_unknown_attribute_lists_the_steps() -> None:
    with pytest.raises(AttributeError, match=r"'epoch'.*steps are 'step', 'update'"):
        example().epoch  # noqa: B018


def test_one_that_is_not_made_yet_has_no_attributes_either() -> None:
    with pytest.raises(AttributeError, match="_layout"):
        _ = logdict.__new__(logdict).loss


def test_an_unknown_step_lists_the_steps() -> None:
    with pytest.raises(KeyError, match="there is 'step', 'update'"):
        example().steps["epoch"]


def test_a_step_named_like_a_method_of_dict_has_the_long_form_only() -> None:
    logs = example()
    with pytest.raises(TypeError, match=r'Write `logs.steps\["update"\]\["loss"\]`'):
        logs.update["loss"]
    logs.update({"new": jnp.zeros(4)})
    assert list(logs) == ["loss", "grad", "new"]


@pytest.mark.parametrize("name", ["items", "reduce", "filter", "count", "last", "site", "slice"])
def test_no_attribute_is_taken_for_a_step_in_silence(name: str) -> None:
    logs = logdict({"x": jnp.zeros(2)}, steps={name: {"x": jnp.arange(2)}})
    with pytest.raises(TypeError, match=rf'logs.steps\["{name}"\]\["x"\]'):
        getattr(logs, name)["x"]
    assert logs.steps[name]["x"].tolist() == [0, 1]
    assert next(iter(logs.items()))[0] == "x"
    assert logs.count.get("x") == 2
    assert len(logs.slice[:1]["x"]) == 1


def test_steps_cannot_be_changed_in_place() -> None:
    logs = example()
    with pytest.raises(TypeError, match=r"logdict\(logs, steps=...\)"):
        logs.steps["step"]["loss"] = STEP
    changed = logdict(logs, steps={"epoch": {"loss": STEP}})
    assert list(changed.steps) == ["epoch"]
    assert changed.site["loss"] == ("train.py:12",)


def test_counts_follow_from_shapes_where_they_are_not_given() -> None:
    logs = example()
    assert logs.count["loss"] == 4
    assert logs.count["loss"].dtype == np.int32
    assert dict(logs.count) == {"loss": 4, "grad": 4}
    lanes = jax.tree.map(lambda x: jnp.stack([x, x, x]), logs)
    assert lanes.count["grad"].tolist() == [4, 4, 4]


def test_deleting_a_key_takes_all_of_it() -> None:
    logs = example()
    del logs["loss"]
    assert list(logs.steps) == ["step"]
    assert list(logs.count) == ["grad"]
    assert len(jax.tree.leaves(logs)) == 3
    assert logs.pop("grad")["b"].tolist() == [0, 1, 2, 3]
    assert logs.pop("grad", None) is None
    assert not logs
    with pytest.raises(KeyError):
        del logs["grad"]


def test_popitem_setdefault_and_clear_work_as_for_a_dictionary() -> None:
    logs = example()
    assert logs.setdefault("loss", None)[0] == 3.0
    assert logs.setdefault("new", jnp.zeros(4)).tolist() == [0, 0, 0, 0]
    assert logs.popitem()[0] == "new"
    logs.clear()
    assert logs == logdict()
    with pytest.raises(KeyError):
        logs.popitem()


def test_a_new_value_of_as_many_records_keeps_the_steps_of_its_key() -> None:
    logs = example()
    logs["grad"] = jnp.sum(logs["grad"]["w"], axis=-1)
    assert logs.steps["step"]["grad"] is logs.steps["step"]["loss"]
    logs["loss"] = jnp.zeros(7)
    assert "loss" not in logs.steps["step"]
    assert logs.site["loss"] == ()
    assert logs.count["loss"] == 7


def test_an_assigned_value_has_the_lanes_of_the_others() -> None:
    logs = ragged()
    logs["x"] = logs["x"][..., None] * jnp.ones(2)
    assert logs.last["x"].tolist() == [[5, 5], [8, 8]]
    logs["y"] = jnp.zeros((2, 9))
    assert logs.count["y"].tolist() == [9, 9]
    with pytest.raises(ValueError, match=r"begin with the lanes of the other keys, \(2,\)"):
        logs["z"] = jnp.zeros(9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": 1.0}, r"got 1.0 of type `float` for 'x'. Write one record as `jnp.asarray"),
        ({"x": [1.0, 2.0]}, "for 'x/0'"),
        ({"x": "text"}, "'text' of type `str`"),
        ({1: jnp.zeros(2)}, "strings as keys, and got 1"),
    ],
)
def test_what_is_no_column_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        logdict(wrong)


def test_arrays_that_disagree_are_refused() -> None:
    x = jnp.zeros(3)
    with pytest.raises(ValueError, match=r"'x' with \(3,\), and x/1 has the shape \(4,\)"):
        logdict({"x": (x, jnp.zeros(4))})
    with pytest.raises(ValueError, match=r"the step 'i' of 'x' has the shape \(2,\)"):
        logdict({"x": x}, steps={"i": {"x": jnp.zeros(2)}})
    with pytest.raises(ValueError, match=r"`count` of 'x' has the shape of its lanes, \(\)"):
        logdict({"x": x}, count={"x": jnp.zeros(2)})
    with pytest.raises(ValueError, match="ranks of 'y', and has 'x'"):
        logdict({"x": x}, rank={"y": 0})
    with pytest.raises(ValueError, match="needs a `count` for 'x'"):
        logdict({"x": None})


def test_a_shared_step_column_is_one_leaf_and_stays_shared() -> None:
    keys = [f"k{i}" for i in range(10)]
    logs = logdict({k: jnp.zeros(4) for k in keys}, steps={"step": dict.fromkeys(keys, STEP)})
    assert len(jax.tree.leaves(logs)) == 11
    for same in (
        jax.jit(lambda x: x)(logs),
        jax.device_get(logs),
        logs + logs,
        logs.slice[1:3],
        logs.reduce("mean"),
        logs.prefix("a/"),
        copy.deepcopy(logs),
    ):
        columns = same.steps["step"].values()
        assert len({id(column) for column in columns}) == 1
        assert len(jax.tree.leaves(same)) == 11


def test_a_shared_count_is_one_leaf_and_stays_shared() -> None:
    count = jnp.int32(2)
    logs = logdict({"a": jnp.zeros(4), "b": jnp.ones(4)}, count={"a": count, "b": count})
    assert len(jax.tree.leaves(logs)) == 3
    for same in (logs.slice[1:], jax.jit(lambda x: x + x)(logs), logs.reduce("sum")):
        assert same.count["a"] is same.count["b"]


def test_key_paths_name_the_keys() -> None:
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(example())]
    assert paths == [
        "['loss']",
        "['grad']['b']",
        "['grad']['w']",
        ".steps['step']['loss']",
        ".steps['update']['loss']",
    ]
    assert (
        jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(ragged())[2][0]) == ".count['x']"
    )


def test_structures_differ_by_keys_order_rank_and_steps_and_not_by_sites() -> None:
    def structure(*keys: str, step: str = "i", site: str = "a:1", rank: int = 0) -> object:
        return jax.tree.structure(
            logdict(
                {key: jnp.zeros((2, 2)) for key in keys},
                steps={step: dict.fromkeys(keys, jnp.zeros((2, 2)))},
                site=dict.fromkeys(keys, (site,)),
                rank=dict.fromkeys(keys, rank),
            )
        )

    same = structure("a", "b", site="b:2")
    assert structure("a", "b") == same
    assert hash(structure("a", "b")) == hash(same)
    others = [structure("b", "a"), structure("a", "b", rank=1), structure("a", "b", step="j")]
    assert all(other != same for other in others)


def test_any_object_can_stand_for_a_leaf() -> None:
    logs = example()
    leaves, structure = jax.tree.flatten(logs)
    for thing in (None, object(), 0, jax.ShapeDtypeStruct((4,), jnp.float32)):
        again = jax.tree.unflatten(structure, [thing] * len(leaves))
        assert isinstance(repr(again), str)
        assert again["loss"] is again["grad"]["b"] is again.steps["step"]["loss"] is thing
    one_for_all = jax.tree.unflatten(structure, [object()] * len(leaves))
    assert jax.tree.structure(one_for_all) == structure


def test_axes_can_be_given_as_a_tree() -> None:
    lanes = jax.tree.map(lambda x: jnp.stack([x, x + 1]), example())
    axes = jax.tree.map(lambda _: 0, lanes)
    for in_axes in (0, (axes,)):
        last = jax.vmap(lambda logs: logs.last["loss"], in_axes=in_axes)(lanes)
        assert last.tolist() == [0.5, 1.5]


def test_it_goes_through_scan_cond_and_eval_shape() -> None:
    logs = example()
    carried, _ = jax.lax.scan(lambda c, _: (jax.tree.map(jnp.add, c, logs), None), logs, None, 2)
    assert carried["loss"].tolist() == [9, 6, 3, 1.5]
    chosen = jax.lax.cond(True, lambda: logs, lambda: jax.tree.map(jnp.zeros_like, logs))
    assert chosen == logs
    assert jax.eval_shape(lambda: logs)["grad"]["w"].shape == (4, 2)


def test_steps_are_a_tree_of_their_own() -> None:
    doubled = jax.jit(lambda logs: jax.tree.map(lambda x: x * 2, logs.steps))(example())
    assert isinstance(doubled, stepdict)
    assert doubled["step"]["grad"].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("logs", [example(), ragged()])
def test_copies_are_equal_and_keep_everything(logs: logdict) -> None:
    key = next(iter(logs))
    for same in (logs.copy(), copy.copy(logs), copy.deepcopy(logs), logdict(logs)):
        assert type(same) is logdict
        assert same == logs
        assert same.site[key] == logs.site[key]
        assert jax.tree.structure(same) == jax.tree.structure(logs)
    shallow = logs.copy()
    del shallow[key]
    assert key in logs


def test_it_survives_pickling_by_the_user() -> None:
    again = pickle.loads(pickle.dumps(jax.device_get(example())))  # noqa: S301
    assert again == example()
    assert hash(jax.tree.structure(again)) == hash(jax.tree.structure(example()))


def test_equality_compares_values_steps_and_counts_but_no_padding() -> None:
    assert example() == example()
    assert example() != example().slice[:3]
    assert example() != logdict(example(), steps={})
    assert logdict({"x": jnp.array([jnp.nan])}) == logdict({"x": jnp.array([jnp.nan])})
    padded = logdict(ragged(), count={"x": jnp.array([1, 2])})
    changed = padded.copy()
    changed["x"] = changed["x"].at[1, 2].set(99).at[0, 1].set(99)
    assert padded == changed
    assert padded != ragged()


def test_merging_takes_everything_of_a_key_from_the_right() -> None:
    left, right = example(), logdict({"loss": jnp.zeros(2)}, steps={"epoch": {"loss": STEP[:2]}})
    both = left | right
    assert list(both) == ["loss", "grad"]
    assert both["loss"].tolist() == [0, 0]
    assert list(both.steps) == ["step", "epoch"]
    assert list(both.steps["step"]) == ["grad"]
    assert (left | {"new": jnp.zeros(3)}).count["new"] == 3
    assert list({"new": jnp.zeros(3)} | left) == ["new", "loss", "grad"]
    left |= right
    assert left == both


def test_prefix_goes_before_every_key_as_it_is() -> None:
    logs = example().prefix("train/")
    assert list(logs) == ["train/loss", "train/grad"]
    assert logs.steps["update"]["train/loss"].tolist() == [0, 10, 20, 30]
    assert logs.site["train/loss"] == ("train.py:12",)


def test_filter_takes_keys_and_leaves_by_glob() -> None:
    logs = example()
    assert list(logs.filter("l*")) == ["loss"]
    weights = logs.filter("grad/w")
    assert weights["grad"]["b"] is None
    assert weights["grad"]["w"].shape == (4, 2)
    assert weights.last["grad"]["w"].tolist() == [1, 1]
    assert list(logs.filter(["*/b", "loss"])) == ["loss", "grad"]
    assert jax.tree.structure(logs.filter("grad")["grad"]) == jax.tree.structure(logs["grad"])
    assert logs.filter("nothing") == logdict()


def test_filter_takes_a_predicate_of_keys_and_values() -> None:
    logs = example()
    small = logs.filter(lambda key, value: sum(x.size for x in jax.tree.leaves(value)) < 5)
    assert list(small) == ["loss"]
    assert small.steps["update"]["loss"] is logs.steps["update"]["loss"]
    assert small.site["loss"] == ("train.py:12",)
    assert logs.filter(lambda key, _: key.startswith("g"))["grad"]["b"].tolist() == [0, 1, 2, 3]
    assert logs.filter(lambda key, _: False) == logdict()
    with pytest.raises(TypeError, match=r"`logs\.filter` takes .*keys.* and got 3"):
        logs.filter(3)  # type: ignore[arg-type]


def test_filter_follows_the_rank_of_the_leaf_that_is_left() -> None:
    lanes = jax.tree.map(lambda x: jnp.stack([x, x]), example())
    assert lanes.filter("grad/w").count["grad"].tolist() == [4, 4]


def test_leaves_are_named_by_path() -> None:
    assert list(example().leaves()) == ["loss", "grad/b", "grad/w"]
    clash = logdict({"a/b": jnp.zeros(2), "a": {"b": jnp.zeros(2)}})
    with pytest.raises(ValueError, match="called 'a/b'"):
        clash.leaves()


def test_names_of_leaves_join_keys_attributes_and_indices() -> None:
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    paths = jax.tree_util.tree_leaves_with_path({"layers": [linear]})
    assert [leaf_name("grad", path) for path, _ in paths] == [
        "grad/layers/0/weight",
        "grad/layers/0/bias",
    ]
    assert leaf_name("loss", ()) == "loss"


def test_what_stands_for_no_step_depends_on_the_dtype() -> None:
    assert missing_step(jnp.int32) == -(2**31)
    assert missing_step(np.uint8) == 255
    assert np.isnan(missing_step(jnp.bfloat16))
    assert missing_step(jnp.bfloat16).dtype == jnp.bfloat16
    with pytest.raises(TypeError, match="got bool"):
        missing_step(bool)


def test_a_leaf_in_place_of_its_key_is_told() -> None:
    with pytest.raises(KeyError, match=r"'grad/w' is a leaf: write `logs\['grad'\]` or `logs.lea"):
        example()["grad/w"]


def test_a_value_without_arrays_is_not_assigned() -> None:
    logs = example()
    with pytest.raises(TypeError, match=r"`logs\['new'\] = value` takes arrays, and got {'a': No"):
        logs["new"] = {"a": None}
    assert list(logs) == ["loss", "grad"]


def test_one_record_is_told_from_a_column() -> None:
    one = jax.tree.map(lambda x: x[0], example())
    assert one["loss"] == 3.0
    with pytest.raises(ValueError, match=r"shape \(\) have lost their record axis here"):
        one.count["loss"]


def test_what_keys_have_is_shown_and_listed() -> None:
    x, none = np.array([1, 2], np.int32), np.zeros(0, np.float32)
    logs = logdict({"x": x, "none": none}, site={"x": ("f.py:1",)})
    assert repr(logs.site) == "{'x': ('f.py:1',), 'none': ()}"
    assert repr(logs.last) == f"{{'x': {np.int32(2)!r}, 'none': none}}"
    assert list(logs.count.values()) == [2, 0]
    assert logdict.reduce(logs, "count")["x"].tolist() == [2]


def test_steps_survive_pickling_by_the_user() -> None:
    steps = example().steps
    copied = pickle.loads(pickle.dumps(steps))  # noqa: S301
    assert type(copied) is type(copied["step"]) is stepdict
    assert copied["update"]["loss"].tolist() == steps["update"]["loss"].tolist()


def test_its_structure_can_be_hashed_and_read() -> None:
    one, two = (jax.tree.structure(logs) for logs in (example(), example()))
    assert hash(one) == hash(two)
    assert len({one.node_data(), two.node_data()}) == 1
    assert "loss, grad; steps step, update" in str(one)
    assert "x; steps none" in str(jax.tree.structure(logdict({"x": STEP})))


def test_values_of_another_structure_or_other_steps_are_not_equal() -> None:
    x = jnp.zeros(2)
    assert logdict({"x": x}) != logdict({"x": (x,)})
    assert logdict({"x": x}) != logdict({"x": x}, steps={"i": {"x": x}})


def test_only_mappings_are_merged() -> None:
    assert (example() | {"loss": STEP})["loss"].tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="unsupported operand"):
        example() | 3  # type: ignore[operator]
