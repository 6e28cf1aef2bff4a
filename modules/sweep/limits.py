"""What a trial may take of time and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """Limits of one trial; if there are any, it runs in a process of its own.

    Attributes
    ----------
    isolated : bool
        Whether to use a process of its own in any case.
    time_s : float or None
        Seconds.
    memory_bytes : int or None
        Of the process as the system counts them (resident).
    """

    isolated: bool = False
    time_s: float | None = None
    memory_bytes: int | None = None

    @property
    def needs_process(self) -> bool:
        """Whether trials run in a process of their own."""
        return self.isolated or self.time_s is not None or self.memory_bytes is not None


def parse_memory(text: str | int | None) -> int | None:
    """Return the bytes of ``"4 GiB"``, say.

    Raises
    ------
    ValueError
        If it is no amount of memory.
    """
    if text is None:
        return None
    if isinstance(text, int):
        amount = text
    else:
        found = _MEMORY.fullmatch(text)
        if found is None:
            raise ValueError(f'memory_limit = {text!r}: write "512 MiB" or "4 GiB"')
        amount = int(float(found[1]) * _UNITS[found[2].upper()])
    if amount < 1:
        raise ValueError(f"memory_limit = {text!r}: at least a byte")
    return amount
