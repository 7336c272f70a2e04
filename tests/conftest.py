"""What holds for every test: eight CPU devices, quick compilations, the same draws each time.

There are two hypothesis profiles: `default`, and `slow`, which `make test-slow` chooses for the
tests that are marked as slow.

Most of the time of the suite goes into compiling programs that run once or twice. So LLVM does not
optimize them, which changes neither the program that JAX traces nor what XLA fuses. Tests that
compare results bit for bit or look at the compiled program ask for the fixture `optimized`, and
`make test-slow` and `make campaigns` compile everything as users do. What was compiled is kept in
`.pytest_cache/compiled`, where the other workers and the next run find it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

# Before anything imports JAX, which reads these once. Processes that tests start inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
).strip()
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import hypothesis
import jax
import pytest

_SAME_EVERY_TIME = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,  # the first example of a shape pays for its compilation
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.register_profile("default", _SAME_EVERY_TIME, max_examples=60)
# Programs take seconds to compile, and to make one smaller takes hundreds of them.
_AS_FOUND = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.shrink]
hypothesis.settings.register_profile("slow", _SAME_EVERY_TIME, max_examples=1000, phases=_AS_FOUND)
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs, for this process only: others may be killed while they write one."""
    folder = config.rootpath / ".pytest_cache" / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_finish() -> None:
    """Take what was imported out of garbage collections, which would go through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def optimized() -> Iterator[None]:
    """Compile as users do."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
