"""JAX: Bayes by Backprop, Monte Carlo predictions and SGLD, one compiled scan each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness.framework import Prepared, fastest
from benchmarks.rivals.jax_net import forward, loglikelihood, logprior, ravel, ready, unravel
from benchmarks.workloads.langevin import Langevin
from benchmarks.workloads.predictive import MaskDraws, WeightDraws
from benchmarks.workloads.variational import BayesByBackprop


def negative_elbo(workload: BayesByBackprop, columns: bool) -> Callable[..., Any]:
    """KL minus log likelihood of one weight sample: f((mean, rho), noise, x, y)."""
    likelihood, prior = loglikelihood(workload, columns), workload.prior_scale

    def value(parameters: Any, noise: Any, x: Any, y: Any) -> Any:
        mean, rho = parameters
        scale = jax.nn.softplus(rho)
        weights = unravel(mean + scale * noise, workload.sizes)
        terms = jnp.log(prior / scale) + 0.5 * (scale**2 + mean**2) / prior**2 - 0.5
        return jnp.sum(terms) - likelihood(weights, x, y)

    return value


def bbb(workload: BayesByBackprop) -> Prepared:
    """All epochs in one scan, Adam written out; rows or columns."""
    key = jax.random.key(workload.seed)
    start = tuple(jnp.asarray(a) for a in workload.start)
    keys = jax.random.split(key, workload.epochs)

    def draw(key: Any) -> Any:
        return jax.random.normal(key, (workload.dim,))

    forms: dict[str, Callable[[], Any]] = {}
    gradients: dict[str, Callable[[Any], Any]] = {}
    for columns in (False, True):
        x, y = (jnp.asarray(a.T if columns else a) for a in workload.data)
        gradient = jax.value_and_grad(negative_elbo(workload, columns))

        def fit(
            start: Any, keys: Any, x: Any, y: Any, gradient: Callable[..., Any] = gradient
        ) -> Any:
            def step(carry: Any, inputs: Any) -> Any:
                parameters, first, second = carry
                count, key = inputs
                loss, grads = gradient(parameters, draw(key), x, y)
                first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
                second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
                sizes = 1.0 - 0.9**count, 1.0 - 0.999**count
                parameters = jax.tree.map(
                    lambda p, m, v: (
                        p
                        - workload.learning_rate * (m / sizes[0]) / (jnp.sqrt(v / sizes[1]) + 1e-8)
                    ),
                    parameters,
                    first,
                    second,
                )
                return (parameters, first, second), -loss

            zeros = jax.tree.map(jnp.zeros_like, start)
            counts = jnp.arange(1.0, workload.epochs + 1.0)
            carry, elbo = lax.scan(step, (start, zeros, zeros), (counts, keys))
            return carry[0], elbo

        name = "columns" if columns else "rows"
        forms[name] = ready(jax.jit(fit), start, keys, x, y)
        gradients[name] = partial(jax.jit(gradient), start, x=x, y=y)
    winner, wasted = fastest(forms)

    def answer(found: Any) -> dict[str, Any]:
        (mean, rho), elbo = found
        noise = np.asarray(jax.vmap(draw)(jax.random.split(key, 64)))
        return {
            "mean": np.asarray(mean),
            "rho": np.asarray(rho),
            "elbo": np.asarray(elbo),
            "noise": noise,
            "gradient": np.stack(gradients[winner](noise[0])[1]),
        }

    return Prepared(forms[winner], answer, f"jit, scan over epochs; {winner}", wasted)


def mc_forward(workload: WeightDraws) -> Prepared:
    """Scan over chunks of draws, vmap within; the rows whole or in blocks that stay in cache."""
    mean, scale = (jnp.asarray(a) for a in workload.variational)
    key = jax.random.key(workload.seed)

    def outputs(weights: Any, x: Any, columns: bool) -> Any:
        return forward(unravel(weights, workload.sizes), x, workload.activation, columns)

    def form(draws: int, chunk: int, blocks: int, columns: bool) -> Callable[[], Any]:
        cut = workload.x.reshape(blocks, -1, workload.x.shape[1])
        x = jnp.asarray(np.swapaxes(cut, 1, 2) if columns else cut)

        def run(key: Any, mean: Any, scale: Any, x: Any) -> Any:
            # deviations from the outputs at the mean keep the digits of a small spread
            centre = lax.map(lambda b: outputs(mean, b, columns), x)

            def several(sums: Any, key: Any) -> Any:
                weights = mean + scale * jax.random.normal(key, (chunk, workload.dim))

                def block(inputs: Any) -> Any:
                    b, middle = inputs
                    d = jax.vmap(lambda w: outputs(w, b, columns))(weights) - middle
                    return d.sum(0), (d * d).sum(0)

                return jax.tree.map(jnp.add, sums, lax.map(block, (x, centre))), None

            zeros = jnp.zeros_like(centre)
            keys = jax.random.split(key, draws // chunk)
            (total, squares), _ = lax.scan(several, (zeros, zeros), keys)
            average = total / draws
            return centre + average, jnp.sqrt(squares / draws - average**2)

        return ready(jax.jit(run), key, mean, scale, x)

    sizes = [c for c in (1, 10) if workload.draws % c == 0]
    choices = {
        f"chunks of {chunk}, {blocks} blocks{', columns' if columns else ''}": (
            chunk,
            blocks,
            columns,
        )
        for chunk in sizes
        for blocks in (1, 20)
        for columns in (False, True)
    }
    few = max(100, workload.draws // 10)
    winner, wasted = fastest({name: form(few, *c) for name, c in choices.items()}, turns=2)
    columns = choices[winner][2]

    def answer(found: Any) -> dict[str, Any]:
        x = jnp.asarray(workload.x.T if columns else workload.x)
        single = np.asarray(outputs(jnp.asarray(workload.weights), x, columns))
        shape = (workload.rows, workload.sizes[-1])
        mean, sd = (_rows(a, columns).reshape(shape) for a in found)
        return {"mean": mean, "sd": sd, "outputs": single.T if columns else single}

    run = form(workload.draws, *choices[winner])
    return Prepared(run, answer, f"jit, scan over draws, vmap; {winner}", wasted)


def _rows(blocks: Any, columns: bool) -> np.ndarray[Any, Any]:
    """(B, n, K) or with `columns` (B, K, n), as (B, n, K)."""
    array = np.asarray(blocks)
    return np.swapaxes(array, 1, 2) if columns else array


def _keep(key: Any, shape: tuple[int, ...], rate: float, source: str) -> Any:
    """Mask of the kept units; "uint8" spends a quarter of the random bits, for rates k / 256."""
    if source == "uint8":
        return jax.random.bits(key, shape, jnp.uint8) >= jnp.uint8(round(256 * rate))
    return jax.random.bernoulli(key, 1.0 - rate, shape)


def dropout_form(
    workload: MaskDraws, samples: int, source: str, hoisted: bool, blocks: int
) -> Callable[[], Any]:
    """Compile one way to do it: where the bits come from, the first layer, blocks of rows."""
    layers = unravel(jnp.asarray(workload.weights), workload.sizes)
    x = jnp.asarray(workload.x.reshape(blocks, -1, workload.sizes[0]))
    factor = 1.0 / (1.0 - workload.rate)

    def run(key: Any, layers: Any, x: Any) -> Any:
        def first(x: Any) -> Any:
            return jax.nn.relu(x @ layers[0][0] + layers[0][1])

        def block(inputs: Any) -> Any:
            x, key = inputs
            fixed = first(x) if hoisted else x

            def sample(sums: Any, key: Any) -> Any:
                h = fixed if hoisted else first(fixed)
                for k, (weight, bias) in enumerate(layers[1:]):
                    keep = _keep(jax.random.fold_in(key, k), h.shape, workload.rate, source)
                    h = jnp.where(keep, h * factor, 0.0) @ weight + bias
                    h = jax.nn.relu(h) if k < len(layers) - 2 else h
                p = jax.nn.softmax(h)
                return (sums[0] + p, sums[1] + p * p), None

            zeros = jnp.zeros((x.shape[0], workload.sizes[-1]))
            sums, _ = lax.scan(sample, (zeros, zeros), jax.random.split(key, samples))
            mean = sums[0] / samples
            return mean, jnp.sqrt(jnp.maximum(sums[1] / samples - mean**2, 0.0))

        if blocks == 1:
            return block((x[0], key))
        return lax.map(block, (x, jax.random.split(key, blocks)))

    kind = "rbg" if source == "rbg" else "threefry2x32"
    return ready(jax.jit(run), jax.random.key(workload.seed, impl=kind), layers, x)


def dropout(workload: MaskDraws, choices: dict[str, tuple[str, bool, int]]) -> Prepared:
    """Race the forms on a tenth of the samples, then do all with the winner."""
    few = max(1, workload.samples // 10)
    racers = {name: dropout_form(workload, few, *choice) for name, choice in choices.items()}
    winner, wasted = fastest(racers, turns=2)

    def answer(found: Any) -> dict[str, Any]:
        layers = unravel(jnp.asarray(workload.weights), workload.sizes)
        shape = (workload.rows, workload.sizes[-1])
        mean, sd = (np.asarray(a).reshape(shape) for a in found)
        outputs = forward(layers, jnp.asarray(workload.x), workload.activation)
        return {"mean": mean, "sd": sd, "outputs": np.asarray(outputs)}

    run = dropout_form(workload, workload.samples, *choices[winner])
    return Prepared(run, answer, f"jit, scan over samples; {winner}", wasted)


def mc_dropout(workload: MaskDraws) -> Prepared:
    """First layer once, in the fastest of its forms."""
    choices = {
        f"first layer hoisted, {source} masks, {blocks} blocks": (source, True, blocks)
        for source in ("uint8", "bernoulli", "rbg")
        for blocks in (1, 20)
    }
    return dropout(workload, choices)


def mc_dropout_plain(workload: MaskDraws) -> Prepared:
    """As one would write it at first: the whole network in every sample."""
    return dropout(workload, {"whole network, bernoulli masks": ("bernoulli", False, 1)})


def batches(workload: Langevin, key: Any) -> Any:
    """Row numbers (steps, batch) without replacement within each epoch, under jit."""
    keys = jax.random.split(key, workload.epochs)
    orders = jax.vmap(lambda k: jax.random.permutation(k, workload.rows))(keys)
    return orders.reshape(-1, workload.batch)[: workload.num_steps]


def batch_logdensity(workload: Langevin) -> Callable[..., Any]:
    """Log density estimated on a batch: f(layers, (x, y))."""
    likelihood, prior = loglikelihood(workload), logprior(workload)
    factor = workload.rows / workload.batch
    return lambda layers, batch: factor * likelihood(layers, *batch) + prior(layers)


def walk(workload: Langevin, step: Callable[..., Any], gradient: Any, form: str) -> Prepared:
    """Scan `step(key, layers, batch) -> layers` over the batches; also for rivals built on JAX."""
    start = unravel(jnp.asarray(workload.start), workload.sizes)
    x, y = (jnp.asarray(a) for a in workload.data)

    @jax.jit
    def run(key: Any, start: Any, x: Any, y: Any) -> Any:
        order, noise = jax.random.split(key)
        rows = batches(workload, order)

        def one(layers: Any, inputs: Any) -> Any:
            key, rows = inputs
            return step(key, layers, (x[rows], y[rows])), None

        keys = jax.random.split(noise, workload.num_steps)
        return lax.scan(one, start, (keys, rows))[0]

    def answer(found: Any) -> dict[str, Any]:
        first = x[: workload.batch], y[: workload.batch]
        return {
            "position": ravel(found)[0],
            "gradient": ravel(jax.jit(gradient)(start, first))[0],
        }

    return Prepared(ready(run, jax.random.key(workload.seed), start, x, y), answer, form)


def sgld(workload: Langevin) -> Prepared:
    """Write the update out, with one normal vector for all weights."""
    gradient = jax.grad(batch_logdensity(workload))
    eps = workload.step_size

    def step(key: Any, layers: Any, batch: Any) -> Any:
        # one long draw: an array per leaf took half as long again
        noise = unravel(jax.random.normal(key, (workload.dim,)), workload.sizes)
        return jax.tree.map(
            lambda w, g, z: w + 0.5 * eps * g + eps**0.5 * z,
            layers,
            gradient(layers, batch),
            noise,
        )

    return walk(workload, step, gradient, "jit, scan over steps, permuted batches")
