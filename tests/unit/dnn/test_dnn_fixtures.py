"""Checkpoints that an earlier version wrote are read, and training goes on to the same numbers."""

import importlib.util
import json

import numpy as np
import pytest
from support import ROOT

pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")

FIXTURES = ROOT / "tests" / "fixtures" / "dnn"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
# How far another machine's rounding may be from the one that wrote them.
TOLERANCES = dict.fromkeys(EXPECTED, 1e-4) | {"float64": 1e-9, "mixed_float16": 1e-2}


# Adam divides gradients by their own size: where they are nearly 0, another rounding is another
# direction. They were written with compiled kernels.
WITHOUT_KERNELS = {"adamw": 5e-2, "of_an_ensemble": 5e-2}


def written_by():
    spec = importlib.util.spec_from_file_location("write", FIXTURES / "write.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITE = written_by()


def compare(found, expected, rtol):
    assert (found["seed"], found["steps"]) == (expected["seed"], expected["steps"])
    for name in ("loss", "probabilities"):
        np.testing.assert_allclose(found[name], expected[name], rtol, err_msg=name)
    for ours, theirs in zip(found["validation"], expected["validation"], strict=True):
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol, err_msg=name)


@pytest.mark.parametrize("name", EXPECTED)
def test_training_goes_on_from_a_checkpoint_of_an_earlier_version(name):
    model = WRITE.MODELS[name]()
    model.load(FIXTURES / f"{name}.safetensors")
    compare(WRITE.summary(model), EXPECTED[name]["half"], TOLERANCES[name])
    x, y = WRITE.samples()
    model.fit(x, y, validation=(x, y), **WRITE.OPTIONS)
    rtol = TOLERANCES[name]
    if importlib.util.find_spec("numba") is None:
        rtol = WITHOUT_KERNELS.get(name, rtol)
    compare(WRITE.summary(model), EXPECTED[name]["end"], rtol)


def test_all_checkpoints_are_read():
    assert {path.stem for path in FIXTURES.glob("*.safetensors")} == set(EXPECTED)
