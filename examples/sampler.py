"""Watch a NUTS sampler of blackjax while it runs: acceptance, step size, tree size, divergences.

The model is the one of the eight schools, in the form that is hard to sample: where the spread
between schools is small, the posterior is a funnel too narrow for any one step size. Sixteen chains
warm up and draw in one compiled call. Two calls of `log` say all there is to see: one in the loop
that draws, and one in the function that blackjax calls in every step of its window adaptation.

A table in the terminal shows them while the chains run. `spool` returns the same as arrays, one row
for each chain, and the picture shows what they are good for: the divergences sit in the funnel.

    pip install blackjax matplotlib rich
    python examples/sampler.py [--warmup 500] [--steps 500] [--chains 16] [--output sampler.png]
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import potential_scale_reduction
from jax import Array, lax, random
from jax.scipy.stats import cauchy, norm
from matplotlib.figure import Figure

import logax
from logax.loggers import ConsoleLogger

EFFECT = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])  # of coaching, school by school
ERROR = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TARGET = 0.8  # the acceptance rate that the warm-up aims at

Position = dict[str, Array]


def log_density(position: Position) -> Array:
    """The posterior of what coaching does in each school, and of how much the schools differ."""
    mean, log_spread, school = position["mean"], position["log_spread"], position["school"]
    spread = jnp.exp(log_spread)
    prior = norm.logpdf(mean, 0, 5) + cauchy.logpdf(spread, 0, 5) + log_spread
    schools: Array = norm.logpdf(school, mean, spread) + norm.logpdf(EFFECT, school, ERROR)
    return prior + jnp.sum(schools)


def sample(key: Array, warmup: int, steps: int) -> Position:
    """One chain: adapt the step size and the masses, then draw."""
    start_key, warmup_key, key = random.split(key, 3)

    def adapted(state: Any, info: Any, adaptation: Any) -> None:  # blackjax calls it in its loop
        found = {"acceptance": info.acceptance_rate, "step_size": adaptation.step_size}
        logax.log(found, prefix="warmup/")

    adaptation = blackjax.window_adaptation(
        blackjax.nuts, log_density, target_acceptance_rate=TARGET, adaptation_info_fn=adapted
    )
    school = random.normal(start_key, EFFECT.shape)
    start = {"mean": jnp.zeros(()), "log_spread": jnp.zeros(()), "school": school}
    (state, parameters), _ = adaptation.run(warmup_key, start, warmup)
    kernel = blackjax.nuts(log_density, **parameters)

    def draw(state: Any, step: Array) -> tuple[Any, Position]:
        state, info = kernel.step(random.fold_in(key, step), state)
        found = {
            "acceptance": info.acceptance_rate,
            "divergent": info.is_divergent,
            "leapfrogs": info.num_integration_steps,
        }
        logax.log(found, step=step)
        return state, state.position

    drawn: Position = lax.scan(draw, state, jnp.arange(steps))[1]
    return drawn


def draw_picture(drawn: Position, logs: Any, output: Path) -> None:
    """The warm-up, how chains are accepted, and where they diverge."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    sizes, rates, funnel = figure.subplots(1, 3)
    low, middle, high = np.quantile(logs["warmup/step_size"], [0.1, 0.5, 0.9], axis=0)
    sizes.fill_between(np.arange(len(middle)), low, high, alpha=0.3)
    sizes.semilogy(middle)
    sizes.set(xlabel="step of the warm-up", ylabel="step size")
    so_far = np.cumsum(logs["acceptance"], axis=1) / np.arange(1, 1 + logs["acceptance"].shape[1])
    rates.plot(so_far.T, linewidth=0.5)
    rates.axhline(TARGET, color="black", linestyle="--")
    rates.set(xlabel="step", ylabel="acceptance so far", ylim=(0.4, 1.0))
    bad = np.asarray(logs["divergent"])
    school, log_spread = np.asarray(drawn["school"][..., 0]), np.asarray(drawn["log_spread"])
    funnel.plot(school[~bad], log_spread[~bad], ".", markersize=1, color="silver", label="drawn")
    funnel.plot(school[bad], log_spread[bad], ".", markersize=3, color="crimson", label="divergent")
    funnel.set(xlabel="effect in the first school", ylabel="log of the spread")
    funnel.legend()
    figure.savefig(output, dpi=120)


def main() -> None:
    """Sample, and say how that went."""
    parser = argparse.ArgumentParser(description="Watch a sampler of blackjax.")
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--output", type=Path, default=Path("sampler.png"))
    options = parser.parse_args()

    chain = partial(sample, warmup=options.warmup, steps=options.steps)
    logger = ConsoleLogger()
    with logger.run(name="eight schools") as state:
        watched = logger.tap(chain, state, buffer=25, keep_logs=True)
        keys = random.split(random.key(0), options.chains)
        drawn, logs = jax.jit(jax.vmap(logax.spool(watched)))(keys)

    print(logs)
    for name, values in drawn.items():
        mean, spread = jnp.mean(values), jnp.std(values)
        worst = jnp.max(potential_scale_reduction(values))
        print(f"{name:10} = {mean:5.2f} ± {spread:4.2f}, R-hat at most {worst:.3f}")
    bad, rate = logs["divergent"], logs["acceptance"].mean()
    print(f"accepted {rate:.3f}, aimed at {TARGET}; {bad.sum()} of {bad.size} steps diverged")
    inside, outside = drawn["log_spread"][bad].mean(), drawn["log_spread"][~bad].mean()
    print(f"log_spread where they diverged: {inside:.2f}, elsewhere: {outside:.2f}")
    draw_picture(drawn, logs, options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()
