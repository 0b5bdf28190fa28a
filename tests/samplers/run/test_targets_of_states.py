"""A run is resumed on the target that it was started on, with the kernels it was made with."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(30, 2)), RNG.normal(size=30)


def posterior(units=4, **options):
    given = {
        "x": X,
        "y": Y,
        "prior": rb.Normal(1.0),
        "likelihood": rb.Gaussian(0.5),
        **options,
    }
    x, y = given.pop("x"), given.pop("y")
    return rb.Posterior(rb.mlp(2, (units,), 1), x, y, **given)


def hmc(target):
    return rb.HMC(target, step_size=0.02, num_leapfrog_steps=4)


def sgld(target):
    return rb.SGLD(target, step_size=1e-4, batch_size=10)


def sghmc(target):
    return rb.SGHMC(target, step_size=1e-4, batch_size=10)


def mclmc(target):
    return rb.MCLMC(target, step_size=0.02, decoherence_length=1.0)


OTHERS = {
    "data": {"x": X + np.float32(1e-3)},
    "model": {"activation": "tanh"},
    "prior": {"prior": rb.Normal(1.0, mean=0.5)},
    "likelihood": {"likelihood": rb.Gaussian(0.51)},
    "temperature": {"temperature": 0.5},
    "likelihood temperature": {"likelihood_temperature": 2.0},
}


def changed(what):
    options = dict(OTHERS[what])
    if "activation" in options:
        model = rb.mlp(2, (4,), 1, activation=options["activation"])
        return rb.Posterior(model, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.5))
    return posterior(**options)


@pytest.mark.parametrize("sampler", [hmc, mclmc, sgld, sghmc])
@pytest.mark.parametrize("what", OTHERS)
def test_another_target_is_refused_by_name(sampler, what):
    draws = sampler(posterior()).sample(3, warmup=2, chains=2, progress=False)
    other = sampler(changed(what))
    with pytest.raises(ValueError, match=rf"got one with another {what}: init=draws\.positions"):
        other.sample(2, resume=draws, progress=False)
    with pytest.raises(ValueError, match=f"another {what}"):
        other.sample(2, resume=draws.state, progress=False)
    fresh = other.sample(2, warmup=0, init=draws.state.position, progress=False)
    assert fresh.complete


@pytest.mark.parametrize("sampler", [hmc, mclmc, sgld, sghmc])
def test_an_equal_target_goes_on_and_so_does_a_file(sampler, tmp_path):
    whole = sampler(posterior()).sample(6, warmup=2, chains=2, progress=False)
    first = sampler(posterior()).sample(3, warmup=2, chains=2, progress=False)
    first.save(tmp_path / "draws.npz")
    for resume in (first, rb.load(tmp_path / "draws.npz")):
        rest = sampler(posterior()).sample(3, resume=resume, progress=False)
        assert np.array_equal(rest.positions, whole.positions[:, 3:])
    loaded = rb.load(tmp_path / "draws.npz")
    assert loaded.state.target == posterior().fingerprint
    assert loaded.settings["instruction_set"] == posterior().instruction_set
    with pytest.raises(ValueError, match="another prior"):
        sampler(posterior(prior=rb.Normal(2.0))).sample(2, resume=loaded, progress=False)


# two epochs and forty, of which SWAG's still rise: what they converge to does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.parametrize("trainer", [rb.BBB, rb.DeepEnsemble, rb.SWAG, rb.LaplaceApproximation])
def test_fits_of_another_target_are_refused(trainer):
    options = {"members": 2} if trainer in (rb.DeepEnsemble, rb.SWAG) else {}
    epochs = 0 if trainer is rb.SWAG else 2  # of a fit that has collected
    fit = trainer(posterior(), batch_size=10, **options).fit(2, progress=False)
    other = trainer(posterior(y=Y + 1), batch_size=10, **options)
    with pytest.raises(ValueError, match="another data"):
        other.fit(epochs, resume=fit, progress=False)
    same = trainer(posterior(), batch_size=10, **options)
    assert same.fit(epochs, resume=fit, progress=False).complete


def test_masks_are_part_of_the_target():
    def of(rate):
        model = rb.Model(
            [rb.Dense(4), rb.Activation("relu"), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,)
        )
        target = rb.Posterior(model, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.5))
        return target.masked(rate=rate)

    assert of(0.2).fingerprint == of(0.2).fingerprint
    assert of(0.2).fingerprint != of(0.3).fingerprint


CHILD = """
    import sys
    import numpy as np, ribbit as rb
    x = np.random.default_rng(2).normal(size=(30, 2))
    model = rb.mlp(2, (4,), 1)
    target = rb.Posterior(model, x, x[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.5))
    hmc = rb.HMC(target, step_size=0.02, num_leapfrog_steps=4)
    if sys.argv[1] == "save":
        hmc.sample(3, warmup=1, chains=2, progress=False).save(sys.argv[2])
    else:
        hmc.sample(2, resume=rb.load(sys.argv[2]), progress=False)
"""


def child(isa, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), *arguments],
        env={**os.environ, "RIBBIT_ISA": isa},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif("avx2" not in _core.available_isas(), reason="this processor has no AVX2")
def test_another_instruction_set_is_refused_with_the_line_that_goes_on(tmp_path):
    path = str(tmp_path / "draws.npz")
    assert child("baseline", "save", path).returncode == 0
    assert rb.load(path).settings["instruction_set"] == "baseline"
    assert child("baseline", "resume", path).returncode == 0
    refused = child("avx2", "resume", path)
    assert refused.returncode == 1
    assert "expected a state of the same instruction set" in refused.stderr
    assert "RIBBIT_ISA=baseline" in refused.stderr


def test_a_start_of_the_models_parameters_alone_is_told_what_it_lacks():
    """Weights from elsewhere, such as a PyTorch module, have no log_noise."""
    target = posterior(likelihood=rb.Gaussian())
    theta = target.model.init()
    with pytest.raises(ValueError, match="without log_noise, which stands last"):
        hmc(target).sample(2, init=theta)
    draws = hmc(target).sample(2, warmup=0, init=np.append(theta, 0.0), progress=False)
    assert draws.positions.shape == (4, 2, target.dim)
    with pytest.raises(ValueError, match=r"got shape \(3,\)$"):
        hmc(target).sample(2, init=np.zeros(3))


def test_sizes_that_errors_name_are_the_users():
    """With nothing set HMC integrates the last layer out: its states are smaller than a draw."""
    x, y = rb.datasets.toy_regression(60, seed=0)
    target = rb.Posterior(rb.mlp(1, (6,), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    free = rb.HMC(target)
    draws = free.sample(2, warmup=20, progress=False)
    whole = target.dim
    assert draws.state.position.shape[1] < whole
    with pytest.raises(ValueError, match=rf"init \({whole},\).* log_noise, which stands last"):
        free.sample(2, init=np.zeros(whole - 1))
    with pytest.raises(ValueError, match=rf"got shape \(4, 2, {whole}\): .*draws.positions"):
        free.sample(2, init=draws.positions)
    for given in ({"step_size": 0.01}, {"inverse_mass_matrix": "adapt"}):
        with pytest.raises(ValueError, match="the two samplers integrates the last layer out"):
            rb.HMC(target, num_leapfrog_steps=3, **given).sample(2, resume=draws)
    model = rb.mlp(1, (7,), 1)
    wider = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    with pytest.raises(ValueError, match=r"another model, prior: init=draws\.positions"):
        rb.HMC(wider).sample(2, resume=draws)
