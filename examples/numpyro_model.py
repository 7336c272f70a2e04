"""Watch numpyro's MCMC while it runs, through a kernel and a model that say what they do.

numpyro runs compiled loops of its own, and calls two things of yours in them. A log in the *model*
is a record for each time the model is evaluated, which is each leapfrog step. A *kernel* that logs
what `sample` gave it makes a record for each step of the chain, those of the warm-up too.

By default `MCMC.run` stands in a function that is harvested and then mapped over keys. One harvest
folds what the model says, of which there is much; one streams what the kernel says to a table in
the terminal, and one returns it as arrays, a row for each chain. (numpyro's own bar must be off in
there: it formats numbers that are traced.) With `--live` nothing is wrapped: what runs in a block
is seen, the chains are run in a way of numpyro's, and nothing comes back.

    pip install numpyro matplotlib rich
    python examples/numpyro_model.py [--steps 300] [--chains 4] [--output numpyro.png] [--live]
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, random
from matplotlib.figure import Figure
from numpyro.infer import MCMC, NUTS

import logax
from logax.loggers import ConsoleLogger

EFFECT = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])  # of coaching, school by school
ERROR = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TARGET = 0.8  # the acceptance rate that the warm-up aims at


def eight_schools(effect: Array) -> None:
    """What coaching does in each school, and how much the schools differ."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(effect)):
        school = numpyro.sample("school", dist.Normal(0.0, 1.0))
        numpyro.sample("effect", dist.Normal(mean + spread * school, ERROR), obs=effect)
    logax.log({"model/evaluations": 1, "model/spread": spread})


class WatchedNUTS(NUTS):  # type: ignore[misc]
    """NUTS, and a record for each of its steps."""

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
        """Make a step, and log how it went. Vectorized chains are steps of all of them at once."""
        state = super().sample(state, model_args, model_kwargs)
        found = {
            "nuts/acceptance": state.accept_prob,
            "nuts/step_size": state.adapt_state.step_size,
            "nuts/leapfrogs": state.num_steps,
            "nuts/divergent": state.diverging,
        }
        logax.log(found, step=jnp.max(state.i) - 1)
        return state


def mcmc(steps: int, **options: Any) -> MCMC:
    """As many steps to warm up as to draw."""
    kernel = WatchedNUTS(eight_schools, target_accept_prob=TARGET)
    return MCMC(kernel, num_warmup=steps, num_samples=steps, **options)


def run_mapped(logger: ConsoleLogger, steps: int, chains: int) -> tuple[dict[str, Array], Any, Any]:
    """Chains as lanes: what they drew, and what the kernel and the model logged."""

    def chain(key: Array) -> dict[str, Array]:
        sampler = mcmc(steps, progress_bar=False)
        sampler.run(key, EFFECT)
        drawn: dict[str, Array] = sampler.get_samples()
        return drawn

    folded = {"model/evaluations": "sum", "model/spread": "max"}
    counted = logax.spool(chain, keys="model/*", reduce=folded)
    with logger.run(name="eight schools") as state:
        watched = logger.tap(counted, state, buffer=25, keep_logs=True)
        # To JAX, numpyro's loops are of unknown length: say how many records there can be.
        spooled = logax.spool(watched, capacity=2 * steps)
        (drawn, model), nuts = jax.jit(jax.vmap(spooled))(random.split(random.key(0), chains))
    return drawn, nuts, model


def run_live(logger: ConsoleLogger, steps: int, chains: int) -> dict[str, Array]:
    """The sampler as numpyro runs it, with what it logs shown."""
    sampler = mcmc(steps, num_chains=chains, chain_method="vectorized", progress_bar=False)
    with logger.run(name="eight schools") as state, logger.live(state, keys="nuts/*"):
        sampler.run(random.key(0), EFFECT)
    drawn: dict[str, Array] = sampler.get_samples(group_by_chain=True)
    return drawn


def draw_picture(logs: Any, steps: int, output: Path) -> None:
    """The step size while it adapts, and the work of each step."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("step_size", "leapfrogs"), strict=True):
        axes.semilogy(np.asarray(logs[f"nuts/{name}"]).T, linewidth=0.5)
        axes.axvline(steps, color="black", linestyle="--")
        axes.set(xlabel="step, warm-up before the line", ylabel=name.replace("_", " "))
    figure.savefig(output, dpi=120)
    print(f"the plot: {output}")


def main() -> None:
    """Sample, and say how that went."""
    parser = argparse.ArgumentParser(description="Watch a sampler of numpyro.")
    parser.add_argument("--steps", type=int, default=300, help="to draw, and to warm up")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("numpyro.png"))
    parser.add_argument("--live", action="store_true", help="wrap nothing")
    options = parser.parse_args()

    logger = ConsoleLogger(window=options.steps)
    if options.live:
        drawn = run_live(logger, options.steps, options.chains)
    else:
        drawn, nuts, model = run_mapped(logger, options.steps, options.chains)
        print(nuts)
        print(model)
        accepted = nuts["nuts/acceptance"][:, options.steps :].mean()
        diverged = nuts["nuts/divergent"][:, options.steps :].sum()
        print(f"accepted {accepted:.3f}, aimed at {TARGET}; {diverged} steps diverged")
        print("leapfrogs  ", *nuts["nuts/leapfrogs"].sum(axis=1))
        print("evaluations", *model["model/evaluations"][:, 0])
        draw_picture(nuts, options.steps, options.output)
    for name in ("mean", "spread"):
        low, middle, high = np.quantile(drawn[name], [0.05, 0.5, 0.95])
        print(f"{name:6} {middle:5.2f}, nine times in ten from {low:5.2f} to {high:5.2f}")


if __name__ == "__main__":
    main()
