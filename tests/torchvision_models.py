"""torchvision's models, as an oracle: imported without its compiled operations.

These are built for one version of torch and one kind of device. The models need none of them.
"""

import os
import sys
import warnings

import pytest


def torchvision_models():
    """Return ``torchvision.models``; without torch or torchvision the test is skipped.

    DIEL_TORCHVISION may name the folder where torchvision is installed, as by ``pip install
    --no-deps --target FOLDER torchvision``.
    """
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    if "torchvision.models" in sys.modules:
        return sys.modules["torchvision.models"]
    if folder := os.environ.get("DIEL_TORCHVISION"):
        sys.path.append(folder)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):  # declared here, for what torchvision says of them in Python
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an image library that is not there
            import torchvision.models
    except ImportError as error:
        pytest.skip(f"torchvision, the oracle, is not installed (DIEL_TORCHVISION): {error}")
    torchvision.kept = library  # its declarations end with it
    return torchvision.models
