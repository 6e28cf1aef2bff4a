"""CuPy's and cuBLAS's stand-in for whole programs: this folder's parent in ``PYTHONPATH``.

No GPU is used, and nothing that is measured here says anything about one: the name of the device
and the version say so. See `fake_cupy`, `fake_cublas` and `cuda_emulator`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import fake_cublas
import fake_cupy

from dnn.backend.cuda import products

products.load_library = fake_cublas.load_library
globals().update({key: x for key, x in vars(fake_cupy).items() if not key.startswith("__")})
__version__ = fake_cupy.__version__
