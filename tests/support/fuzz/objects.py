"""One object of every public kind, in odd states too, each small enough for milliseconds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20_261_128
ROWS = 12


def build(folder: Path) -> dict[str, Any]:
    """Return the objects by their names; runs and files go to `folder`."""
    import ribbit as rb

    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(ROWS, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=ROWS)
    labels = np.arange(ROWS) % 3
    mlp = rb.mlp(2, (3,), 1)
    made: dict[str, Any] = {
        "x": x,
        "y": y,
        "Model": mlp,
        **_layers(rb),
        "Normal": rb.Normal(1.0),
        "Learned scale": rb.Normal(rb.HalfNormal(1.0), per="layer"),
        **{name: getattr(rb, name)(1.0) for name in ("Laplace", "Horseshoe", "HalfCauchy")},
        "StudentT": rb.StudentT(4.0, 1.0),
        "ScaleMixture": rb.ScaleMixture(0.5, 1.0, 0.1),
        "InverseGamma": rb.InverseGamma(2.0, 1.0),
        "Gaussian": rb.Gaussian(0.3),
        "Categorical": rb.Categorical(),
        "Schedule": rb.schedules.cosine(10),
        "Store": rb.Store(folder / "other"),
        "Group": rb.distributed.Group(_Alone()),
        "CallableDensity": rb.CallableDensity(lambda q: (-0.5 * q @ q, -q), 3),
        "Converged": rb.Converged(),
        "EnsembleStart": rb.EnsembleStart(),
        "Scaler": rb.datasets.standardize(x, y),
        "MeanField": rb.MeanField(np.zeros(3), np.ones(3)),
    }
    targets = _targets(rb, x, y, labels)
    made |= targets
    short = {"warmup": 1, "chains": 2, "progress": False}
    few = {"step_size": 0.01, "num_leapfrog_steps": 2}
    for name, one in {**targets, "CallableDensity": made["CallableDensity"]}.items():
        if name == "Dropout posterior":
            continue
        made[f"Draws of {name}"] = rb.HMC(one, **few).sample(4, **short)
        if name in targets:
            rows = np.resize(x, (3, *one.model.input_shape))
            made[f"Prediction of {name}"] = made[f"Draws of {name}"].predict(np.abs(rows) // 1)
    target = made["Posterior"]
    for kind, options in (
        (rb.HMC, few),
        (rb.NUTS, {"step_size": 0.01}),
        (rb.MCLMC, {"step_size": 0.01, "decoherence_length": 0.1}),
        (rb.SGLD, {"step_size": 1e-6, "batch_size": 4}),
        (rb.SGHMC, {"step_size": 1e-6, "batch_size": 4}),
        (rb.BAOAB, {"step_size": 1e-6, "batch_size": 4}),
    ):
        name = kind.__name__
        sampler = made[name] = kind(target, **options)
        made[f"Draws of {name}"] = sampler.sample(8, **{**short, "thin": 1})
        made[f"State of {name}"] = made[f"Draws of {name}"].state
        made[f"Chains of {name}"] = rb.Chains(sampler, chains=2, warmup=1)
    hmc = made["HMC"]
    made["State"], made["Draws"] = made["State of HMC"], made["Draws of HMC"]
    made["Draws kept"] = hmc.sample(4, predict_at=x, **short)
    made["One draw of one chain"] = hmc.sample(1, warmup=0, chains=1, progress=False)
    made["No draws"] = hmc.sample(9, max_seconds=1e-9, **short)
    made["Thinned"] = hmc.sample(2, thin=2, **short)
    made["Stored"] = hmc.sample(4, store=str(folder / "run"), **short)
    made["Reopened"] = rb.load(folder / "run")
    made["RunHandle"] = hmc.sample(2, **short, blocking=False)
    made["Joined"] = rb.concatenate(
        [made["Draws"], hmc.sample(8, **{**short, "chains": [4, 5]})], axis="chains"
    )
    made["Prediction"] = made["Draws"].predict(x)
    made["Prediction with draws"] = made["Draws"].predict(x, keep=True)
    made["Summary"] = made["Draws"].summary(x)
    for name, fitter in (
        ("BBB", rb.BBB(target)),
        ("DeepEnsemble", rb.DeepEnsemble(target, members=2)),
        ("SWAG", rb.SWAG(target)),
        ("LaplaceApproximation", rb.LaplaceApproximation(target)),
        ("MCDropout", rb.MCDropout(made["Dropout posterior"])),
    ):
        made[name] = fitter
        made[f"Fit of {name}"] = fitter.fit(2, seed=0, progress=False)
        made[f"Summary of {name}"] = made[f"Fit of {name}"].summary()
        with contextlib.suppress(ValueError):
            made[f"Fit of {name} without epochs"] = fitter.fit(0, seed=0, progress=False)
    made["Draws of a fit"] = made["Fit of BBB"].draws(3)
    made |= _estimators(x, y, labels)
    made |= _modules(x, y)
    made["Draws"].save(folder / "draws")
    made["Fit of BBB"].save(folder / "fit")
    (folder / "empty").write_bytes(b"")
    (folder / "noise").write_bytes(rng.bytes(999))
    (folder / "cut").write_bytes((folder / "draws").read_bytes()[:-99])
    (folder / "table.csv").write_text("a,b\n1,2\n3,x\n")
    np.savez(folder / "arrays.npz", x=x, y=y)
    np.save(folder / "array.npy", x)
    made["paths"] = [str(one) for one in folder.iterdir()] + [str(folder), "missing/draws"]
    return made


class _Alone:
    """A communicator of one process."""

    rank, size = 0, 1

    def gather(self, send: Any, receive: Any, sizes: Any) -> None:
        receive[:] = send

    def exchange(self, send: Any, send_sizes: Any, receive: Any, receive_sizes: Any) -> None:
        receive[:] = send


def _layers(rb: Any) -> dict[str, Any]:
    return {
        "Dense": rb.Dense(1),
        "Activation": rb.Activation("tanh"),
        "Conv2D": rb.Conv2D(2, 2),
        "Conv1D": rb.Conv1D(2, 2),
        "LSTM": rb.LSTM(2),
        "Embedding": rb.Embedding(5, 2),
        "Residual": rb.Residual([rb.Dense(2)]),
        "LayerNorm": rb.LayerNorm(),
        "Dropout": rb.Dropout(0.1),
        "MaxPool2D": rb.MaxPool2D(2),
        "Flatten": rb.Flatten(),
    }


def _targets(rb: Any, x: Any, y: Any, labels: Any) -> dict[str, Any]:
    """Posteriors of every likelihood and kind of network."""

    def posterior(layers: Any, x: Any, y: Any, likelihood: Any, **options: Any) -> Any:
        model = rb.Model(layers, input_shape=x.shape[1:])
        options = {"prior": rb.Normal(1.0), "marginalize": None, **options}
        return rb.Posterior(model, x, y, likelihood=likelihood, **options)

    def dense(units: int) -> list[Any]:
        return [rb.Dense(3), rb.Activation("tanh"), rb.Dense(units)]

    images, words = np.resize(x, (ROWS, 4, 4, 1)), np.arange(ROWS)[:, None] % 5
    noise, learned = rb.Gaussian(0.3), rb.Gaussian()
    two = np.stack([y, -y], 1)
    return {
        "Posterior": posterior(dense(1), x, y, learned),
        "Posterior of classes": posterior(dense(3), x, labels, rb.Categorical()),
        "Posterior of counts": posterior(dense(1), x, labels, rb.Poisson()),
        "Posterior of bits": posterior(dense(2), x, (two > 0).astype(int), rb.Bernoulli()),
        "Two outputs": posterior(dense(2), x, two, learned),
        "Heteroscedastic": posterior(dense(2), x, y, rb.HeteroscedasticGaussian()),
        "Heavy tails": posterior(dense(1), x, y, rb.StudentTNoise(4.0)),
        "Dropout posterior": posterior(
            [rb.Dense(3), rb.Dropout(0.1), rb.Activation("tanh"), rb.Dense(1)], x, y, noise
        ),
        "Learned scales": posterior(
            dense(1), x, y, learned, prior=rb.Normal(rb.HalfNormal(1.0), per="layer")
        ),
        "Double": posterior(dense(1), x, y, noise, dtype="float64"),
        "Last layer out": posterior(
            dense(1), x, y, noise, marginalize="last_layer", dtype="float64"
        ),
        "Weighted": posterior(dense(1), x, y, noise, sample_weight=np.ones(ROWS)),
        "Tempered": posterior(dense(1), x, y, noise, temperature=0.5),
        "Convolution": posterior([rb.Conv2D(2, 2), rb.Flatten(), rb.Dense(1)], images, y, noise),
        "Recurrent": posterior([rb.LSTM(2), rb.Dense(1)], x.reshape(ROWS, 2, 1), y, noise),
        "Words": posterior([rb.Embedding(5, 2), rb.Flatten(), rb.Dense(1)], words, y, noise),
        "Tree": posterior(dense(1), x, y, learned, prior={"*": rb.Normal(1.0)}),
    }


def _estimators(x: Any, y: Any, labels: Any) -> dict[str, Any]:
    try:
        from ribbit.sklearn import BNNClassifier, BNNRegressor
    except ImportError:
        return {}
    quick = {"method": "ensemble", "epochs": 1, "chains": 2, "hidden": (3,), "draws": 4}
    return {
        "BNNRegressor": BNNRegressor(**quick).fit(x, y),
        "BNNRegressor of two": BNNRegressor(**quick).fit(x, np.stack([y, -y], 1)),
        "BNNRegressor not fitted": BNNRegressor(**quick),
        "BNNClassifier": BNNClassifier(**quick).fit(x, labels),
        "BNNClassifier of words": BNNClassifier(**quick).fit(x, np.array(["a", "b", "c"])[labels]),
        "BNNClassifier not fitted": BNNClassifier(**quick),
    }


def _modules(x: Any, y: Any) -> dict[str, Any]:
    try:
        import torch

        import ribbit as rb
        import ribbit.torch as face
    except ImportError:
        return {}
    torch.manual_seed(0)
    dense = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    twice = torch.nn.Bilinear(2, 2, 1)
    data = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)

    class Squared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = twice

        def forward(self, x: Any) -> Any:
            return self.inner(x, x)

    given = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3)}
    native = face.posterior(dense, data=data, **given)
    traced = face.posterior(Squared(), data=data, **given)
    draws = rb.HMC(traced, step_size=0.01, num_leapfrog_steps=2).sample(
        4, warmup=1, chains=2, progress=False
    )
    return {
        "Module": dense,
        "NativePosterior": native,
        "ModulePosterior": traced,
        "Draws of a module": draws,
        "LogDensity of torch": face.torch_log_density(native),
        "tensor": torch.zeros(4, 2),
    }
