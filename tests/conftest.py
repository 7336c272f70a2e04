"""What holds for every test: eight CPU devices, and property tests that draw the same every time.

There are two hypothesis profiles: `default`, and `slow`, which `make test-slow` chooses for the
tests that are marked as slow.
"""

import os

# Before anything imports JAX, which reads these once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
).strip()

import hypothesis

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
