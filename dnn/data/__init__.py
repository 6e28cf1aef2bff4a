"""Data: loading, splitting, preparing, cutting into batches."""

from dnn.data import augmentation, dataset, downloads, images, labels, loading, sequences
from dnn.data.augmentation import *  # noqa: F403
from dnn.data.batches import batches, prefetch
from dnn.data.dataset import *  # noqa: F403
from dnn.data.downloads import *  # noqa: F403
from dnn.data.images import *  # noqa: F403
from dnn.data.labels import *  # noqa: F403
from dnn.data.loading import *  # noqa: F403
from dnn.data.sequences import *  # noqa: F403

__all__ = ["batches", "prefetch"]
__all__ += augmentation.__all__
__all__ += dataset.__all__
__all__ += downloads.__all__
__all__ += images.__all__
__all__ += labels.__all__
__all__ += loading.__all__
__all__ += sequences.__all__
