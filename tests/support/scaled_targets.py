"""Posteriors with learned scales, native and as the oracle states them."""

import numpy as np

import ribbit as rb
from tests.oracle.reference import Target, mlp_table
from tests.oracle.scales_reference import NONE, ScaledTarget

HYPER = {  # kind and numbers in the prior table
    "half-normal": (rb.HalfNormal(0.8), (6, 0.8, 0.0, 0.0)),
    "half-Cauchy": (rb.HalfCauchy(0.5), (7, 0.5, 0.0, 0.0)),
    "inverse gamma": (rb.InverseGamma(3.0, 0.7), (5, 3.0, 0.7, 0.0)),
}
NAMES = ["array", "layer", "input", "unit", "weight", "all", "mixed"]
NAMES += ["horseshoe weight", "horseshoe input"]
GLOBAL, SLAB, DF = 0.3, 1.5, 5.0


def prior_of(name, hyper="half-normal", fan_in=False):
    """The prior called `name`: a grouping, several of them at once, or a horseshoe."""
    scale = HYPER[hyper][0]
    if name == "mixed":
        learned = rb.Normal(scale, per="input", fan_in=fan_in)
        return {
            "0.weight": learned,
            "*.weight": rb.Laplace(0.6),
            "*": rb.Normal(rb.HalfCauchy(1.0)),
        }
    if name.startswith("horseshoe"):
        per = name.partition(" ")[2]
        return rb.Horseshoe(GLOBAL, SLAB, DF, per=per, fan_in=fan_in)
    return rb.Normal(scale, per=name, fan_in=fan_in)


def local_numbers(name, shape, start):
    """Number of the scale of each weight of an array, one by one; and the next free one."""
    out = np.empty(shape, int)
    for place in np.ndindex(*shape):
        if name in ("array", "layer", "all") or (len(shape) == 1 and name in ("input", "unit")):
            out[place] = start
        elif name == "input":
            out[place] = start + place[0]
        elif name == "unit":
            out[place] = start + place[-1]
        else:
            out[place] = start + np.ravel_multi_index(place, shape)
    return out.ravel(), int(out.max()) + 1


def build(
    name, hyper="half-normal", *, widths=(3, (4,), 2), rows=20, seed=0, learned=True, **options
):
    """The oracle's target and the arguments of `rb.Posterior` that state it."""
    rng = np.random.default_rng(seed)
    fan_in, temper = options.pop("fan_in", False), options
    features, hidden, outs = widths
    table, size = mlp_table(features, hidden, outs, "tanh")
    model = rb.mlp(features, hidden, outs, activation="tanh")
    x, y = rng.normal(size=(rows, features)), rng.normal(size=(rows, outs))
    local, shared, slab = (np.full(size, NONE) for _ in range(3))
    factor = np.ones(size)
    prior, numbers, count, hypers = [], {}, 0, []
    for p in model.parameters:
        part, per, kind = slice(p.offset, p.offset + p.size), name, HYPER[hyper][1]
        horseshoe = name.startswith("horseshoe")
        if name == "mixed":
            if p.name == "0.weight":
                per = "input"
            elif p.name.endswith("weight"):
                prior.append((p.offset, p.size, 1, 0.6, 0, 0))
                continue
            else:
                per, kind = "array", (7, 1.0, 0.0, 0.0)
        if horseshoe:
            per, kind = name.partition(" ")[2], (7, 1.0, 0.0, 0.0)
        prior.append((p.offset, p.size, 0, 1.0, 0, 0))
        key = {"layer": p.name.split(".")[0], "all": "all"}.get(per)
        if key is not None and key in numbers:
            local[part] = numbers[key]
        else:
            local[part], after = local_numbers(per, p.shape, count)
            numbers[key] = count
            hypers += [kind] * (after - count)
            count = after
        if fan_in and (name != "mixed" or p.name == "0.weight"):
            factor[part] = p.fan_in**-0.5
        if horseshoe:
            shared[part], slab[part] = count, count + 1
            hypers += [(7, GLOBAL, 0.0, 0.0), (5, DF / 2, DF / 2 * SLAB**2, 0.0)]
            count += 2
    noises = outs if learned else 0
    if learned:
        prior.append((size, noises, 0, 1.0, 0, 0))
    prior += [(size + noises + i, 1, *kind) for i, kind in enumerate(hypers)]
    noise = {"scale": 0.5, "noises": max(1, noises)}
    plain = Target(table, np.zeros((0, 6)), 1 if learned else 0, x, y, **noise, **temper)
    oracle = ScaledTarget(plain, np.array(prior, float), local, shared, slab, factor, count)
    likelihood = rb.Gaussian() if learned else rb.Gaussian(0.5)
    given = {"prior": prior_of(name, hyper, fan_in), "likelihood": likelihood, **temper}
    return oracle, (model, x, y), given


def native(case, dtype=np.float64, **changes):
    """The `rb.Posterior` of `build`."""
    _, data, given = case
    return rb.Posterior(*data, **{**given, "dtype": dtype, **changes})
