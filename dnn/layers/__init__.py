"""Layers: each declares its parameters in `build` and composes nodes in `forward`."""

from dnn.layers import basic, columns, images, nested, normalisation, recurrent
from dnn.layers.basic import *  # noqa: F403
from dnn.layers.columns import *  # noqa: F403
from dnn.layers.images import *  # noqa: F403
from dnn.layers.layer import Layer, Parameter
from dnn.layers.nested import *  # noqa: F403
from dnn.layers.normalisation import *  # noqa: F403
from dnn.layers.recurrent import *  # noqa: F403

__all__ = ["Layer", "Parameter"]
__all__ += basic.__all__
__all__ += columns.__all__
__all__ += images.__all__
__all__ += nested.__all__
__all__ += normalisation.__all__
__all__ += recurrent.__all__
