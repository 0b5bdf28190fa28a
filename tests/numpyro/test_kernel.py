"""NumPyro and Ribbit, each around the other."""

import pickle

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ShapeError

jax = pytest.importorskip("jax", reason="needs JAX")
numpyro = pytest.importorskip("numpyro", reason="needs NumPyro")
jnp = jax.numpy

import numpyro.distributions as dist  # noqa: E402
from numpyro.infer import MCMC, NUTS  # noqa: E402
from numpyro.infer.util import log_density as joint  # noqa: E402

from ribbit.jax import jax_log_density  # noqa: E402
from ribbit.numpyro import build_kernel, from_numpyro  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # short runs

X = np.linspace(-1.0, 1.0, 30)[:, None]
Y = np.sin(3 * X)
NETWORK = rb.mlp(1, (4,), 1, activation="tanh")
TARGET = rb.Posterior(NETWORK, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
LIKELIHOOD = jax_log_density(TARGET, prior=False)


def around():
    """A network of Ribbit under a scale that NumPyro samples."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([TARGET.dim]).to_event(1))
    weights = numpyro.deterministic("weights", scale * z)
    numpyro.factor("network", LIKELIHOOD(weights))


def written_out():
    """The same in NumPyro alone."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([TARGET.dim]).to_event(1))
    w = numpyro.deterministic("weights", scale * z)
    hidden = jnp.tanh(X.astype(np.float32) @ w[:4].reshape(1, 4) + w[4:8])
    mean = hidden @ w[8:12].reshape(4, 1) + w[12]
    numpyro.sample("y", dist.Normal(mean, 0.3), obs=Y)


def test_a_network_inside_a_model_is_the_model_written_out() -> None:
    rng = np.random.default_rng(1)

    def value(model, scale, z):
        return joint(model, (), {}, {"scale": scale, "z": z})[0]

    both = jax.jit(jax.value_and_grad(value, argnums=(1, 2)), static_argnums=0)
    for _ in range(3):
        at = np.float32(0.2 + rng.random()), rng.normal(size=TARGET.dim).astype(np.float32)
        a, b = (both(m, *at) for m in (around, written_out))
        np.testing.assert_allclose(a[0], b[0], rtol=1e-5)
        for one, other in zip(a[1], b[1], strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-3)


def test_numpyro_samples_the_scale_around_a_network() -> None:
    mcmc = MCMC(
        NUTS(around, max_tree_depth=5),
        num_warmup=100,
        num_samples=100,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    found = mcmc.get_samples(group_by_chain=True)
    assert found["weights"].shape == (2, 100, TARGET.dim)
    assert np.isfinite(found["scale"]).all()
    np.testing.assert_allclose(found["weights"], found["scale"][..., None] * found["z"], rtol=1e-5)
    fit = TARGET.model.apply(np.asarray(found["weights"][:, 50:]).reshape(-1, TARGET.dim), X)
    assert np.sqrt(np.mean((fit.mean(axis=0) - Y) ** 2)) < 0.3


def test_ribbit_samples_a_model_of_numpyro() -> None:
    """A conjugate mean with a known answer: within 6 standard errors, false fails below 1e-7."""
    y = np.array([1.0, 2.0, 4.0])

    def model(data, sd=1.0):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        numpyro.deterministic("twice", 2 * mean)
        numpyro.sample("y", dist.Normal(mean, sd), obs=data)

    target = from_numpyro(model, y, sd=0.5)
    assert target.dim == 1
    draws = rb.NUTS(target).sample(400, warmup=200, seed=1, progress=False)
    sites = target.samples(draws)
    assert {n: v.shape for n, v in sites.items()} == {"mean": (4, 400), "twice": (4, 400)}
    np.testing.assert_allclose(sites["twice"], 2 * sites["mean"], rtol=1e-6)
    precision = 1 / 4 + 3 / 0.25
    expected = y.sum() / 0.25 / precision
    error = 1 / np.sqrt(precision * rb.diagnostics.ess(sites["mean"][..., None])[0])
    assert abs(sites["mean"].mean() - expected) < 6 * error
    assert abs(sites["mean"].mean() - expected - 0.1) > 6 * error  # the control
    with pytest.raises(ShapeError):
        target.samples(draws.positions[0])


def test_ribbit_samples_a_scale_around_its_own_network() -> None:
    target = from_numpyro(around)
    draws = rb.HMC(target, step_size=0.001, num_leapfrog_steps=20).sample(
        20, warmup=0, seed=1, chains=2, progress=False
    )
    sites = target.samples(draws)
    assert sites["weights"].shape == (2, 20, TARGET.dim)
    assert (sites["scale"] > 0).all()
    assert draws.stats["acceptance_rate"].mean() > 0.9


@pytest.mark.parametrize("method", ["sequential", "vectorized"])
@pytest.mark.parametrize("sampler", [rb.HMC, rb.NUTS])
def test_numpyro_drives_a_sampler_of_ribbit(sampler, method: str) -> None:
    """The draws are those of the sampler's own steps."""
    made = sampler(TARGET, step_size=0.02)
    mcmc = MCMC(
        build_kernel(made),
        num_warmup=5,
        num_samples=12,
        num_chains=2,
        chain_method=method,
        progress_bar=False,
    )
    start = TARGET.init(seed=4, chains=2)
    mcmc.run(jax.random.key(3), init_params=start, extra_fields=("lp", "n_steps"))
    got = mcmc.get_samples(group_by_chain=True)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert got.shape == (2, 12, TARGET.dim)
    np.testing.assert_allclose(
        fields["lp"][:, -1], TARGET.value_and_grad(np.asarray(got[:, -1]))[0], rtol=1e-5
    )
    assert (fields["n_steps"] >= 1).all()
    if method == "sequential":
        return
    keys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(3), 2)))
    seed = int(keys[0, 0]) << 32 | int(keys[0, 1])
    positions, stats = rb.Chains(made, start, seed=seed, warmup=5).advance(17)
    np.testing.assert_array_equal(got, positions[:, 5:])
    np.testing.assert_array_equal(fields["n_steps"], stats["n_steps"][:, 5:])


def test_one_chain_goes_on_from_its_last_state() -> None:
    kernel = build_kernel(rb.HMC(TARGET, step_size=0.02, num_leapfrog_steps=5))
    mcmc = MCMC(kernel, num_warmup=3, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(1))
    assert mcmc.get_samples().shape == (5, TARGET.dim)
    first = mcmc.last_state
    mcmc.post_warmup_state = first
    mcmc.run(first.rng_key)
    assert int(mcmc.last_state.step) == int(first.step) + 5
    mcmc.post_warmup_state = first
    with pytest.raises(Exception, match="expected the latest state, of step 13, got one of step 8"):
        mcmc.run(first.rng_key)


def test_what_does_not_fit_is_refused() -> None:
    for wrong in (3, rb.HMC, NUTS(around)):
        with pytest.raises(TypeError, match=r"\[build_kernel\] expected a sampler"):
            build_kernel(wrong)
    with pytest.raises(TypeError, match="that JAX does not compute"):
        build_kernel(rb.NUTS(from_numpyro(around)))
    with pytest.raises(TypeError, match=r"\[from_numpyro\]"):
        from_numpyro(3)
    kernel = build_kernel(rb.HMC(TARGET, step_size=0.1, num_leapfrog_steps=2))
    mcmc = MCMC(
        kernel, num_warmup=1, num_samples=2, num_chains=2, chain_method=jax.vmap, progress_bar=False
    )
    with pytest.raises(ValueError, match="vectorized"):
        mcmc.run(jax.random.key(0))
    assert pickle.loads(pickle.dumps(from_numpyro(around))).dim == TARGET.dim + 1
