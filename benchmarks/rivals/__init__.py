"""One module per framework; what each can prepare, and whether it is installed.

A module has ``PREPARE``, a dict from a workload's kind to a function ``workload -> Prepared``, and
``versions()``; and, where being installed is not enough, ``obstacle(variant)``: the reason to leave
it out, or "". A kind "first_draw" is not prepared but run, in a fresh process: ``first_draw(given,
x, y, start) -> positions, log densities, acceptance rate``, called by
`benchmarks.harness.first_draw_child`. To add a sampler or a rival, add a kind or a module; nothing
else changes.
"""

from __future__ import annotations

from benchmarks.harness.framework import OURS, Framework

# NumPy's OpenBLAS takes some AVX-512 processors for a Haswell: measured both ways, each in its
# own process, since the variable is read when the library is loaded.
NUMPY_SKYLAKEX = Framework(
    "numpy-skylakex",
    "benchmarks.rivals.numpy_",
    ("numpy",),
    env={"OPENBLAS_CORETYPE": "SKYLAKEX"},
)

OURS_AVX2 = Framework("ribbit-avx2", "benchmarks.ours.entries", (OURS,), env={"RIBBIT_ISA": "avx2"})

FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework(OURS, "benchmarks.ours.entries", (OURS,), fresh="benchmarks.ours.first_draw"),
        Framework("numpy", "benchmarks.rivals.numpy_", ("numpy",)),
        NUMPY_SKYLAKEX,
        Framework("jax", "benchmarks.rivals.jax_", ("jax",), fresh="benchmarks.rivals.jax_"),
        Framework("jax-plain", "benchmarks.rivals.jax_plain_", ("jax",)),
        Framework(
            "blackjax",
            "benchmarks.rivals.blackjax_",
            ("jax", "blackjax"),
            fresh="benchmarks.rivals.blackjax_",
        ),
        Framework(
            "numpyro",
            "benchmarks.rivals.numpyro_",
            ("jax", "numpyro"),
            fresh="benchmarks.rivals.numpyro_",
        ),
        Framework(
            "torch",
            "benchmarks.rivals.torch_",
            ("torch",),
            "eager",
            fresh="benchmarks.rivals.torch_",
        ),
        Framework("torch-compile", "benchmarks.rivals.torch_", ("torch",), "compile"),
        Framework("posteriors", "benchmarks.rivals.posteriors_", ("torch", "posteriors")),
        # Ribbit held to narrower instruction sets, never a rival; baseline by ``--entries`` alone.
        OURS_AVX2,
        Framework(
            "ribbit-baseline",
            "benchmarks.ours.entries",
            (OURS,),
            env={"RIBBIT_ISA": "baseline"},
        ),
    )
}

# Those that a running process can measure: no environment of their own.
IN_PROCESS = {name: framework for name, framework in FRAMEWORKS.items() if not framework.env}
