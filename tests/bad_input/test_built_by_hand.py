"""Results that a user builds from anything, and arrays that repeat their memory."""

import numpy as np
import pytest

import ribbit as rb
from tests.support.rubbish import DIM, MODEL, X, Y, target

TARGET = target()
HMC = rb.HMC(TARGET, step_size=0.1, num_leapfrog_steps=2)
THETA = np.zeros((2, 3))
CUBE = np.zeros((2, 1, 3))
# Right arguments, and the places of an array and of a number among them.
RIGHT = {
    "SWAGFit": ((THETA, THETA, CUBE, 1, 0, True, {}), 2, 3),
    "LaplaceFit": ((np.zeros(3), np.eye(2), 1, 0.0, 0.0, 2.0, True, {}), 1, 3),
    "EnsembleFit": ((THETA, True, {}), 0, 1),
    "DropoutFit": ((np.zeros(3), np.zeros(1), True, {}, TARGET), 0, 2),
    "MeanField": ((np.zeros(3), np.ones(3), *3 * [np.zeros(1)], True, {}), 2, 5),
    "DiscretizationBias": ((("a", "b"), np.zeros((2, 2)), np.zeros(2), 0, "step_size", 1, 1), 1, 3),
    "StochasticState": ((THETA, *3 * [None], 1, 0, None), 0, 4),
    "MicrocanonicalState": ((THETA, *4 * [None], 1, 0, *4 * [None]), 0, 5),
}


@pytest.mark.parametrize("name", RIGHT)
def test_fields_are_of_their_kinds(name):
    kind, (right, array, number) = getattr(rb, name), RIGHT[name]
    repr(kind(*right))
    for bad in (None, 3, "x", [1.0], {"a": 1}, np.zeros((1, 1, 1, 1)), len):
        with pytest.raises((TypeError, ValueError), match=rf"^\[{name}\] .*, got"):
            kind(*right[:array], bad, *right[array + 1 :])
    with pytest.raises(TypeError, match=rf"^\[{name}\] .*, got str 'x'"):
        kind(*right[:number], "x", *right[number + 1 :])


def test_axes_agree():
    with pytest.raises(ValueError, match=r"^\[SWAGFit\] squares must have shape \(M=2, P=3\), got"):
        rb.SWAGFit(THETA, THETA[:, :2], CUBE, 1, 0, True, {})
    with pytest.raises(TypeError, match=r"^\[EnsembleFit\] theta must be real numbers, got <U1"):
        rb.EnsembleFit(THETA.astype("U1"), True, {})


@pytest.mark.parametrize("bad", [None, 3.0, "x", X, rb.Posterior])
def test_a_prediction_needs_what_predicts(bad):
    with pytest.raises(TypeError, match=r"^\[Prediction\] predictive must predict, .*, got"):
        rb.Prediction(bad, X)
    with pytest.raises((TypeError, ValueError), match=r"^\[Prediction\] positions must .*, got"):
        rb.Prediction(TARGET, X, positions="x" if bad is None else bad)
    with pytest.raises(TypeError, match=r"^\[Prediction\] running must be statistics .*, got"):
        rb.Prediction(TARGET, X, running="x" if bad is None else bad)


def test_a_prediction_needs_draws():
    with pytest.raises(TypeError, match=r"^\[Prediction\] expected positions or running, got n"):
        rb.Prediction(TARGET, X)


def test_a_handle_is_made_by_a_sampler():
    for arguments in ((), ("HMC", TARGET, False)):
        with pytest.raises(TypeError, match=r"^\[RunHandle\] handles are made by sample"):
            rb.RunHandle(*arguments)


REPEATED = np.broadcast_to(0.0, (10**9, X.shape[1]))
CALLS = {
    "Posterior": lambda: rb.Posterior(
        MODEL, REPEATED, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(1.0)
    ),
    "value_and_grad": lambda: TARGET.value_and_grad(
        np.broadcast_to(np.zeros(DIM, TARGET.dtype), (10**9, DIM))
    ),
    "predict": lambda: HMC.sample(1, warmup=0, progress=False).predict(REPEATED),
    "rmse": lambda: rb.metrics.rmse(REPEATED, REPEATED),
    "write_npy": lambda: rb.datasets.write_npy("never.npy", REPEATED),
    "standardize": lambda: rb.datasets.standardize(REPEATED),
    "BNNRegressor": lambda: pytest.importorskip("ribbit.sklearn").BNNRegressor().fit(REPEATED, Y),
    "predictive_ess": lambda: rb.diagnostics.predictive_ess(
        HMC.sample(4, warmup=0, progress=False), REPEATED
    ),
    "rhat": lambda: rb.diagnostics.rhat(REPEATED),
}


@pytest.mark.parametrize("name", CALLS)
def test_views_that_repeat_their_memory_are_refused(name):
    """No 16 GB are read, let alone copied."""
    with pytest.raises(rb.errors.DataError, match=r"must lie in memory, got .* that repeats \d+ b"):
        CALLS[name]()


def test_small_views_that_repeat_their_memory_are_taken():
    assert rb.metrics.rmse(np.broadcast_to(0.0, (9,)), np.zeros(9)) == 0.0


class Alone:
    rank, size = 0, 1

    def gather(self, send, receive, sizes):
        receive[:] = send

    def exchange(self, send, send_sizes, receive, receive_sizes):
        receive[:] = send


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("gather", (b"", bytearray(), X)),
        ("gather", (b"", bytearray(), ["a"])),
        ("swap", (b"", [0], bytearray(), {})),
        ("collect", ("text",)),
        ("first", (lambda: None,)),
        ("alike", ("f", [1])),
        ("alike", ("f", {"a": 1.0})),
        ("agree", (False, 1.5, 0)),
        ("meet", (False, 2**63)),
    ],
)
def test_calls_of_a_group(method, arguments):
    group = rb.distributed.Group(Alone())
    with pytest.raises((TypeError, ValueError), match=rf"^\[Group.{method}\] .*, got"):
        getattr(group, method)(*arguments)


def test_arguments_of_methods_of_a_posterior():
    for bad in (None, "3", 1.5, X):
        with pytest.raises(TypeError, match=r"^\[Posterior.inputs\] expected count as an integer"):
            TARGET.inputs(bad)
    learned = rb.Posterior(MODEL, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    for bad in (None, 3, memoryview(np.zeros(learned.dim, np.float32)), [0.0]):
        with pytest.raises(TypeError, match=r"^\[Posterior.unravel\] expected an array .*, got"):
            learned.unravel(bad)


def test_targets_of_another_number_of_columns():
    two = rb.Posterior(
        rb.mlp(X.shape[1], (3,), 2),
        X,
        np.stack([Y, -Y], 1),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(1.0),
        standardize=True,
    )
    draws = rb.HMC(two, step_size=0.1, num_leapfrog_steps=2).sample(2, warmup=0, progress=False)
    for bad in (Y, Y[:, None], np.stack([Y] * 3, 1), 0.0):
        with pytest.raises((TypeError, ValueError), match=r"^\[.*\] expected y .*, got"):
            draws.predict(X).log_likelihood(bad)


@pytest.mark.parametrize("name", ["ModuleDensity", "ModulePosterior"])
def test_targets_of_modules_are_made_by_a_function(name):
    face = pytest.importorskip("ribbit.torch")
    right = {"prior": rb.Normal(1.0), "temperature": 1.0, "likelihood_temperature": 1.0}
    right |= {"dtype": np.float32, "outputs": 1, "flat": False, "vmap": True, "chunk_size": 1}
    right |= {"why": "", "writes": False, "dropping": frozenset()}
    for bad in (None, {1, 2}, X, "x"):
        with pytest.raises(TypeError, match=rf"^\[{name}\] rb.torch.posterior\(...\) makes"):
            getattr(face, name)(bad, rb.Gaussian(1.0), bad, **right)


@pytest.mark.parametrize("keep", [-40, 200, 30])
def test_a_damaged_archive(keep, tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:keep])
    with pytest.raises(rb.errors.DataError, match=r"^\[read_npz\] expected .*, got"):
        rb.datasets.read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("bad", [TARGET, rb.Normal(1.0), {"mean": Y}, rb.Gaussian, rb.Posterior])
def test_scores_of_what_is_no_prediction(bad):
    for call in (rb.metrics.rmse, rb.metrics.brier, rb.metrics.accuracy, rb.metrics.nll):
        with pytest.raises((TypeError, ValueError), match=r"^\[\w+\] expected .*, got"):
            call(np.zeros(3, int), bad)


def test_a_tree_of_lists():
    pytest.importorskip("arviz_base")
    draws = HMC.sample(4, warmup=0, progress=False)
    tree = draws.to_datatree(x=X.tolist(), y=Y)
    np.testing.assert_allclose(tree["observed_data"]["y"], Y)


def test_schedules_of_another_kind_are_shown():
    for draws_per_cycle in (..., None, "x"):
        shown = repr(rb.schedules.Schedule("constant", draws_per_cycle=draws_per_cycle))
        assert shown == "schedules.constant()"


def test_steps_of_a_module():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(X.shape[1], 1)
    data = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
    given = {"prior": rb.Normal(1.0), "native": False}
    target = pytest.importorskip("ribbit.torch").posterior(net, rb.Gaussian(1.0), data, **given)
    one, many = np.ones(1), np.zeros((6, target.dim), np.float32)
    many[1] = 1.0
    steps = {"seed": 0, "first_step": 0, "batch_size": 2, "step_size": one, "decay": (0.9, 0.99)}
    right = steps | {"num_samples": 1, "estimator": "reparam", "closed": True, "kl_weight": one}
    right |= {"epsilon": 1e-8}
    assert np.isfinite(target.advance_variational(many, **right)[0]).all()
    for name in right:
        with pytest.raises((TypeError, ValueError), match=r"^\[.*\] .*, got"):
            target.advance_variational(many, **{**right, name: {1, 2}})
    for bad in (None, X, HMC.sample(1, warmup=0).state):
        with pytest.raises((TypeError, ValueError), match=r"advance_variational\] state must"):
            target.advance_variational(bad, **right)
    own = steps | {"noise": one, "rule": "adam", "prior": 1.0, "friction": 0.0, "epsilon": 1e-8}
    own |= {"chains": np.zeros(1, np.uint32), "previous_step_size": 0.1, "adapt_until": 0}
    start = np.zeros((3, 1, target.dim), np.float32)
    assert np.isfinite(target.advance(*start, **own)[0]).all()
    for name in own:
        with pytest.raises((TypeError, ValueError), match=r"^\[.*\] .*, got"):
            target.advance(*start, **{**own, name: {1, 2}})
    for i in range(3):
        with pytest.raises((TypeError, ValueError), match=r"^\[.*\] .*, got"):
            target.advance(*start[:i], X, *start[i + 1 :], **own)


def test_classes_are_no_targets():
    for kind in (rb.HMC, rb.NUTS, rb.MCLMC, rb.SGLD, rb.BBB, rb.SWAG, rb.DeepEnsemble):
        with pytest.raises(TypeError, match=rf"^\[{kind.__name__}\] expected a target with dim"):
            kind(rb.Posterior)
