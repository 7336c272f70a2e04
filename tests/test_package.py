"""The package as a whole: what importing it loads, its public page, and what the tree may hold."""

import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import logax

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
