"""CuPy's and cuBLAS's stand-in for whole programs: this folder's parent in ``PYTHONPATH``.

No GPU is used, and nothing that is measured here says anything about one: the name of the device
and the version say so. See `fake_cupy`, `fake_cublas` and `cuda_emulator`. Where
``DIEL_STANDIN_LOG`` names a folder, a process writes there at its end what it did.
"""

import atexit
import json
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import fake_cublas
import fake_cupy

from dnn.backend.cuda import cublas

cublas.load_library = fake_cublas.load_library
globals().update({key: x for key, x in vars(fake_cupy).items() if not key.startswith("__")})
__version__ = fake_cupy.__version__


def _write_log(folder):
    products = Counter(f"{asked.types}" for asked in fake_cublas.Library.multiplications)
    log = {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "graphs": fake_cupy.Graph.launched,
        "kernels": sorted(set(fake_cupy.RawModule.launches)),
        "products": products,
    }
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps(log))


if "DIEL_STANDIN_LOG" in os.environ:
    atexit.register(_write_log, os.environ["DIEL_STANDIN_LOG"])
