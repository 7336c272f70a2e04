"""What holds for every test: eight CPU devices, and property tests that draw the same every time.

Programs are compiled as always but for their machine code, which is made without optimizations:
most are run once, for a moment, and it takes a fifth of the suite's time to make it fast. Whoever
wants that sets the level in `XLA_FLAGS`, as `make test-slow` does.

There are two hypothesis profiles: `default`, and `slow`, which `make test-slow` chooses for the
tests that are marked as slow.
"""

import os

# Before anything imports JAX, which reads these once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        os.environ.get("XLA_FLAGS", ""),  # of two values the later one holds
        "--xla_force_host_platform_device_count=8",
    ]
)

import hypothesis

_SAME_EVERY_TIME = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,  # the first example of a shape pays for its compilation
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.register_profile("default", _SAME_EVERY_TIME, max_examples=60)
hypothesis.settings.register_profile("slow", _SAME_EVERY_TIME, max_examples=1000)
hypothesis.settings.load_profile("default")
