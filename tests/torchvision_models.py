"""torchvision's models, as an oracle: imported without its compiled operations.

These are built for one version of torch and one kind of device. The models need none of them.
"""

import importlib
import os
import sys
import warnings
from functools import lru_cache

import pytest


@lru_cache(maxsize=1)
def _imported():
    """Return ``torchvision.models``, or why they cannot be imported."""
    import torch

    if folder := os.environ.get("DIEL_TORCHVISION"):
        sys.path.append(folder)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):  # declared here, for what torchvision says of them in Python
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an image library that is not there
            return importlib.import_module("torchvision.models"), library
    except ImportError as error:
        return str(error), library  # whose declarations end with it


def torchvision_models():
    """Return ``torchvision.models``; without torch or torchvision the test is skipped.

    DIEL_TORCHVISION may name the folder where torchvision is installed, as by ``pip install
    --no-deps --target FOLDER torchvision``.
    """
    pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    found, _ = _imported()
    if isinstance(found, str):
        pytest.skip(f"torchvision, the oracle, is not installed (DIEL_TORCHVISION): {found}")
    return found
