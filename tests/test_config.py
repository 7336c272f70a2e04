"""The config of a run: what may be given, and what becomes of it."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pydantic
import pytest

import logax
from logax._serialization.plain_config import plain_config
from logax.loggers import SaveLogger
from logax.testing import MemoryLogger


class Activation(enum.Enum):
    RELU = "relu"


class Size(enum.IntEnum):
    SMALL = 8


class Kind(enum.StrEnum):
    MLP = "mlp"


@dataclasses.dataclass(frozen=True)
class Net:
    width: Any
    activation: Activation = Activation.RELU


class Point(NamedTuple):
    x: float
    y: float


@attrs.define
class Settings:
    width: int


class Model(pydantic.BaseModel):
    width: int = 1


class Attributes(Mapping[str, Any]):
    """A mapping whose items are attributes too."""

    def __init__(self, **items: Any) -> None:
        self.__dict__.update(items)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)


class Lookalike:
    """What `dict(x)` takes, and no mapping by its type."""

    def keys(self) -> list[str]:
        return ["a", "b"]

    def __getitem__(self, name: str) -> str:
        return name * 2


class AsArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(2)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (None, {}),
        ({}, {}),
        (types.MappingProxyType({"a": {}}), {"a": {}}),
        (Net(8), {"width": 8, "activation": "RELU"}),
        (Attributes(net=Attributes(width=8), b=2), {"net": {"width": 8}, "b": 2}),
        (Lookalike(), {"a": "aa", "b": "bb"}),
        (Point(1.0, 2.0), {"x": 1.0, "y": 2.0}),
        (
            {"nets": [Net(1), (types.MappingProxyType({"p": Path("a") / "b"}), None)]},
            {"nets": [{"width": 1, "activation": "RELU"}, ({"p": "a/b"}, None)]},
        ),
        ({"s": Size.SMALL, "k": Kind.MLP}, {"s": 8, "k": "mlp"}),
        ({1: "one", 0.5: "half", Kind.MLP: 3}, {"1": "one", "0.5": "half", "mlp": 3}),
        ({"n": np.float32(0.5), "b": np.True_}, {"n": np.float32(0.5), "b": np.True_}),
        ({"z": 1j, "s": np.bytes_(b"x")}, {"z": 1j, "s": np.bytes_(b"x")}),
    ],
)
def test_a_config_is_turned_into_plain_values(given: Any, plain: Any) -> None:
    found = plain_config("f", given)
    assert found == plain
    assert repr(found) == repr(plain)  # a number, say, and no member of an enumeration


class AsJaxArray:
    def __jax_array__(self) -> Any:
        return jnp.arange(2)


class AsObjects:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([print])


@pytest.mark.parametrize(
    "given",
    [AsArray(), AsJaxArray(), jnp.arange(2), np.arange(2), np.arange(2).astype(jnp.bfloat16)],
)
def test_an_array_and_what_gives_one_are_arrays(given: Any) -> None:
    assert plain_config("f", {"x": given})["x"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            3,
            TypeError,
            "`SaveLogger.init` takes as `config` a mapping or a dataclass, and got 3 of type "
            '`int`. Write `config={"rate": 0.1}`, or `config=vars(args)`.',
        ),
        (argparse.Namespace(rate=1), TypeError, "or `config=vars(args)`."),
        (Net, TypeError, "takes as `config` a mapping or a dataclass"),
        (
            {"net": [1, {"f": print}]},
            TypeError,
            "takes strings, numbers and arrays, and lists, mappings and dataclasses of them, and "
            "got <built-in function print> of type `builtin_function_or_method` as "
            "`config['net'][1]['f']`. Turn it into one of these: `str(value)`, or `vars(value)`.",
        ),
        (
            {"raw": [b"x"]},
            TypeError,
            "got b'x' of type `bytes` as `config['raw'][0]`. Turn it into one of these: "
            "`value.decode()`, or `value.hex()`.",
        ),
        (Settings(1), TypeError, "or `config=attrs.asdict(args)`."),
        ({"net": Settings(1)}, TypeError, "of these: `str(value)`, or `attrs.asdict(value)`."),
        (Model(), TypeError, "or `config=args.model_dump()`."),
        (
            {"net": {"x": np.array([print, 1])}},
            TypeError,
            "and got array([<built-in function print>, 1], dtype=object) of type `ndarray` as "
            "`config['net']['x']`. Turn it into one of these: `value.tolist()`.",
        ),
        (
            {"x": np.zeros(1, "i4,f4")},
            TypeError,
            " of type `ndarray` as `config['x']`. Turn it into one of these: `value.tolist()`.",
        ),
        ({"x": np.zeros(1, "i4,f4")[0]}, TypeError, " of type `void` as `config['x']`. Turn "),
        ({"x": AsObjects()}, TypeError, " of type `AsObjects` as `config['x']`. Turn it into one"),
        (
            {"a": {(1, 2): 3}},
            TypeError,
            "takes strings and numbers as keys, and got (1, 2) of type `tuple` in `config['a']`.",
        ),
        (
            {1: 2, "1": 3},
            ValueError,
            "got two keys that are '1' as a string, in `config`: {1: 2, '1': 3} of type `dict`.",
        ),
    ],
)
def test_what_cannot_be_a_config_is_told(given: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        plain_config("SaveLogger.init", given)
    assert text in str(caught.value)


def test_a_config_that_holds_itself_is_told() -> None:
    given: dict[str, Any] = {}
    given["me"] = given
    with pytest.raises(ValueError, match=r"nested at most 100 deep, and `config\['me'\]\['me'\]"):
        plain_config("f", given)


def test_traced_values_of_any_config_are_kept_for_each_lane(tmp_path: Path) -> None:
    logger = MemoryLogger()
    given: dict[str, Any] = {"path": tmp_path, "size": Size.SMALL}

    @jax.jit
    @jax.vmap
    def begin(key: Any, width: Any) -> Any:
        config = {**given, "nets": [Net(width)], "area": width.prod()}
        return logger.init(key, config=types.MappingProxyType(config))

    begin(jax.random.split(jax.random.key(0), 2), jnp.array([[1, 2], [3, 4]]))
    logax.flush()
    for run, width in zip(logger.runs, ([1, 2], [3, 4]), strict=True):
        assert list(run.config) == ["path", "size", "nets", "area"]  # not sorted
        (net,) = run.config["nets"]
        assert list(net) == ["width", "activation"]
        assert net.pop("width").tolist() == width
        assert run.config == {
            "path": str(tmp_path),
            "size": 8,
            "nets": [{"activation": "RELU"}],
            "area": width[0] * width[1],
        }


def test_init_can_be_mapped_over_keys_and_configs() -> None:
    logger = MemoryLogger()
    keys = jax.random.split(jax.random.key(0), 2)
    jax.vmap(lambda key, config: logger.init(key, config=config))(keys, {"rate": jnp.arange(2.0)})
    jax.vmap(lambda rate: logger.init(keys[0], config={"rate": rate}))(jnp.arange(2.0))
    jax.vmap(lambda key: logger.init(key, config={}))(keys)
    logax.flush()
    configs = [run.config for run in logger.runs]
    assert configs == [{"rate": 0.0}, {"rate": 1.0}] * 2 + [{}] * 2


def test_configs_are_stored_and_read_back(tmp_path: Path) -> None:
    logger = SaveLogger(tmp_path)
    with logger.run("a", Net(np.int64(3), 1 + 2j)):
        pass
    ordered = {"b": 1, "a": {"z": jnp.arange(2), "y": jnp.array(3)}}
    logger.init(jax.random.key(0), name="d", config=ordered)
    with logger.loop(lambda x: {"x": x}, name="b", config=Attributes(path=tmp_path)) as loop:
        loop.log(1.0, 0)
    logger.close()
    logax.save({"x": np.zeros(1)}, tmp_path, name="c", config=Net(Size.SMALL))
    runs = logax.load(tmp_path)
    assert runs.find("a").config == {"width": 3, "activation": 1 + 2j}
    assert runs.find("b").config == {"path": str(tmp_path)}
    assert runs.find("c").config == {"width": 8, "activation": "RELU"}
    assert list(runs.find("a").config) == ["width", "activation"]
    assert repr(runs.find("d").config) == (
        "{'b': 1, 'a': {'z': array([0, 1], dtype=int32), 'y': 3}}"
    )


def test_dictionaries_that_answer_to_every_attribute_are_mappings() -> None:
    class Lenient(dict[str, Any]):
        __getattr__ = dict.get

    class Strict(dict[str, Any]):
        __getattr__ = dict.__getitem__

    config = {"lenient": Lenient(rate=1), "strict": Strict(deep=Strict(rate=2))}
    wanted = {"lenient": {"rate": 1}, "strict": {"deep": {"rate": 2}}}
    assert plain_config("run", config) == wanted
