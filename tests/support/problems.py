"""Small problems as pairs: the oracle's target and the same one built with the public API."""

import numpy as np

from tests.oracle.reference import ACTIVATIONS, Target, learns_noise, mlp_table
from tests.support.likelihoods import BY_KIND, SHAPE

# kind: parameters (a, b, c) of the prior table
PRIOR_PARAMETERS = {
    0: (0.8, 0.0, 0.0),
    1: (0.6, 0.0, 0.0),
    2: (4.0, 0.7, 0.0),
    3: (0.5, 0.0, 0.0),
    4: (0.4, 1.1, 0.15),
}
NOISE = 0.4


def labels(kind, rng, num_rows, num_out):
    """Labels (N, Ky) that suit a likelihood, as float64."""
    return BY_KIND[kind].labels(rng, num_rows, num_out)


def build_reference(
    *,
    num_in=2,
    hidden=(3,),
    num_out=2,
    activation="tanh",
    likelihood=0,
    prior=0,
    num_rows=5,
    chains=None,
    seed=0,
    temperature=1.0,
    likelihood_temperature=1.0,
):
    """The oracle's target and a theta (P,) or (chains, P); activations stay of order one."""
    rng = np.random.default_rng((seed, num_in, *hidden, num_out, likelihood, prior))
    table, dim = mlp_table(num_in, hidden, num_out, activation)
    segments = [(0, dim, prior, *PRIOR_PARAMETERS[prior])]
    if learns_noise(likelihood):
        segments.append((dim, num_out, 0, 1.0, 0.0, 0.0))
    target = Target(
        table=table,
        prior=np.array(segments, float),
        kind=likelihood,
        x=rng.normal(size=(num_rows, num_in)),
        y=labels(likelihood, rng, num_rows, num_out),
        scale=NOISE,
        shape=SHAPE,
        temperature=temperature,
        likelihood_temperature=likelihood_temperature,
        noises=num_out if learns_noise(likelihood) else 1,
    )
    shape = (target.dim,) if chains is None else (chains, target.dim)
    theta = 0.5 * rng.normal(size=shape)
    for op, n_in, n_out, at, *_ in table:  # He-like weights: outputs of order one at any width
        if op == 0:
            theta[..., at : at + n_in * n_out] *= 2 / np.sqrt(n_in)
    return target, theta


def native_likelihood(reference):
    return BY_KIND[reference.kind].make(reference.scale, reference.shape)


def native_labels(reference):
    """Labels as the likelihood takes them: (N,) integers of classes, else (N, Ky)."""
    return reference.y[:, 0].astype(np.int64) if reference.kind == 3 else reference.y


def build_native(reference, dtype=np.float64, **changes):
    """The ribbit.Posterior of the oracle's target, through the public API alone."""
    import ribbit as rb

    widths = [(int(r[1]), int(r[2])) for r in reference.table if r[0] == 0]
    arg = next((int(r[5]) for r in reference.table if r[0] == 1), 0)
    model = rb.mlp(
        widths[0][0],
        tuple(out for _, out in widths[:-1]),
        widths[-1][1],
        activation=ACTIVATIONS[arg],
    )
    _, _, kind, a, b, c = reference.prior[0]
    prior = [
        lambda: rb.Normal(a),
        lambda: rb.Laplace(a),
        lambda: rb.StudentT(a, b),
        lambda: rb.Logistic(a),
        lambda: rb.ScaleMixture(a, b, c),
    ][int(kind)]()
    options = {
        "prior": prior,
        "likelihood": native_likelihood(reference),
        "temperature": reference.temperature,
        "likelihood_temperature": reference.likelihood_temperature,
        "dtype": dtype,
    }
    return rb.Posterior(model, reference.x, native_labels(reference), **{**options, **changes})
