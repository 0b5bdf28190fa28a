"""Samplers, fits, results and tools: right arguments, and what is wrong for each."""

import functools

import numpy as np

import ribbit as rb
from tests.support.fuzz import malformed as m
from tests.support.fuzz.problem import (
    BAOAB,
    BAOAB_STATE,
    BBB,
    CHAINS,
    CLASS_DRAWS,
    DRAWS,
    DROPPING,
    ENSEMBLE,
    FITS,
    FOLDER,
    HMC,
    INPUTS,
    LABELS,
    LAPLACE,
    MCD,
    MCLMC,
    MCLMC_DRAWS,
    MCLMC_STATE,
    NUTS,
    PREDICTION,
    PROBABILITIES,
    PROBS,
    RUN,
    SCALER,
    SCHEDULE,
    SEED,
    SG_STATE,
    SGHMC,
    SGHMC_STATE,
    SGLD,
    STARTS,
    SWAG,
    TARGET,
    THETA,
    Call,
    K,
    N,
    P,
    X,
    Y,
    choice,
    count,
    flag,
    fraction,
    positive,
    progress,
)

NO_TARGET = m.no()
STATES = ("State", "StochasticState", "MicrocanonicalState")  # what an error calls them
NO_SCHEDULE = m.no("none")
BATCH = (3, m.integers(1, N, none=True))
LEVELS = ([0.1, 0.9], [*m.arrays((2,), rows=True), ("negative", -0.1), ("percent", 90)], ("q ",))
LEVELS = (LEVELS[0], m.without(LEVELS[1], "number"), LEVELS[2])
SAMPLES = np.stack([Y - 1, Y, Y + 1])
SETS = m.without(m.arrays((3, N)), "a row more", "many rows")  # any number of samples
EXECUTOR = (None, m.no("none", "callable"))
TAILS = m.without(m.reals(0.0, 0.5), "True")


def sample(sampler, draws):
    """`sample` of a sampler, one call for a start and one that goes on, and its chains."""
    chains = rb.Chains(sampler, THETA, warmup=0)
    saved = chains.save()
    start = {
        "num_draws": count(2),
        "warmup": count(2, 0, none=True),
        "thin": count(1, 1, 2**32, none=True),
        "chains": CHAINS,
        "seed": SEED,
        "init": (STARTS[0], m.without(STARTS[1], "None"), STARTS[2]),
        "progress": progress(),
        "predict_at": (X, m.without(INPUTS[1], "None"), ("x",)),
        "save_draws": flag(True),
        "save_warmup": flag(),
        "max_seconds": positive(5.0, none=True),
        "store": (None, m.without(m.paths(), "None"), ("path", "folder")),
        "executor": EXECUTOR,
    }
    more = {
        "num_draws": count(1),
        "resume": (draws, m.no("none"), (*STATES, "draws")),
        "progress": progress(),
    }
    until = {
        "until": (rb.Converged(rhat=1.9, ess=1.0, at=X), m.no()),
        "max_draws": count(9, none=True),
        "chains": CHAINS,
        "progress": progress(),
    }
    name = type(sampler).__name__
    return {
        f"{name}.sample": Call(sampler.sample, start),
        f"{name}.sample until": Call(sampler.sample, until),
        f"{name}.sample resumed": Call(sampler.sample, more),
        f"Chains of {name}": Call(
            functools.partial(rb.Chains, sampler),
            {
                "init": start["init"],
                "seed": SEED,
                "chains": CHAINS,
                "warmup": count(2, 0, none=True),
            },
        ),
        f"Chains.load of {name}": Call(
            functools.partial(rb.Chains.load, sampler), {"data": (saved, m.no(), STATES)}
        ),
        f"Chains.advance of {name}": Call(chains.advance, {"num_steps": count(1)}),
    }


SAMPLERS: dict[str, Call] = {
    "Chains": Call(rb.Chains, {"sampler": (HMC, m.no())}),
    "HMC": Call(
        rb.HMC,
        {
            "target": (TARGET, NO_TARGET),
            "step_size": (
                0.1,
                m.without(m.reals(0.0), "list", "tuple", "array"),
            ),
            "trajectory_length": (0.3, m.reals(0.0, none=True)),
            "step_size_jitter": (0.1, m.without(m.reals(0.0, 1.0), "end")),
            "target_accept": fraction(0.8),
            "max_num_leapfrog_steps": count(100, 1, 2**70, none=True),
            "divergence_threshold": positive(1000.0),
            "randomize_length": flag(),
        },
    ),
    "HMC of steps": Call(
        rb.HMC,
        {
            "target": (TARGET, NO_TARGET),
            "num_leapfrog_steps": count(3, 1, 2**70, none=True),
            "inverse_mass_matrix": (
                np.ones(P),
                [*m.without(m.arrays((P,), none=True), "axis more"), ("negative", -np.ones(P))],
            ),
        },
    ),
    "NUTS": Call(
        rb.NUTS,
        {
            "target": (TARGET, NO_TARGET),
            "step_size": (0.1, m.without(m.reals(0.0), "list", "tuple", "array")),
            "max_tree_depth": count(5, 1, 20),
            "inverse_mass_matrix": (
                np.ones(P),
                [*m.without(m.arrays((P,), none=True), "axis more"), ("negative", -np.ones(P))],
            ),
            "target_accept": fraction(0.8),
            "divergence_threshold": positive(1000.0),
        },
    ),
    "SGLD": Call(
        rb.SGLD,
        {
            "target": (TARGET, NO_TARGET),
            "step_size": positive(1e-5),
            "batch_size": BATCH,
            "preconditioner": choice("rmsprop", none=True),
            "schedule": (SCHEDULE, NO_SCHEDULE),
            "track_lp": flag(),
        },
    ),
    "SGHMC": Call(
        rb.SGHMC,
        {
            "target": (TARGET, NO_TARGET),
            "step_size": positive(1e-5),
            "friction": (0.1, m.without(m.reals(0.0, 1.0), "upper end")),
            "batch_size": BATCH,
            "schedule": (SCHEDULE, NO_SCHEDULE),
            "track_lp": flag(),
        },
    ),
    "BAOAB": Call(
        rb.BAOAB,
        {
            "target": (TARGET, NO_TARGET),
            "step_size": positive(1e-2),
            "friction": positive(2.0),
            "batch_size": BATCH,
            "inverse_mass_matrix": (
                np.ones(P),
                [*m.without(m.arrays((P,), none=True), "axis more"), ("negative", -np.ones(P))],
            ),
            "schedule": (SCHEDULE, NO_SCHEDULE),
            "track_lp": flag(),
        },
    ),
    "MCLMC": Call(
        rb.MCLMC,
        {
            "target": (TARGET, NO_TARGET),
            "adjusted": flag(),
            "desired_energy_var": (0.1, m.without(m.reals(0.0), "list", "tuple")),
            "step_limit": positive(0.5, none=True),
            "step_size": positive(0.05),
            "decoherence_length": positive(0.5),
            "inverse_mass_matrix": (
                np.ones(P),
                [*m.without(m.arrays((P,), none=True), "axis more"), ("negative", -np.ones(P))],
            ),
            "integrator": choice("mclachlan"),
            "target_accept": fraction(0.9),
            "max_num_leapfrog_steps": count(100, 1, 2**31),
            "divergence_threshold": positive(1000.0),
            "batch_size": (None, m.no("none")),
        },
    ),
    **sample(HMC, DRAWS),
    **sample(MCLMC, MCLMC_STATE),
    "MCLMC.discretization_bias": Call(
        MCLMC.discretization_bias,
        {
            "draws": (MCLMC_DRAWS, m.no(), ("Draws",)),
            "num_steps": count(1000, 1000, 2**31, none=True),
            "progress": progress(),
        },
    ),
    **sample(NUTS, NUTS.sample(2, **RUN)),
    **sample(SGLD, SG_STATE),
    **sample(SGHMC, SGHMC_STATE),
    **sample(BAOAB, BAOAB_STATE),
}

FITTING: dict[str, Call] = {
    "BBB": Call(
        rb.BBB,
        {
            "target": (TARGET, NO_TARGET),
            "learning_rate": positive(0.01),
            "num_samples": count(1, 1, 2**32 - 1),
            "batch_size": BATCH,
            "kl": choice("closed"),
            "estimator": choice("reparam"),
            "init_scale": positive(0.05),
            "kl_weighting": choice("uniform"),
            "schedule": (SCHEDULE, NO_SCHEDULE),
        },
    ),
    "MCDropout": Call(
        rb.MCDropout,
        {
            "target": (DROPPING, NO_TARGET),
            "rate": (0.1, m.without(m.reals(0.0, 1.0, none=True), "end")),
            "length_scale": positive(1.0, none=True),
            "precision": positive(1.0, none=True),
            "learning_rate": positive(0.01),
            "batch_size": BATCH,
            "schedule": (SCHEDULE, NO_SCHEDULE),
        },
    ),
    "Converged": Call(
        rb.Converged,
        {
            "rhat": (1.01, m.reals(1.0)),
            "ess": positive(400.0),
            "at": (X, [("text", "x"), ("number", 1.0), ("no rows", X[:0])], ("x",)),
        },
    ),
    "EnsembleStart": Call(
        rb.EnsembleStart,
        {
            "learning_rate": positive(0.01),
            "batch_size": count(3, 1, 2**31),
            "max_steps": count(3, 1, 2**31),
            "every": count(3, 1, 2**31),
            "patience": count(3, 1, 2**31),
            "restarts": count(1, 0, 100),
            "finish": count(3, 0, 2**31, none=True),
        },
    ),
    "EnsembleStart.fit": Call(
        rb.EnsembleStart(max_steps=2, every=1).fit,
        {
            "target": (TARGET, NO_TARGET),
            "chains": (2, CHAINS[1], ("chain",)),
            "seed": SEED,
            "executor": EXECUTOR,
        },
    ),
    "DeepEnsemble": Call(
        rb.DeepEnsemble,
        {
            "target": (TARGET, NO_TARGET),
            "members": count(2, 1, 2**32 - 1),
            "learning_rate": positive(0.01),
            "batch_size": BATCH,
            "objective": choice("map"),
            "schedule": (SCHEDULE, NO_SCHEDULE),
        },
    ),
    "LaplaceApproximation": Call(
        rb.LaplaceApproximation,
        {
            "target": (TARGET, NO_TARGET),
            "subset": choice("all"),
            "learning_rate": positive(0.01),
            "batch_size": BATCH,
            "schedule": (SCHEDULE, NO_SCHEDULE),
            "polish": count(3, 0, 2**31 - 1, none=True),
            "tune_prior": choice("shared", none=True),
            "tune_noise": flag(),
        },
    ),
    "SWAG": Call(
        rb.SWAG,
        {
            "target": (TARGET, NO_TARGET),
            "members": count(2, 1, 2**32 - 1),
            "learning_rate": positive(0.01),
            "swag_learning_rate": positive(0.01, none=True),
            "max_rank": count(20, 2, 2**31),
            "batch_size": BATCH,
            "optimizer": choice("sgd"),
            "momentum": (0.9, m.without(m.reals(0.0, 1.0), "end")),
            "schedule": (SCHEDULE, NO_SCHEDULE),
        },
    ),
}
for _name, _trainer, _fit in (
    ("BBB", BBB, "B"),
    ("MCDropout", MCD, "M"),
    ("DeepEnsemble", ENSEMBLE, "E"),
    ("SWAG", SWAG, "S"),
    ("LaplaceApproximation", LAPLACE, "L"),
):
    FITTING[f"{_name}.fit"] = Call(
        _trainer.fit,
        {
            "num_epochs": count(1, none=True),
            "seed": SEED,
            "init": (THETA, m.without(STARTS[1], "None"), ("init", *STARTS[2])),
            "progress": progress(),
        },
    )
    FITTING[f"{_name}.fit resumed"] = Call(
        _trainer.fit,
        {
            "num_epochs": count(1, none=True),
            "resume": (FITS[_fit], m.no("none")),
            "progress": progress(),
        },
    )
    FITTING[f"{type(FITS[_fit]).__name__}.predict"] = Call(FITS[_fit].predict, {"x": INPUTS})

FITTING["SWAG.fit"].arguments["swag_epochs"] = count(2, 0)
for _name in ("SWAG", "DeepEnsemble"):
    FITTING[f"{_name}.fit"].arguments["executor"] = EXECUTOR
for _name, _epochs in {  # those that also take 0: what is given stays as it is
    "LaplaceApproximation.fit": 1,
    "LaplaceApproximation.fit resumed": 0,
    "SWAG.fit": 1,
    "SWAG.fit resumed": 0,
    "MCDropout.fit": 1,
    "MCDropout.fit resumed": 1,
    "DeepEnsemble.fit resumed": 1,
}.items():
    FITTING[_name].arguments["num_epochs"] = count(_epochs, 0, none=True)

RESULTS: dict[str, Call] = {
    "MeanField": Call(
        rb.MeanField,
        {
            "mean": (
                np.zeros(3),
                m.without(m.arrays((3,), finite=False), "list of None"),
                ("array",),
            ),
            "scale": (np.ones(3), m.arrays((3,)), ("array",)),
        },
    ),
    "MeanField.sample": Call(
        FITS["B"].sample, {"num_samples": count(2, 1, 2**32 - 1), "seed": SEED}
    ),
    "MeanField.draws": Call(FITS["B"].draws, {"num_draws": count(2, 1, 2**32 - 1), "seed": SEED}),
    "DropoutFit.draws": Call(
        FITS["M"].draws,
        {"num_draws": count(2, 1, 2**32 - 1), "seed": SEED, "masks": choice("row")},
    ),
    "EnsembleFit.draws": Call(
        FITS["E"].draws, {"num_draws": count(2, 1, 2**31, none=True), "seed": SEED}
    ),
    "LaplaceFit.draws": Call(FITS["L"].draws, {"num_draws": count(2, 1, 2**32 - 1), "seed": SEED}),
    "LaplaceFit.predict": Call(
        FITS["L"].predict,
        {"x": INPUTS, "num_draws": count(2, 1, 2**32 - 1), "seed": SEED, "linearized": flag(True)},
    ),
    "SWAGFit.draws": Call(FITS["S"].draws, {"num_draws": count(2, 1, 2**32 - 1), "seed": SEED}),
    "Draws.predict": Call(DRAWS.predict, {"x": INPUTS, "keep": flag()}),
    "Draws.save": Call(DRAWS.save, {"path": (FOLDER / "new", m.paths(), ("folder",))}),
    "concatenate": Call(
        rb.concatenate,
        {
            "draws": ([DRAWS], [*m.no(), ("a member", [DRAWS, None])]),
            "axis": choice("draws"),
        },
    ),
    "load": Call(
        rb.load,
        {
            "path": (FOLDER / "run", [*m.paths(), ("none", FOLDER / "none")], ("folder",)),
            "rescue": flag(),
            "verify": flag(),
        },
    ),
    "Store": Call(
        rb.Store,
        {
            "path": (FOLDER / "run", m.without(m.paths(), "folder", "below a file")),
            "flush_seconds": positive(30.0),
            "keep": choice("draws"),
            "dtype": choice("float16", none=True),
        },
    ),
    "Prediction.quantile": Call(PREDICTION.quantile, {"q": LEVELS}),
    "Prediction.credible_quantile": Call(PREDICTION.credible_quantile, {"q": LEVELS}),
    "Prediction.interval": Call(PREDICTION.interval, {"coverage": fraction(0.9)}),
    "Prediction.credible_interval": Call(PREDICTION.credible_interval, {"coverage": fraction(0.9)}),
    "Prediction.log_likelihood": Call(
        PREDICTION.log_likelihood, {"y": (Y, m.without(m.arrays((N,)), "None"))}
    ),
}

TOOLS: dict[str, Call] = {
    "set_num_threads": Call(rb.set_num_threads, {"n": count(2, 1, 1024)}),
    "random.normal": Call(
        rb.random.normal,
        {
            "shape": ((2, 3), [*m.shapes(), ("too many", (2**20, 2**20))]),
            "seed": SEED,
            "stream": count(0, 0, 2**32 - 1),
            "dtype": (np.float32, m.dtypes()),
        },
    ),
    "reparameterize": Call(
        rb.reparameterize,
        {
            "mean": (np.zeros(3), m.arrays((3,), finite=False), ("array",)),
            "rho": (np.zeros(3), m.arrays((3,), finite=False), ("array",)),
            "num_samples": count(2, 1, 2**32 - 1),
            "seed": SEED,
            "step": count(0, 0, 2**40 - 1),
        },
    ),
    "schedules.polynomial": Call(
        rb.schedules.polynomial, {"power": positive(0.5), "offset": positive(1.0)}
    ),
    "schedules.cosine": Call(
        rb.schedules.cosine,
        {
            "num_steps": count(5, 1, 2**62),
            "final": (0.1, m.without(m.reals(0.0, 1.0), "end", "upper end")),
        },
    ),
    "schedules.cyclical": Call(
        rb.schedules.cyclical,
        {
            "num_cycles": count(5, 1, 2**62),
            "num_steps": count(5, 1, 2**62),
            "exploration": (0.1, m.without(m.reals(0.0, 1.0), "end")),
        },
    ),
    "schedules.Schedule": Call(
        rb.schedules.Schedule,
        {
            "kind": choice("cosine"),
            "power": (0.5, m.without(m.reals(0.0), "end")),
            "offset": positive(1.0),
            "num_steps": count(5, 1, 2**62),
            "final": (0.1, m.without(m.reals(0.0, 1.0), "end", "upper end")),
            "num_cycles": count(0, 0, 2**62),
            "exploration": (0.1, m.without(m.reals(0.0, 1.0), "end")),
        },
    ),
    "Schedule.factors": Call(
        SCHEDULE.factors, {"first": count(0, -(2**62), 2**62), "count": count(3, 0, 2**62)}
    ),
    "Schedule.noise": Call(
        SCHEDULE.noise, {"first": count(0, -(2**62), 2**62), "count": count(3, 0, 2**62)}
    ),
}

REAL = m.arrays((N,))
DATASETS: dict[str, Call] = {
    "read_csv": Call(
        rb.datasets.read_csv,
        {
            "path": (FOLDER / "table.csv", m.paths()),
            "target": ("c", m.without(m.choices(), "one")),
            "delimiter": (
                ",",
                [
                    *m.without(m.choices(), "NumPy text"),
                    ("two", ";;"),
                    ("line", "\n"),
                    ("quote", '"'),
                ],
            ),
            "header": (True, m.flags(none=True)),
        },
    ),
    "read_npz": Call(
        rb.datasets.read_npz,
        {
            "path": (FOLDER / "arrays.npz", m.paths()),
            "x": ("x", m.choices(none=True)),
            "y": ("y", m.choices()),
        },
    ),
    "write_npy": Call(
        rb.datasets.write_npy,
        {
            "path": (FOLDER / "rows.npy", m.paths()),
            "rows": (X, [("None", None), ("number", 2.5), ("text", "x"), ("list", [[1.0]])]),
        },
    ),
    "read_idx": Call(rb.datasets.read_idx, {"path": (FOLDER / "images", m.paths())}),
    "splits": Call(
        rb.datasets.splits,
        {
            "n": count(10, 2, 2**48),
            "seed": SEED,
            "num_splits": count(2, 1, 2**60),
            "train_fraction": fraction(0.9),
        },
    ),
    "standardize": Call(
        rb.datasets.standardize,
        {
            "x": (X, m.without(m.arrays(X.shape, more=True), "a column more"), ("y",)),
            "y": (Y, m.arrays((N,), none=True)),
        },
    ),
    "Scaler.transform": Call(SCALER.transform, {"x": (X, m.without(INPUTS[1], "no rows"))}),
    "Scaler.transform_y": Call(
        SCALER.transform_y,
        {
            "y": (
                Y,
                m.without(
                    m.arrays((N,), rows=True),
                    "number",
                    "axis more",
                    "empty list",
                    "deep list",
                    "empty",
                    "no rows",
                ),
            )
        },
    ),
    "Scaler.inverse_y": Call(
        SCALER.inverse_y,
        {
            name: (
                Y,
                m.without(
                    m.arrays((N,), rows=True, more=True, none=name == "std", finite=False),
                    "number",
                    "empty list",
                    "deep list",
                    "empty",
                    "no rows",
                ),
            )
            for name in ("mean", "std")
        },
    ),
    "toy_regression": Call(rb.datasets.toy_regression, {"n": count(5, 1, 2**32), "seed": SEED}),
    "two_moons": Call(
        rb.datasets.two_moons,
        {"n": count(5, 1, 2**32), "seed": SEED, "noise": (0.1, m.without(m.reals(0.0), "end"))},
    ),
}

CHAINED = m.without(
    m.arrays((2, 8), rows=True, more=True, finite=False),
    "a column more",
    "no columns",
    "no rows",
    "deep list",
    "empty",
)
SCORES: dict[str, Call] = {
    "rhat": Call(rb.diagnostics.rhat, {"a": (np.eye(2, 8), CHAINED), "method": choice("rank")}),
    "ess": Call(
        rb.diagnostics.ess,
        {
            "a": (np.eye(2, 8), CHAINED),
            "method": choice("tail"),
            "tail_probability": (0.05, TAILS),
        },
    ),
    "mcse": Call(rb.diagnostics.mcse, {"a": (np.eye(2, 8), CHAINED), "method": choice("mean")}),
    "nested_rhat": Call(
        rb.diagnostics.nested_rhat,
        {
            "a": (np.eye(2, 8), CHAINED, ("superchains",)),
            "superchains": ([0, 1], m.arrays((2,), dtype=np.int64)),
            "method": choice("rank"),
        },
    ),
    "predictive_rhat": Call(
        rb.diagnostics.predictive_rhat,
        {"draws": (DRAWS, m.no()), "x": INPUTS, "method": choice("rank")},
    ),
    "predictive_ess": Call(
        rb.diagnostics.predictive_ess,
        {"draws": (DRAWS, m.no()), "x": INPUTS, "method": choice("bulk")},
    ),
    "weight_rhat": Call(
        rb.diagnostics.weight_rhat,
        {"draws": (DRAWS, m.no(), (" a ", "array")), "method": choice("split")},
    ),
    "agreement": Call(rb.diagnostics.agreement, {"p": PROBABILITIES, "q": PROBABILITIES}),
    "total_variation": Call(
        rb.diagnostics.total_variation, {"p": PROBABILITIES, "q": PROBABILITIES}
    ),
    "crps": Call(rb.metrics.crps, {"y": (Y, REAL), "p": (SAMPLES, SETS)}),
    "rmse": Call(rb.metrics.rmse, {"y": (Y, REAL), "mean": (Y, REAL)}),
    "coverage": Call(
        rb.metrics.coverage,
        {
            "y": (Y, REAL),
            "lower": (Y - 1, [*m.arrays((N,), finite=False), ("above", Y + 2)]),
            "upper": (Y + 1, m.arrays((N,), finite=False)),
        },
    ),
    "auroc": Call(
        rb.metrics.auroc,
        {
            "label": (LABELS % 2, [*m.labels(N, 2), ("one kind", 0 * LABELS)]),
            "score": (Y, m.arrays((N,), finite=False)),
        },
    ),
}
for _name in ("accuracy", "nll", "ece", "brier"):
    SCORES[_name] = Call(
        getattr(rb.metrics, _name), {"y": (LABELS, m.labels(N, K)), "probs": PROBABILITIES}
    )
SCORES["ece"].arguments["bins"] = count(20, 1, 2**48)

NO_AXES = m.no("none")
PLOTS: dict[str, Call] = {
    "regression_band": Call(
        rb.plots.regression_band,
        {
            "p": (PREDICTION, m.no(), ("prediction", "Prediction")),
            "x": (X[:, :1], m.arrays((N, 1))),
            "y": (Y, m.arrays((N,), none=True)),
            "ax": (None, NO_AXES),
            "output": count(0, 0, 0),
        },
    ),
    "decision_boundary": Call(
        rb.plots.decision_boundary,
        {
            "draws": (CLASS_DRAWS, m.no()),
            "x": (X, m.arrays(X.shape), ("y",)),
            "y": (LABELS, m.labels(N, K)),
            "ax": (None, NO_AXES),
            "resolution": count(5, 2, 2**48),
            "margin": (0.5, m.without(m.reals(0.0), "end")),
        },
    ),
    "energy": Call(rb.plots.energy, {"draws": (DRAWS, m.no()), "ax": (None, NO_AXES)}),
    "trace": Call(
        rb.plots.trace,
        {
            "draws": (DRAWS, m.no()),
            "ax": (None, NO_AXES),
            "parameter": count(0, 0, P - 1, none=True),
        },
    ),
    "trace of a statistic": Call(
        rb.plots.trace, {"draws": (DRAWS, m.no()), "statistic": choice("lp")}
    ),
    "rhat_histogram": Call(
        rb.plots.rhat_histogram, {"draws": (DRAWS, m.no()), "x": INPUTS, "ax": (None, NO_AXES)}
    ),
    "pit_histogram": Call(
        rb.plots.pit_histogram,
        {
            "y": (Y, REAL),
            "p": (SAMPLES, SETS),
            "ax": (None, NO_AXES),
            "bins": count(5, 1, 2**48),
        },
    ),
    "reliability": Call(
        rb.plots.reliability,
        {
            "y": (LABELS, m.labels(N, K)),
            "probs": (PROBS, PROBABILITIES[1], ("rows",)),
            "ax": (None, NO_AXES),
            "bins": count(5, 1, 2**48),
        },
    ),
}
