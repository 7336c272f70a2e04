"""Train PPO from many seeds in one compiled call, with a bar while it runs and curves after it.

Everything is compiled: the cart with its pole, the rollouts, the updates, the seeds. Logs stand
where the numbers are, in the step of the environments and in the loss. A harvest around each update
folds them inside the program, sums over episodes that ended and means over minibatches, and what
remains is logged once an update: the bar shows it live, `spool` returns it as arrays, seeds first.

    pip install optax pandas matplotlib
    python examples/ppo.py --seeds 8 --updates 60 --output ppo.png
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random
from matplotlib.figure import Figure

import logax
from logax.loggers import ProgressLogger

CARTS, ROLLOUT, LIMIT = 32, 64, 500  # side by side; steps between updates; the longest episode
DISCOUNT, SMOOTHING, CLIP = 0.99, 0.95, 0.2
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2e-3))


class Cart(NamedTuple):
    """Position, speed, angle and spin of a cart with a pole, and for how many steps it stood."""

    motion: Array
    steps: Array


class Batch(NamedTuple):
    """What was seen and done, with the logarithm of how likely that was, and what it was worth."""

    motion: Array
    action: Array
    chance: Array
    value: Array
    ended: Array


def new_carts(key: Array) -> Cart:
    """Carts that are almost at rest."""
    motion = random.uniform(key, (CARTS, 4), minval=-0.05, maxval=0.05)
    return Cart(motion, jnp.zeros(CARTS, jnp.int32))


def push(carts: Cart, action: Array) -> tuple[Cart, Array]:
    """Push all carts to the left (0) or to the right (1), and say which of them end there."""
    _, speed, angle, spin = carts.motion.T
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    force = (20.0 * action - 10.0 + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * force) / (2.0 / 3.0 - 0.05 * cos**2 / 1.1)
    slope = jnp.stack([speed, force - 0.05 * turn * cos / 1.1, spin, turn], axis=-1)
    after = Cart(carts.motion + 0.02 * slope, carts.steps + 1)
    fallen = (jnp.abs(after.motion[:, 0]) > 2.4) | (jnp.abs(after.motion[:, 2]) > 0.2095)
    return after, fallen | (after.steps == LIMIT)


def new_agent(key: Array) -> Any:
    """Draw one network for two actions, and one for the value."""

    def layers(key: Array, *sizes: int) -> list[tuple[Array, Array]]:
        pairs = zip(random.split(key, 3), sizes[:-1], sizes[1:], strict=True)
        return [(random.normal(key, (a, b)) / jnp.sqrt(a), jnp.zeros(b)) for key, a, b in pairs]

    actor, critic = random.split(key)
    return layers(actor, 4, 64, 64, 2), layers(critic, 4, 64, 64, 1)


def consult(agent: Any, motion: Array) -> tuple[Array, Array]:
    """Return the logarithms of the chances of both actions, and the value."""

    def output(layers: Any, x: Array) -> Array:
        for weight, bias in layers[:-1]:
            x = jnp.tanh(x @ weight + bias)
        weight, bias = layers[-1]
        return jnp.add(x @ weight, bias)

    return jax.nn.log_softmax(output(agent[0], motion)), output(agent[1], motion)[..., 0]


def rollout(agent: Any, carts: Cart, key: Array) -> tuple[Cart, Batch]:
    """Let the carts run for some steps. Where one ends, another begins."""

    def step(carts: Cart, key: Array) -> tuple[Cart, Batch]:
        action_key, cart_key = random.split(key)
        chances, value = consult(agent, carts.motion)
        action = random.categorical(action_key, chances)
        after, ended = push(carts, action)
        # A step is worth 1, so that the return of an episode is its length.
        logax.log({"episodes": jnp.sum(ended), "return": jnp.sum(ended * after.steps)})
        fresh = new_carts(cart_key)
        motion = jnp.where(ended[:, None], fresh.motion, after.motion)
        chance = chances[jnp.arange(CARTS), action]
        seen = Batch(carts.motion, action, chance, value, ended)
        return Cart(motion, jnp.where(ended, 0, after.steps)), seen

    return lax.scan(step, carts, random.split(key, ROLLOUT))


def advantages(batch: Batch, last: Array) -> Array:
    """How much better it went than was expected, smoothed over the steps that follow."""

    def step(carry: tuple[Array, Array], at: Batch) -> tuple[tuple[Array, Array], Array]:
        later, value = carry
        goes_on = DISCOUNT * (1.0 - at.ended)
        better = 1.0 + goes_on * value - at.value + goes_on * SMOOTHING * later
        return (better, at.value), better

    return lax.scan(step, (jnp.zeros_like(last), last), batch, reverse=True)[1]


def loss_of(agent: Any, batch: Batch, advantage: Array) -> Array:
    """The clipped loss of PPO. What it is made of is logged."""
    chances, value = consult(agent, batch.motion)
    change = jnp.take_along_axis(chances, batch.action[:, None], axis=1)[:, 0] - batch.chance
    ratio = jnp.exp(change)
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * scaled, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * scaled)
    policy_loss = -jnp.mean(gain)
    value_loss = jnp.mean((value - batch.value - advantage) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(chances) * chances, axis=-1))
    logax.log({"loss": {"policy": policy_loss, "value": value_loss}, "entropy": entropy})
    logax.log({"kl": jnp.mean(ratio - 1 - change)})
    return policy_loss + 0.25 * value_loss - 0.01 * entropy


def update(state: Any, key: Array) -> Any:
    """Run, and learn from it in sixteen minibatches."""
    agent, memory, carts = state
    rollout_key, order_key = random.split(key)
    carts, batch = rollout(agent, carts, rollout_key)
    advantage = advantages(batch, consult(agent, carts.motion)[1])
    data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (batch, advantage))

    def learn(state: Any, chosen: Array) -> tuple[Any, None]:
        agent, memory = state
        slope = jax.grad(loss_of)(agent, *jax.tree.map(lambda x: x[chosen], data))
        change, memory = OPTIMIZER.update(slope, memory)
        return (optax.apply_updates(agent, change), memory), None

    minibatches = random.randint(order_key, (16, CARTS * ROLLOUT // 4), 0, CARTS * ROLLOUT)
    (agent, memory), _ = lax.scan(learn, (agent, memory), minibatches)
    return agent, memory, carts


def train(key: Array, updates: int) -> Any:
    """Train one agent, and log once an update what came of it."""
    agent_key, cart_key, update_key = random.split(key, 3)
    folded = logax.spool(update, reduce={"episodes": "sum", "return": "sum", "*": "mean"})

    def step(state: Any, i: Array) -> tuple[Any, None]:
        state, logs = folded(state, random.fold_in(update_key, i))
        said = dict(logs.last)
        total, episodes = said.pop("return"), said["episodes"]
        logax.log(said, step=i)
        lax.cond(  # an update in which no episode ended has no such record
            episodes > 0, lambda: logax.log({"return": total / episodes}, step=i), lambda: None
        )
        return state, None

    agent = new_agent(agent_key)
    state = (agent, OPTIMIZER.init(agent), new_carts(cart_key))
    return lax.scan(step, state, jnp.arange(updates))[0][0]


def plot(logs: logax.logdict, output: Path) -> None:
    """Draw each seed, and the mean of all."""
    table = logs.to_pandas()
    figure = Figure(figsize=(9, 5), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for axes, key in zip(panels, ["return", "loss/value", "entropy", "kl"], strict=True):
        curves = table.pivot(index="step", columns="lane", values=key)
        axes.plot(curves.interpolate(), color="C0", alpha=0.3, linewidth=1)
        axes.plot(curves.mean(axis=1), color="C0")
        axes.set(title=key, xlabel="update")
    figure.savefig(output)


def main() -> None:
    """Train, and look at the seeds."""
    parser = argparse.ArgumentParser(description="Train PPO from many seeds.")
    parser.add_argument("--seeds", type=int, default=8, help="how many agents to train")
    parser.add_argument("--updates", type=int, default=60, help="updates of each agent")
    parser.add_argument("--output", type=Path, default=Path("ppo.png"), help="where to plot")
    options = parser.parse_args()

    keys = random.split(random.key(0), options.seeds)
    with ProgressLogger(show=["return", "entropy"]) as progress:
        watched = logax.tap(partial(train, updates=options.updates), progress, keep_logs=True)
        _, logs = jax.jit(jax.vmap(logax.spool(watched)))(keys)

    print(logs)
    first = logs.slice[:5].reduce("mean")["return"][:, 0]
    last = logs.slice[-5:].reduce("mean")["return"][:, 0]
    for seed in range(options.seeds):
        print(f"seed {seed}: return {first[seed]:5.1f} at first, {last[seed]:5.1f} in the end")
    plot(logs, options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()
