"""Linear algebra and Fourier transforms of tensors on the host; on a GPU in `device_checks`."""

import device_checks
import numpy as np
import pytest

import dnn
from dnn import linalg
from dnn.errors import ConfigurationError, DataError, DtypeError, ShapeError


def test_decompositions_and_transforms():
    device_checks.check_linear_algebra("cpu")


def test_eigenvalues_of_any_matrix():
    triangular = dnn.Tensor.from_array([[2.0, 1.0], [0.0, 3.0]])
    values = linalg.eigvals(triangular)
    assert isinstance(values, dnn.Tensor)
    assert sorted(values.tolist()) == [2, 3]
    turning = linalg.eigvals(dnn.Tensor.from_array([[0.0, -1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(sorted(turning, key=np.imag), [-1j, 1j])


def test_arrays_give_arrays():
    x = np.arange(8.0)
    np.testing.assert_array_equal(linalg.fft(x), np.fft.fft(x))
    np.testing.assert_array_equal(linalg.fft(dnn.Tensor.from_array(x), 4), np.fft.fft(x, 4))
    np.testing.assert_allclose(linalg.ifft(linalg.fft(x)).real, x, atol=1e-12)


def test_batches_of_matrices_that_do_not_fit():
    tensor = dnn.Tensor((2, 3, 4))
    for other in (dnn.Tensor((4, 3)), dnn.Tensor((1, 4, 3)), dnn.Tensor((2, 3, 4))):
        with pytest.raises(ShapeError, match="no batches of matrices that fit"):
            dnn.bmatmul(tensor, other)
    assert dnn.bmatmul(tensor, tensor.T).shape == (2, 3, 3)


def test_what_cannot_be_decomposed():
    with pytest.raises(ShapeError, match=r"svd: it takes an array of at least 2 axes, not \(3,\)"):
        linalg.svd(dnn.Tensor((3,)))
    for function in (linalg.eigh, linalg.eigvals, linalg.eigvalsh):
        with pytest.raises(ShapeError, match=r"takes square matrices, not \(2, 3\)"):
            function(dnn.Tensor((2, 3)))
    with pytest.raises(ShapeError, match="at least 1 axes"):
        linalg.fft(dnn.Tensor(()))
    with pytest.raises(DtypeError, match=r"svd: .*float16"):
        linalg.svd(dnn.Tensor((2, 2), dtype="float16"))
    with pytest.raises(DataError, match="svd: "):
        linalg.svd(dnn.Tensor((2, 2), np.nan))


def test_systems_that_do_not_fit_or_have_no_solution():
    square, tall = dnn.Tensor.from_array(np.eye(3)), dnn.Tensor((4, 3))
    cases = [
        (lambda: linalg.solve(tall, np.ones(3)), ShapeError, r"square matrices, not \(4, 3\)"),
        (lambda: linalg.solve(square, np.ones(2)), ShapeError, r"\(3, 3\) and \(2,\) do not fit"),
        (lambda: linalg.solve(square, np.ones((2, 2))), ShapeError, r"\(2, 2\) do not fit"),
        (lambda: linalg.solve(square, 1.0), ShapeError, r"and \(\) do not fit"),
        (lambda: linalg.lstsq(tall, np.ones(3)), ShapeError, r"\(4, 3\) and \(3,\) do not fit"),
        (lambda: linalg.inv(dnn.Tensor((2, 2))), DataError, "inv: Singular matrix"),
        (lambda: linalg.solve(dnn.Tensor((2, 2)), np.ones(2)), DataError, "solve: Singular"),
        (lambda: linalg.cholesky(square * -1.0), DataError, "not positive definite"),
        (lambda: linalg.qr(tall, "short"), ConfigurationError, 'mode is "reduced" or "complete"'),
        (lambda: linalg.inv(dnn.Tensor((2, 2), 1, dtype="float16")), DtypeError, "inv: .*float16"),
        (lambda: linalg.fft2(np.ones(3)), ShapeError, r"\(3,\) has no axes \(-2, -1\)"),
        (lambda: linalg.fftn(np.ones((3, 3)), [2, 0]), ShapeError, r"of lengths \(2, 0\)"),
        (lambda: linalg.fftn(np.ones((3, 3)), axes=[1, 1]), ShapeError, r"no axes \(1, 1\)"),
        (lambda: linalg.fftn(np.ones((3, 3)), axes=[1, -1]), ShapeError, r"no axes \(1, -1\)"),
        (lambda: linalg.fftn(np.ones((3, 3)), axes=1), ShapeError, "a sequence of integers, not 1"),
        (lambda: linalg.fft(np.ones((3, 3)), axis=2), ShapeError, r"fft: \(3, 3\) do not fit"),
    ]
    for act, error, text in cases:
        with pytest.raises(error, match=text):
            act()
    assert linalg.solve(square, np.arange(3.0)).tolist() == [0, 1, 2]
    q, r = linalg.qr(tall + np.eye(4)[:, :3], "complete")
    assert (q.shape, r.shape) == ((4, 4), (4, 3))
    assert linalg.fftn(np.ones((3, 3)), [2, 4]).shape == (2, 4)
