"""Functions of small matrices against LAPACK, and their bits whatever the chains and the BLAS."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from ribbit.samplers.mcmc.matrices import inverse, product, roots, stretch


def positive(size, condition, chains=3, seed=0):
    """Matrices (C, a, a) with such eigenvalues, and their eigenvalues (a,) and vectors."""
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.normal(size=(chains, size, size)))
    values = np.geomspace(1.0 / condition, 1.0, size) * 7e-5
    return (vectors * values) @ vectors.transpose(0, 2, 1), values, vectors


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e6, 1e9])
@pytest.mark.parametrize("size", [1, 2, 9, 17, 65])
def test_roots_and_inverses_are_those_of_eigenvalues(size, condition):
    matrix, values, vectors = positive(size, condition)
    if size == 1:
        values = matrix[0, 0]
    root, over = roots(matrix)
    turned = vectors.transpose(0, 2, 1)
    rounding = 1e-15 * size * condition
    expected = (vectors * np.sqrt(values)) @ turned
    assert np.abs(root - expected).max() <= 1e-15 * size * condition**0.5 * np.sqrt(values.max())
    expected = (vectors / np.sqrt(values)) @ turned
    assert np.abs(over - expected).max() <= rounding / np.sqrt(values.min())
    assert np.array_equal(root, root.transpose(0, 2, 1))
    assert np.array_equal(over, over.transpose(0, 2, 1))
    one = product(inverse(matrix), matrix)
    assert np.abs(one - np.eye(size)).max() <= 10.0 * rounding


@pytest.mark.parametrize("size", [1, 2, 9, 17, 65])
def test_a_matrix_stretches_by_its_largest_singular_value(size):
    matrix = np.random.default_rng(1).normal(size=(4, size, size))
    np.testing.assert_allclose(stretch(matrix), np.linalg.norm(matrix, 2, axis=(1, 2)), rtol=1e-3)
    alike = 3.0 * np.repeat(np.eye(size)[None], 2, axis=0)
    np.testing.assert_allclose(stretch(alike), 3.0, rtol=1e-14)


def test_a_chain_has_the_same_bits_beside_others():
    easy, hard = positive(9, 1.0)[0], positive(9, 1e9)[0]
    both = np.concatenate([easy, hard])
    for function in (lambda m: roots(m)[0], lambda m: roots(m)[1], inverse, stretch):
        together = function(both)
        for c in range(len(both)):
            assert np.array_equal(together[c], function(both[c : c + 1])[0])


def digests():
    """Of what is judged, and of the control, which goes through BLAS."""
    matrix = np.random.default_rng(2).normal(size=(2, 65, 65))
    squares = product(matrix, matrix.transpose(0, 2, 1))
    own = [*roots(squares), inverse(squares), stretch(matrix)]
    return [
        hashlib.sha256(np.concatenate([m.ravel() for m in each]).tobytes()).hexdigest()
        for each in (own, [matrix @ matrix])
    ]


def test_bits_do_not_depend_on_the_kernels_of_blas():
    found = []
    for core in ("Prescott", "Haswell"):
        done = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import digests; print(*digests())"],
            env=os.environ | {"OPENBLAS_CORETYPE": core, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(done.stdout.split())
    (first, control), (second, other) = found
    assert first == second
    if control == other:
        pytest.skip("NumPy's BLAS has one kernel here: the control has the same bits, too")
