"""Arguments of the kernels of convolution: lengths, the window, and the strides of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnn.backend.convolution import Convolution, image_view
from dnn.backend.cuda.launch import element_strides

__all__ = ["DECLARED", "GEOMETRY", "PARAMETERS", "geometry", "with_axis"]

LENGTHS = (
    *("images", "channels", "height", "width", "filters", "out_height", "out_width", "groups"),
    *("rows", "across", "down", "right", "apart_y", "apart_x", "top", "left"),
)
"""Lengths of one model: x, y, the window, its stride, its dilation, and the padding before."""

STEPS = ("x_m", "x_n", "x_c", "x_y", "x_x", "y_m", "y_n", "y_c", "y_y", "y_x", "w_m")
"""Elements to the next model, image, channel, row and column of x and y; to weights' next model."""

GEOMETRY = ("models", *LENGTHS, *STEPS)
"""Names of a kernel's parameters for images and window, in order."""

PARAMETERS = ", ".join(
    f"const long long {name}{'_' if name in LENGTHS else ''}" for name in GEOMETRY
)
DECLARED = "\n    ".join(
    [
        *(f"[[maybe_unused]] const int {name} = (int){name}_;" for name in LENGTHS),
        "[[maybe_unused]] const int taps = rows * across, area = out_height * out_width;",
        "[[maybe_unused]] const int per_group = channels / groups;",
        "[[maybe_unused]] const int filters_each = filters / groups;",
    ]
)
"""Declarations of lengths as 32-bit numbers, and of products and quotients of them.

No kernel uses all of them, and NVRTC warns of what is declared and not used.
"""


def with_axis(x: Any, stacked: bool) -> Any:
    """Return an array with a leading axis of models, of length 1 where it is not stacked."""
    return x if stacked else x[None]


def geometry(
    problem: Convolution, models: int, x: Any, y: Any, weights_step: int
) -> list[np.int64]:
    """Return the arguments for `GEOMETRY`.

    Parameters
    ----------
    problem : Convolution
    models : int
        How many models the kernel computes; an array of one model is used for all.
    x, y : array of shape (1 or models, images in the problem's layout)
        They may be views of parts of arrays.
    weights_step : int
        Elements from one model's weights to the next one's.
    """
    x, y = (image_view(each, problem.layout) for each in (x, y))
    (top, _), (left, _) = problem.padding
    lengths = (
        *(x.shape[1], problem.channels, *problem.size, problem.filters, *problem.out_size),
        *(problem.groups, *problem.window, *problem.stride, *problem.dilation, top, left),
    )
    steps = []
    for each in (x, y):
        step, *further = element_strides(each)
        steps += [step if len(each) > 1 else 0, *further]
    return [np.int64(n) for n in (models, *lengths, *steps, weights_step)]
