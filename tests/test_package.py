"""The package as a whole: what importing it loads, its public page, and what the tree may hold."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType

import pytest

import logax
import logax.loggers
import logax.loop
import logax.storage
import public_api

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL = {
    "equinox",
    "flax",
    "h5py",
    "matplotlib",
    "mlflow",
    "pandas",
    "rich",
    "tensorboardX",
    "tqdm",
    "trackio",
    "wandb",
    "xarray",
}


def tracked_files() -> list[Path]:
    # The clone may belong to somebody else than who runs the tests, which git takes for a danger.
    command = "git -c safe.directory=* ls-files --cached --others --exclude-standard -z"
    listing = subprocess.run(
        command.split(), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def test_importing_logax_loads_no_optional_package() -> None:
    program = "import sys, logax; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "logax" in loaded
    assert OPTIONAL & set(loaded) == set()


def loaded_by(program: str) -> set[str]:
    """Return the packages that a program has loaded at its end."""
    program += "\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_logax_and_its_packages_loads_neither_jax_nor_numpy() -> None:
    packages = "logax, logax.loggers, logax.loop, logax.storage"
    assert {"jax", "numpy", "sqlite3"} & loaded_by(f"import {packages}") == set()


def test_names_are_loaded_when_they_are_used() -> None:
    assert "sqlite3" not in loaded_by("import logax\nlogax.spool, logax.tap, logax.log")
    assert {"h5py", "rich", "tqdm"} & loaded_by("from logax.loggers import SaveLogger") == set()


def test_threads_may_use_names_for_the_first_time_at_once() -> None:
    program = """
import logax
from concurrent.futures import ThreadPoolExecutor
names = ["load", "log", "spool", "tap", "EveryNStep", "Run", "Histogram", "flush"]
with ThreadPoolExecutor(8) as pool:
    assert [each.__name__ for each in pool.map(lambda n: getattr(logax, n), names)] == names
"""
    assert "jax" in loaded_by(program)


def test_a_name_that_is_not_there_is_an_error_as_usual() -> None:
    with pytest.raises(AttributeError, match="module 'logax' has no attribute 'spol'"):
        logax.spol  # type: ignore[attr-defined]  # noqa: B018
    assert {"spool", "loggers", "__version__"} <= set(dir(logax))


PACKAGES = [logax, logax.loggers, logax.loop, logax.storage]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_stubs_list_what_packages_export(package: ModuleType) -> None:
    stub = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname: node.module for node in imports for alias in node.names}
    names.pop("__version__", None)
    names = {name: module for name, module in names.items() if module != "logax"}
    assert sorted(str(name) for name in names) == sorted(package.__all__)
    for name, module in names.items():
        assert getattr(package, str(name)) is getattr(import_module(str(module)), str(name))


@pytest.mark.parametrize(
    "folder",
    [
        path.parent
        for path in sorted((ROOT / "src" / "logax" / "_cli").parent.glob("*/**/__init__.py"))
    ],
    ids=lambda folder: folder.name,
)
def test_every_package_lists_its_files(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    listed = set(re.findall(r"`(\w+)(?:\.py|/)?`", text))
    assert names <= listed


def test_importing_logax_starts_no_device() -> None:
    program = (
        "import logax, jax, os\n"
        "jax.config.update('jax_platforms', 'none such')\n"  # refused once devices have started
        "try:\n    jax.devices()\n"
        "except RuntimeError as error:\n    print('none such' in str(error))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ["True"]


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files(logax).joinpath("py.typed").is_file()


def test_the_package_and_its_metadata_agree_on_the_version() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert logax.__version__ == metadata["project"]["version"]


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert list(logax.__all__) == sorted(logax.__all__)
    assert [name for name in logax.__all__ if not hasattr(logax, name)] == []


def test_the_public_page_is_short() -> None:
    page = ROOT / "src" / "logax" / "__init__.py"
    assert len(page.read_text().splitlines()) < 80


def test_only_the_compat_module_touches_the_private_modules_of_jax() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    touching = [path.name for path in sources if "jax._src" in text_of(path)]
    assert set(touching) <= {"_compat.py"}


def test_no_tracked_file_names_a_registry_or_somebodys_home() -> None:
    # Written in pieces, so that this file passes its own test.
    registries = ["py" + "pi.org", "python" + "hosted.org", "conda." + "anaconda"]
    homes = [r"/ho" + r"me/\w", r"/Us" + r"ers/\w", r"/ro" + r"ot/"]
    forbidden = re.compile("|".join([*map(re.escape, registries), *homes]))
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        if (match := forbidden.search(text_of(path)))
    ]
    assert found == []


def test_no_tracked_file_is_larger_than_a_megabyte() -> None:
    large = [str(path.relative_to(ROOT)) for path in tracked_files() if path.stat().st_size > 1e6]
    assert large == []


def test_the_public_names_and_signatures_are_those_on_record() -> None:
    """After an intended change, run `python tools/public_api.py`."""
    recorded = (ROOT / "tests" / "public_api.txt").read_text()
    assert public_api.describe_package().splitlines() == recorded.splitlines()
