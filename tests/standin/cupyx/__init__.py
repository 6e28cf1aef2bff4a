"""What of cupyx dnn uses; see the package cupy beside it."""

import cupy

empty_pinned = cupy.empty_pinned
