"""Rows for modules: tensors of any kind, DataLoaders whose samplers mean something, random rows."""

import re
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ModuleWarning

torch = pytest.importorskip("torch", reason="needs PyTorch")

import ribbit.torch  # noqa: E402
from tests.torch.modules import dense, rows  # noqa: E402

data = torch.utils.data
X, Y = rows()
N = len(X)
PAIRS = data.TensorDataset(X, Y)
HOW = {"prior": rb.Normal(1.0)}


def posterior(given, **how):
    return rb.torch.posterior(dense(), rb.Gaussian(0.3), given, **HOW, **how)


REFUSED = {
    "sparse": lambda t: t.to_sparse(),
    "compressed": lambda t: torch.atleast_2d(t).to_sparse_csr(),
    "meta": lambda t: t.to("meta"),
    "complex": lambda t: t.to(torch.complex64),
    "nested": lambda t: torch.nested.nested_tensor(list(torch.atleast_2d(t))),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "empty": lambda t: t[:0],
    "scalar": lambda t: t.flatten()[0],
    "infinite": lambda t: t / 0,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("name", REFUSED)
def test_tensors_without_rows_of_numbers_are_refused_by_name(name, native):
    kind = REFUSED[name]
    for word, given in (("x", (kind(X), Y)), ("y", (X, kind(Y)))):
        with pytest.raises((TypeError, ValueError)) as caught:
            posterior(given, native=native)
        assert str(caught.value).startswith("[posterior]")
        assert re.search(rf"\b{word}\b", str(caught.value))
    target = posterior((X, Y), native=native)
    with pytest.raises((TypeError, ValueError), match=r"\bx\b"):
        target.outputs(target.trained, kind(X))


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.uint16])
def test_whole_numbers_that_a_layer_does_not_take_are_refused_by_name(dtype, native):
    with pytest.raises(ValueError, match=r"^\[posterior\] expected x as the module takes it, got"):
        posterior(((10 * X).abs().to(dtype), Y), native=native)


KINDS = {
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "gradient": lambda t: t.clone().requires_grad_(),
    "parameter": lambda t: torch.nn.Parameter(t.clone()),
    "strides": lambda t: torch.stack([t, t], -1)[..., 1],
    "negative": lambda t: torch._neg_view(-t),
}


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("name", KINDS)
def test_other_tensors_of_numbers_are_their_values(name, native):
    kind = KINDS[name]
    given = kind(X), kind(Y)
    plain = tuple(part.detach().float().clone() for part in given)
    found, known = posterior(given, native=native), posterior(plain, native=native)
    theta = known.init(1)
    assert found.value_and_grad(theta)[0] == known.value_and_grad(theta)[0]
    np.testing.assert_array_equal(found.outputs(theta, given[0]), known.outputs(theta, plain[0]))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.bool, torch.int8, torch.float16])
def test_labels_of_any_dtype_are_labels(dtype):
    labels = torch.arange(N) % 2
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    for native in (None, False):
        values = [
            rb.torch.posterior(net, rb.Categorical(), (X, y), native=native, **HOW).value_and_grad(
                np.ones(8, np.float32)
            )[0]
            for y in (labels, labels.to(dtype))
        ]
        assert values[0] == values[1]


class Repeats(data.Sampler):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


WEIGHTS = torch.ones(N)
WEIGHTS[:5] = 100.0
LEAVES_OUT = {
    "weights": {"sampler": data.WeightedRandomSampler(WEIGHTS, N)},
    "some": {"sampler": data.SubsetRandomSampler(range(5))},
    "replacement": {"sampler": data.RandomSampler(PAIRS, replacement=True)},
    "fewer": {"sampler": data.RandomSampler(PAIRS, num_samples=5)},
    "more": {"sampler": data.RandomSampler(PAIRS, num_samples=2 * N)},
    "twice": {"sampler": Repeats([*range(N), 0])},
    "list": {"sampler": list(range(5))},
    "ranks": {"sampler": data.DistributedSampler(PAIRS, 2, 0)},
    "batches": {"batch_sampler": Repeats([[0, 1], [2, 3]])},
    "batches of weights": {
        "batch_sampler": data.BatchSampler(data.WeightedRandomSampler(WEIGHTS, N), 4, False)
    },
    "no batches": {"batch_size": None},
}


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("name", LEAVES_OUT)
def test_a_sampler_that_repeats_rows_or_leaves_some_out_is_refused(name, in_memory):
    loader = data.DataLoader(PAIRS, **LEAVES_OUT[name])
    with pytest.raises(ValueError, match=r"^\[posterior\] expected a DataLoader"):
        posterior(loader, in_memory=in_memory)


ORDERS = {
    "shuffled": {"shuffle": True, "batch_size": 4},
    "permuted": {"sampler": Repeats(list(reversed(range(N)))), "batch_size": 4},
    "weights without replacement": {
        "sampler": data.WeightedRandomSampler(WEIGHTS, N, replacement=False),
        "batch_size": 4,
    },
    "batches": {"batch_sampler": data.BatchSampler(data.SequentialSampler(PAIRS), 4, False)},
    "nothing dropped": {"batch_size": 4, "drop_last": True},
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_sampler_that_orders_rows_changes_nothing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target, known = posterior(data.DataLoader(PAIRS, **ORDERS[name])), posterior((X, Y))
    theta = known.init(1)
    assert target.batch_size == 4
    assert target.value_and_grad(theta)[0] == known.value_and_grad(theta)[0]


def test_rows_that_a_loader_drops_count_and_are_named():
    with pytest.warns(ModuleWarning, match="also those that it drops") as caught:
        target = posterior(data.DataLoader(PAIRS, batch_size=7, drop_last=True))
    assert target.num_rows == N
    assert [w.filename for w in caught] == [__file__]


class Noisy(data.Dataset):
    """Rows with noise of torch, of numpy or of a generator of their own."""

    def __init__(self, kind):
        self.kind, self.own = kind, np.random.default_rng()

    def __len__(self):
        return N

    def __getitem__(self, i):
        noise = {
            "torch": lambda: torch.rand(()),
            "numpy": lambda: float(np.random.rand()),  # noqa: NPY002
            "own": lambda: float(self.own.normal()),
            "rare": lambda: float(torch.rand(()) < 1e-6),
        }
        return X[i] + noise[self.kind](), Y[i]


def mixed(batch):
    x, y = data.default_collate(batch)
    return x + x[torch.randperm(len(x))], y


def centred(batch):
    x, y = data.default_collate(batch)
    return x - x.mean(0), y


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("kind", ["torch", "numpy", "own", "rare"])
def test_rows_that_are_random_are_named(kind, in_memory):
    with pytest.warns(ModuleWarning, match="whose rows are random"):
        posterior(Noisy(kind), in_memory=in_memory)


@pytest.mark.parametrize("collate", [mixed, centred])
def test_a_collate_function_that_mixes_rows_is_named(collate):
    with pytest.warns(ModuleWarning, match="random or depend on their batch"):
        posterior(data.DataLoader(PAIRS, batch_size=4, collate_fn=collate))


def test_a_collate_function_that_drops_rows_is_refused():
    def part(batch):
        return tuple(p[1:] for p in data.default_collate(batch))

    for in_memory in (True, False):
        with pytest.raises(ValueError, match="a collate function that keeps every row"):
            posterior(data.DataLoader(PAIRS, collate_fn=part, batch_size=4), in_memory=in_memory)


def test_a_loader_of_a_list_of_pairs_is_read():
    target = posterior(data.DataLoader(list(zip(X, Y, strict=True)), batch_size=4))
    assert (target.num_rows, target.batch_size) == (N, 4)
    with pytest.raises(TypeError, match=r"expected a Dataset whose rows \(x, y\) make batches"):
        posterior(data.DataLoader([(torch.zeros(2), 0.0), (torch.zeros(3), 0.0)], batch_size=2))
