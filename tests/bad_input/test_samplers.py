"""Any rubbish at any entry point of the samplers and results: a typed error, or a sound result.

As in ``rubbish.py``: 200 cases per entry point, 2,000 in the slow set.
"""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ribbit as rb
from ribbit.results.draws import Draws
from ribbit.samplers import HMC, MCLMC, NUTS
from ribbit.store import load
from tests.support.rubbish import MESSAGE, arrays, some

DIM = 3
ROWS = np.random.default_rng(0).normal(size=(6, 2))
TARGET = rb.Posterior(
    rb.mlp(2, (), 1),
    ROWS,
    ROWS[:, 0],
    prior=rb.Normal(1.0),
    likelihood=rb.Gaussian(0.5),
    dtype=np.float64,
)
HMC_OF = HMC(TARGET, step_size=0.1, num_leapfrog_steps=2)
DRAWS = HMC_OF.sample(4, chains=2)
STATE = DRAWS.state
MCLMC_OF = MCLMC(TARGET, step_size=0.1, decoherence_length=1.0)
KEPT = DRAWS.predict(np.ones((5, 2)))

small = some(st.integers(0, 6))
flags = some(st.booleans())
positions = some(arrays((DIM,), (2, DIM), dtype=np.float64))
masses = some(arrays((DIM,), dtype=np.float64), st.sampled_from(["prior", "adapt", None]))
sizes = some(st.floats(0.01, 1.0), arrays((2,), dtype=np.float64), st.just("auto"))
inputs = some(arrays((5, 2), (1, 2), dtype=np.float64))
levels = some(st.floats(0, 1), st.lists(st.floats(0, 1), max_size=3))
seeds = some(st.integers(0, 2**64 - 1))
lengths = some(st.floats(0.01, 2.0), st.none())
counts = some(st.integers(1, 5), st.none())


def finite(draws: Draws) -> bool:
    return bool(np.isfinite(draws.positions).all())


ENTRIES = {
    "HMC": (
        lambda **k: HMC(TARGET, **{"num_leapfrog_steps": 2, **k}),
        {
            "step_size": sizes,
            "trajectory_length": lengths,
            "num_leapfrog_steps": counts,
            "inverse_mass_matrix": masses,
            "step_size_jitter": some(st.floats(0, 0.9)),
            "target_accept": some(st.floats(0.1, 0.9)),
            "max_num_leapfrog_steps": some(st.integers(5, 100)),
            "divergence_threshold": some(st.floats(1, 100)),
        },
        lambda hmc: finite(hmc.sample(1, init=np.zeros((2, DIM)), warmup=20)),
    ),
    "NUTS": (
        lambda **k: NUTS(TARGET, **k),
        {
            "step_size": sizes,
            "max_tree_depth": some(st.integers(1, 6)),
            "inverse_mass_matrix": some(masses, st.just("auto")),
            "target_accept": some(st.floats(0.1, 0.9)),
            "divergence_threshold": some(st.floats(1, 100)),
        },
        lambda nuts: finite(nuts.sample(1, init=np.zeros((2, DIM)), warmup=20)),
    ),
    "HMC of anything": (lambda target: HMC(target, step_size=1.0), {"target": positions}, None),
    "Chains of HMC": (
        lambda **k: rb.Chains(HMC_OF, **k),
        {"init": positions, "seed": seeds, "chains": some(st.just([5, 3])), "warmup": small},
        lambda chains: bool(np.isfinite(chains.position).all()),
    ),
    "Chains.advance of HMC": (
        lambda num_steps: rb.Chains(HMC_OF, np.zeros((2, DIM)), warmup=0).advance(num_steps),
        {"num_steps": counts},
        lambda result: bool(np.isfinite(result[0]).all()),
    ),
    "Chains.load of HMC": (
        lambda data: rb.Chains.load(HMC_OF, data),
        {"data": some(st.just(bytes(STATE)), st.binary(max_size=200))},
        lambda chains: chains.step > 0,
    ),
    "HMC.sample": (
        lambda num_draws, **k: HMC_OF.sample(num_draws, **k),
        {
            "num_draws": some(st.integers(1, 4)),
            "warmup": small,
            "thin": some(st.integers(1, 3)),
            "chains": some(st.integers(1, 3), st.lists(st.integers(-1, 9), max_size=3), st.none()),
            "seed": seeds,
            "init": some(arrays((DIM,), (2, DIM), dtype=np.float64), st.none()),
            "resume": some(st.sampled_from([STATE, DRAWS, None])),
            "progress": some(st.sampled_from([None, False])),
            "predict_at": inputs,
            "save_draws": flags,
            "save_warmup": flags,
            "until": some(st.just(rb.Converged(rhat=1.9, ess=1.0)), st.none()),
            "max_draws": some(st.integers(1, 9), st.none()),
            "max_seconds": some(st.just(0.05)),
        },
        finite,
    ),
    "MCLMC": (
        lambda **k: MCLMC(TARGET, **{"max_num_leapfrog_steps": 9, **k}),
        {
            "adjusted": flags,
            "desired_energy_var": some(st.floats(0.01, 1.0), st.just((0.5, 0.1)), st.just("auto")),
            "step_size": sizes,
            "decoherence_length": some(st.floats(0.01, 2.0), st.just("auto")),
            "inverse_mass_matrix": masses,
            "integrator": some(st.sampled_from(["leapfrog", "mclachlan"])),
            "target_accept": some(st.floats(0.1, 0.9)),
            "max_num_leapfrog_steps": some(st.integers(5, 100)),
            "divergence_threshold": some(st.floats(1, 100)),
            "batch_size": counts,
        },
        lambda mclmc: finite(mclmc.sample(1, init=np.zeros((2, DIM)), warmup=100, thin=2)),
    ),
    "Chains of MCLMC": (
        lambda **k: rb.Chains(MCLMC_OF, **k),
        {"init": positions, "seed": seeds, "chains": some(st.just([5, 3])), "warmup": small},
        lambda chains: bool(np.isfinite(chains.position).all()),
    ),
    "Chains.advance of MCLMC": (
        lambda num_steps: rb.Chains(MCLMC_OF, np.zeros((2, DIM)), warmup=0).advance(num_steps),
        {"num_steps": counts},
        lambda result: bool(np.isfinite(result[0]).all()),
    ),
    "Draws.predict": (
        lambda x, keep: DRAWS.predict(x, keep=keep),
        {"x": inputs, "keep": flags},
        lambda p: p.num_draws == 8,
    ),
    "Prediction.quantile": (
        lambda q: KEPT.quantile(q),
        {"q": levels},
        lambda values: bool(np.isfinite(values).all()),
    ),
    "Prediction.credible_quantile": (
        lambda q: KEPT.credible_quantile(q),
        {"q": levels},
        lambda values: bool(np.isfinite(values).all()),
    ),
    "Prediction.interval": (
        lambda coverage: KEPT.interval(coverage),
        {"coverage": some(st.floats(0.1, 0.9))},
        lambda ends: bool((ends[0] <= ends[1]).all()),
    ),
    "Prediction.log_likelihood": (
        lambda y: KEPT.log_likelihood(y),
        {"y": some(arrays((5,), (5, 1), dtype=np.float64))},
        lambda value: isinstance(value, float),
    ),
    "set_num_threads": (rb.set_num_threads, {"n": some(st.just(2))}, None),
    "load": (load, {"path": small}, None),
    "Draws.save": (DRAWS.save, {"path": some(st.just("/"))}, None),
}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory):
    """Rubbish may be a fine file name: nothing lands in the checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("rubbish"))
        yield


COUNTS = {"num_draws", "max_draws", "num_steps", "warmup", "thin", "num_leapfrog_steps", "chains"}


def _huge(value):
    array = np.asarray(value, dtype=object).ravel()
    return any(isinstance(v, int | np.integer) and v > 1000 for v in array)


@pytest.mark.parametrize("name", ENTRIES)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:.*expected at most:ribbit.errors.RibbitWarning")
@pytest.mark.filterwarnings(
    "ignore:.*expected at least one draw within max_s:ribbit.errors.RibbitWarning"
)
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_rubbish(name, data):
    call, strategies, check = ENTRIES[name]
    required = name not in (
        *("HMC", "NUTS", "HMC.sample", "MCLMC", "Chains of HMC", "Chains of MCLMC"),
    )
    arguments = {
        key: data.draw(strategy, label=key)
        for key, strategy in strategies.items()
        if required or key == "num_draws" or data.draw(st.integers(0, 3)) == 0
    }
    # A huge count is no rubbish; it would run for years.
    assume(not any(_huge(v) for k, v in arguments.items() if k in COUNTS))
    message = None
    try:
        result = call(**arguments)
    except (TypeError, ValueError) as error:
        message = str(error)
    except OSError:
        message = "[load] expected a file, got none"
        assert name in ("load", "Draws.save")
    if message is not None:
        of_bytes = message.startswith(
            ("[State] the bytes hold no", "[Chains.load] data is damaged")
        )
        assert MESSAGE.match(message) or of_bytes, message
    else:
        assert check is None or check(result)
