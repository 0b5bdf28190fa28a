"""What would not fit into memory is refused before it is taken, with a sentence that names it."""

import numpy as np
import pytest

import ribbit as rb
from tests.support.targets import OPTIONS, posterior

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _eight_gibibytes(monkeypatch):
    """The same machine for everyone."""
    monkeypatch.setenv("RIBBIT_FREE_MEMORY", str(8 * GIB))


MEMORY = r"^\[ribbit\] expected at least .* of free memory for .*{}.*, got 8"


def wide(outputs):
    x = np.zeros((4, 2), np.float32)
    model = rb.mlp(2, (), outputs)
    return rb.Posterior(
        model, x, np.zeros(4, np.int64), prior=rb.Normal(1.0), likelihood=rb.Categorical()
    )


HMC = rb.HMC(posterior(), **OPTIONS["fixed"])
SGLD = rb.SGLD(posterior(), step_size=1e-5, batch_size=5)
FIT = rb.MeanField(np.zeros(1000), np.ones(1000))
TOO_MUCH = {
    "chains": lambda: HMC.sample(1, chains=10**9, progress=False),
    "2147483648 chains": lambda: HMC.sample(1, chains=2**31, progress=False),
    "chains of SGLD": lambda: SGLD.sample(1, chains=2**31, progress=False),
    "chains of a model": lambda: posterior().model.init(0, chains=10**9),
    "chains of a posterior": lambda: posterior().init(0, chains=10**9),
    "chains of a density": lambda: rb.CallableDensity(len, 30).init(0, chains=10**9),
    "statistics": lambda: HMC.sample(2**39, save_draws=False, predict_at=np.ones((1, 3))),
    "draws of": lambda: HMC.sample(10**9),
    "draws of a fit": lambda: FIT.draws(2**32 - 1),
    "samples of": lambda: rb.reparameterize(np.zeros(1000), np.zeros(1000), 2**32 - 1, 0),
    "normals": lambda: rb.random.normal(2**34, 0),
    "splits": lambda: rb.datasets.splits(100, num_splits=2**62),
    "splits of many rows": lambda: rb.datasets.splits(2**48, num_splits=1),
    "rows": lambda: rb.datasets.toy_regression(2**32),
    "rows of moons": lambda: rb.datasets.two_moons(2**32),
    "bins": lambda: rb.metrics.ece([0, 1], [0.5, 0.5], bins=2**48),
    "factors": lambda: rb.schedules.cosine(5).factors(0, 2**40),
    "noise factors": lambda: rb.schedules.cyclical(2, 5).noise(0, 2**40),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_it_is_refused_by_name(name):
    word = name.split(" of ")[0].split()[-1]
    with pytest.raises(MemoryError, match=MEMORY.format(word)):
        TOO_MUCH[name]()


def test_gathered_predictions_are_refused_before_the_run():
    """1e5 rows of 1e3 classes: 9.6 GB of moments and of what eight chains predict."""
    target, x = wide(1000), np.zeros((100_000, 2), np.float32)
    sgld = rb.SGLD(target, step_size=1e-5, batch_size=None)
    options = {"predict_at": x, "save_draws": False, "chains": 8, "progress": False}
    with pytest.raises(MemoryError, match=MEMORY.format("predictive moments")):
        sgld.sample(100_000, warmup=0, **options)


# data that nobody looks at
@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_what_fits_is_not_refused(monkeypatch):
    monkeypatch.setenv("RIBBIT_FREE_MEMORY", str(64 << 20))
    draws = HMC.sample(
        50,
        warmup=0,
        chains=4,
        predict_at=np.ones((10, 3)),
        save_draws=False,
        progress=False,
    )
    assert draws.complete
    assert len(rb.datasets.splits(100)) == 20


@pytest.mark.parametrize("sampler", [HMC, SGLD], ids=["HMC", "SGLD"])
@pytest.mark.parametrize("count", [2**39 + 1, 2**63, 2**64, 10**30])
def test_steps_beyond_all_counters_are_refused(sampler, count):
    chains = rb.Chains(sampler, warmup=0)
    with pytest.raises(ValueError, match=r"advance\] expected num_steps <= 549755813888, got"):
        chains.advance(count)
