"""What memory managers of this process have taken and moved."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

__all__ = ["Allocations", "Usage", "allocation_statistics"]


@dataclass
class Usage:
    """Memory of one kind.

    Attributes
    ----------
    size_bytes, peak_bytes : int
        What is taken now, and the most that ever was.
    allocated, freed : int
        How many pieces.
    """

    size_bytes: int = 0
    peak_bytes: int = 0
    allocated: int = 0
    freed: int = 0


@dataclass
class Allocations:
    """What memory managers hold and what they have moved.

    Attributes
    ----------
    host, device, unified : Usage
        Unified memory is CUDA's own managed memory.
    to_device, to_host : int
        Copies between the sides.
    to_device_bytes, to_host_bytes : int
    """

    host: Usage = field(default_factory=Usage)
    device: Usage = field(default_factory=Usage)
    unified: Usage = field(default_factory=Usage)
    to_device: int = 0
    to_host: int = 0
    to_device_bytes: int = 0
    to_host_bytes: int = 0


_now = Allocations()
# Reentrant: a garbage collection inside the lock may free a manager.
_lock = threading.RLock()


def count_allocation(kind: str, size_bytes: int) -> None:
    """Note that memory was taken; `kind` is ``"host"``, ``"device"`` or ``"unified"``."""
    with _lock:
        usage: Usage = getattr(_now, kind)
        usage.size_bytes += size_bytes
        usage.peak_bytes = max(usage.peak_bytes, usage.size_bytes)
        usage.allocated += 1


def count_release(kind: str, size_bytes: int) -> None:
    """Note that memory was given back."""
    with _lock:
        usage: Usage = getattr(_now, kind)
        usage.size_bytes -= size_bytes
        usage.freed += 1


def count_transfer(direction: str, size_bytes: int) -> None:
    """Note a copy between the sides; `direction` is ``"to_device"`` or ``"to_host"``."""
    with _lock:
        setattr(_now, direction, getattr(_now, direction) + 1)
        total = f"{direction}_bytes"
        setattr(_now, total, getattr(_now, total) + size_bytes)


def allocation_statistics() -> Allocations:
    """Return what memory managers of this process hold now and have moved so far.

    Returns
    -------
    Allocations
        A copy: it does not change any more.
    """
    with _lock:
        return replace(
            _now,
            host=replace(_now.host),
            device=replace(_now.device),
            unified=replace(_now.unified),
        )
