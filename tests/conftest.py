"""What holds for every test: eight CPU devices, and property tests that draw the same every time.

Where JAX has no bytecode, and Python may write none beside it, a folder that lives as long as the
tests holds it.

There are two hypothesis profiles: `default`, and `slow`, which `make test-slow` chooses for the
tests that are marked as slow.
"""

import atexit
import importlib.util
import os
import shutil
import tempfile

# Before anything imports JAX, which reads these once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
).strip()

import hypothesis

# Else each process that a test starts compiles the source of JAX anew, which takes longer than what
# is tested there. The workers of pytest-xdist inherit the folder.
_jax = importlib.util.find_spec("jax")
_has_bytecode = _jax is not None and os.path.exists(_jax.cached or "")
if not _has_bytecode and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="logax_bytecode_")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)

_SAME_EVERY_TIME = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,  # the first example of a shape pays for its compilation
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.register_profile("default", _SAME_EVERY_TIME, max_examples=150)
hypothesis.settings.register_profile("slow", _SAME_EVERY_TIME, max_examples=1000)
hypothesis.settings.load_profile("default")
