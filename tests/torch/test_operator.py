"""A target's log density inside torch, judged by torch's own checks on five networks."""

import numpy as np
import pytest

import ribbit as rb

torch = pytest.importorskip("torch", reason="needs PyTorch")

import ribbit.torch  # noqa: E402
from tests.torch.modules import targets  # noqa: E402

TARGETS = targets()


@pytest.fixture(params=TARGETS)
def case(request):
    """A target, its function, and two positions that want a gradient."""
    target = TARGETS[request.param]
    theta = torch.from_numpy(0.7 * target.init(seed=1, chains=2)).requires_grad_(True)
    return target, rb.torch.torch_log_density(target), theta


def operator(f):
    """What graphs have of f."""
    return lambda theta: torch.ops.ribbit.log_density(theta, f._number)[0]


@pytest.mark.parametrize("form", [lambda f: f, operator], ids=["function", "operator"])
def test_gradcheck(case, form):
    f, theta = form(case[1]), case[2]
    assert torch.autograd.gradcheck(f, (theta,))
    assert torch.autograd.gradcheck(f, (theta.detach()[0].clone().requires_grad_(True),))


def test_opcheck(case):
    _, f, theta = case
    found = torch.library.opcheck(torch.ops.ribbit.log_density.default, (theta, f._number))
    assert set(found.values()) == {"SUCCESS"}
    assert len(found) == 4


def test_compile_of_the_whole_graph(case):
    target, f, theta = case
    # The graph is what is asked for; code that a compiler writes for it is torch's business.
    run = torch.compile(lambda a: -2 * f(a).sum(), fullgraph=True, backend="aot_eager")
    loss = run(theta)
    (grad,) = torch.autograd.grad(loss, theta)
    value, known = target.value_and_grad(theta.detach().numpy())
    assert loss.item() == pytest.approx(-2 * value.sum(), rel=1e-14)
    np.testing.assert_allclose(grad.numpy(), -2 * known, rtol=1e-14)


@pytest.mark.parametrize("form", [lambda f: f, operator], ids=["function", "operator"])
def test_double_backward_is_refused_by_name_and_is_no_zero(case, form):
    f, theta = form(case[1]), case[2]
    (grad,) = torch.autograd.grad(f(theta).sum(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch_log_density.*double backward"):
        torch.autograd.grad(grad.sum(), theta)
    one = theta.detach()[0]
    with pytest.raises(RuntimeError, match=r"torch_log_density.*double backward"):
        torch.autograd.functional.hessian(f, one)


def test_transforms_of_torch_func(case):
    target, f, theta = case
    theta = theta.detach()
    known, slope = target.value_and_grad(theta.numpy())
    np.testing.assert_array_equal(torch.func.vmap(f)(theta).numpy(), known)
    grad, value = torch.func.grad_and_value(lambda a: 3 * f(a))(theta[0])
    np.testing.assert_allclose(value.item(), 3 * known[0])
    np.testing.assert_allclose(grad.numpy(), 3 * slope[0], rtol=1e-14)
    np.testing.assert_array_equal(torch.func.vmap(torch.func.grad(f))(theta).numpy(), slope)
    per_row = torch.func.vmap(operator(f))(theta)
    np.testing.assert_array_equal(per_row.numpy(), known)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in jvp
def test_second_derivatives_of_torch_func_are_refused_by_name():
    f = rb.torch.torch_log_density(TARGETS["perceptron"])
    theta = torch.from_numpy(f.target.init(seed=0))
    slope = torch.func.grad(f)
    for refused in (
        lambda: torch.func.jacrev(slope)(theta),
        lambda: torch.func.grad(lambda a: slope(a).sum())(theta),
        lambda: torch.func.vmap(torch.func.jacrev(slope))(theta[None]),
        lambda: torch.func.hessian(f)(theta),
        lambda: torch.func.jvp(f, (theta,), (theta,)),
        lambda: torch.func.jacfwd(slope)(theta),
    ):
        with pytest.raises(RuntimeError, match=r"^\[torch_log_density\] expected"):
            refused()


def test_a_graph_that_is_traced_holds_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    f = rb.torch.torch_log_density(TARGETS["perceptron"])
    theta = torch.from_numpy(f.target.init(seed=0, chains=2))
    for mode in ("real", "fake"):
        graph = make_fx(f, tracing_mode=mode)(theta)
        assert "ribbit.log_density" in graph.code
        np.testing.assert_array_equal(graph(0.5 * theta).numpy(), f(0.5 * theta).numpy())


def test_a_wrong_gradient_would_be_noticed():
    class Wrong:
        dim = 2

        def value_and_grad(self, theta, rows=None):
            return -0.5 * (theta**2).sum(-1), -1.01 * theta

    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(rb.torch.torch_log_density(Wrong()), (theta,))


def test_float32_values_are_float64():
    target = rb.Posterior(
        rb.mlp(1, (3,), 1),
        np.zeros((4, 1)),
        np.zeros(4),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
    )
    f = rb.torch.torch_log_density(target)
    theta = torch.from_numpy(target.init(seed=0)).requires_grad_(True)
    value = f(theta)
    assert value.dtype == torch.float64
    assert float(value.detach()) == target.value_and_grad(theta.detach().numpy())[0]
    value.backward()
    assert theta.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("theta", "message"),
    [
        (np.zeros(3), "expected theta as a torch.float64 tensor, got "),
        (torch.zeros(3), "expected theta as a torch.float64 tensor, got torch.float32"),
        (torch.zeros(3, dtype=torch.float64), r"expected theta \(66,\) or \(C, 66\)"),
        (torch.zeros(0, 66, dtype=torch.float64), r"expected theta \(66,\)"),
    ],
)
def test_bad_positions(theta, message):
    f = rb.torch.torch_log_density(TARGETS["perceptron"])
    assert f.dim == 66
    with pytest.raises((TypeError, ValueError), match=r"^\[torch_log_density\] " + message):
        f(theta)


def test_bad_targets():
    with pytest.raises(TypeError, match="target with value_and_grad"):
        rb.torch.torch_log_density(3)
    assert "dim" in repr(rb.torch.torch_log_density(TARGETS["perceptron"]))
