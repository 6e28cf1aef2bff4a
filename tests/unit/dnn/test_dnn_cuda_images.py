"""Pooling and convolution by a GPU's kernels, run on the CPU; see `cuda_emulator`."""

from __future__ import annotations

from itertools import product

import cuda_emulator
import device_checks
import fake_cupy
import image_problems
import numpy as np
import pytest
from image_problems import convolution_of

from dnn.backend import routines
from dnn.backend.cuda import direct_convolution, im2col
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.pooling import KINDS
from dnn.backend.device import Device
from dnn.backend.rounding import BFLOAT16, HALF

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


@pytest.mark.parametrize(("kind", "layout"), list(product(KINDS, ["CHWN", "NHWC", "NCHW"])))
@pytest.mark.parametrize("index", ["short", "long"])
def test_pooling_has_the_bits_of_numpy(ops, kind, layout, index, monkeypatch):
    if index == "long":
        monkeypatch.setattr("dnn.backend.cuda.launch.MOST_SHORT", 0)
    fake_cupy.RawModule.launches.clear()
    device_checks.check_pooling(ops, kind, layout, 5)
    kinds = fake_cupy.RawModule.launches
    assert {kind.endswith("__long") for kind in kinds} == {index == "long"}


@pytest.mark.parametrize("kept", [HALF, BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_pooling_of_narrow_images_is_rounded_once(ops, kind, kept):
    for layout in ("CHWN", "NHWC", "NCHW"):
        device_checks.check_narrow_pooling(ops, kind, layout, kept)


SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_routine_convolves_as_numpy_does(ops, seed, monkeypatch):
    """Random shapes, of one network or three; in one turn or in several, in parts or not."""
    if seed % 2:
        monkeypatch.setattr(im2col, "COLUMNS_BYTES", 4000)
        monkeypatch.setattr(direct_convolution, "FEWEST_PIXELS", 20)
    device_checks.check_convolution(ops, seed)


@pytest.mark.parametrize("channels", [6, 40, 120])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("index", ["short", "long"])
def test_columns_of_any_number_of_channels(ops, channels, stride, index, monkeypatch):
    """Several rows to a run of lanes, one, or parts of one; of one or several channels a thread."""
    monkeypatch.setattr(im2col, "FEWEST_FOR_LOADS", 1)
    if index == "long":
        monkeypatch.setattr("dnn.backend.cuda.launch.MOST_SHORT", 0)
    fake_cupy.RawModule.launches.clear()
    for kind in ("forward", "data", "weights"):
        given = {"groups": 2, "channels": channels, "filters": 6, "images": 2, "size": (7, 6)}
        given |= {"window": (3, 3), "padding": ((1, 2), (0, 1)), "dilation": (1, 1)}
        problem = convolution_of(1, kind=kind, layout="NHWC", stride=stride, **given)
        problem = problem._replace(models=3, stacked=(True, True))
        inputs = image_problems.convolution_inputs(problem, 1)
        exact = image_problems.exact(problem, inputs)
        found = image_problems.run(ops, im2col.routine(ops, problem), problem, inputs)
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    columns = {name for name in fake_cupy.RawModule.launches if "columns_" in name}
    many = 1 if channels == 6 else 4
    gathered = f"channels_by_{many}{'_strides' if stride != (1, 1) else ''}"
    assert {name.split("__")[-1].removesuffix("_long") for name in columns} == {
        f"lanes_by_{many}",
        gathered,
    }
    assert all(name.endswith("_long") == (index == "long") for name in columns)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("bias", "relu"), list(product([False, True], repeat=2)))
def test_what_is_added_to_a_convolution_is_a_part_of_it(ops, dtype, bias, relu):
    device_checks.check_convolution(ops, 1, kind="forward", dtype=dtype, bias=bias, relu=relu)


def test_routines_are_measured_once_and_apart_from_the_cpus(ops, monkeypatch, tmp_path):
    monkeypatch.delenv("DNN_ROUTINES")
    monkeypatch.setenv("DNN_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(routines, "MEASURED_FROM", 0)
    monkeypatch.setattr(routines, "MEASURED_S", 0.0)
    monkeypatch.setattr(routines, "ROUNDS", 0)  # none is timed once more for being close
    linked, ready = [], ops.ready
    monkeypatch.setattr(ops, "ready", lambda calls: linked.append(calls) or ready(calls))
    chosen = {}
    for kind in ("forward", "data", "weights"):
        problem = convolution_of(3, kind=kind, layout="NHWC", images=1, size=(6, 6))
        chosen[problem] = ops.convolution(problem).name
        records = {record["convolution"]: record for record in ops.choices.records()}
        record = records[f"cuda-{routines.convolution_key(problem)}"]
        assert record["routine"] == chosen[problem] in record["ms"]
        assert set(record["ms"]) == {"im2col", "tiles", "direct"}
        assert "stand-in GPU" in record["machine"]
    assert len(linked) == 9
    for ((replay, _),) in linked:
        assert replay.__self__.how == "one CUDA graph"
    monkeypatch.setattr(routines, "measure_convolution", None)
    assert {problem: ops.convolution(problem).name for problem in chosen} == chosen
