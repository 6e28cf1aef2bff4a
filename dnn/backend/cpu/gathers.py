"""Kernels that gather rows of samples and advance from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnn.backend.cpu.kernels import SPLIT_ELEMENTS, array_kernel, cuts, loop
from dnn.backend.ops import Array, Ops

__all__ = ["end_batch", "take_batch", "take_rows"]


@loop()
def take_rows_loop(x: Array, rows: Array, out: Array) -> None:
    """``out[i] = x[rows[i]]``."""
    for i in range(out.shape[0]):
        row = rows[i]
        for j in range(out.shape[1]):
            out[i, j] = x[row, j]


def _rows(x: Array, rows: Array, out: Array) -> Sequence[Array] | None:
    if x.ndim < 1 or out.shape != (*rows.shape, *x.shape[1:]) or not out.size:
        return None
    contiguous = x.flags.c_contiguous and rows.flags.c_contiguous and out.flags.c_contiguous
    if not contiguous or x.dtype != out.dtype:
        return None
    return x.reshape(x.shape[0], -1), rows.reshape(-1), out.reshape(rows.size, -1)


@loop()
def take_batch_loop(x: Array, order: Array, position: Array, out: Array) -> None:
    """``out[k, i] = x[order[k, position[0] + i]]``."""
    start = position[0]
    for k in range(out.shape[0]):
        for i in range(out.shape[1]):
            row = order[k, start + i]
            for j in range(out.shape[2]):
                out[k, i, j] = x[row, j]


def _batch(x: Array, order: Array, position: Array, out: Array) -> Sequence[Array] | None:
    groups, batch = order.shape[:-1], out.shape[order.ndim - 1]
    if order.ndim > 2 or out.shape != (*groups, batch, *x.shape[1:]) or not out.size:
        return None
    contiguous = x.flags.c_contiguous and order.flags.c_contiguous and out.flags.c_contiguous
    if not contiguous or x.dtype != out.dtype:
        return None
    models = groups[0] if groups else 1
    rows = x.reshape(x.shape[0], -1)
    return rows, order.reshape(models, -1), position, out.reshape(models, batch, -1)


def _split_batch(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    x, order, position, out = arguments
    if out.size < SPLIT_ELEMENTS or order.ndim != 1:
        return []
    return [(x, order[cut.start :], position, out[cut]) for cut in cuts(len(out), parts)]


@loop()
def end_batch_loop(loss: Array, losses: Array, position: Array) -> None:
    """``losses[position[1]] = loss``; then advance the position to the next batch."""
    for k in range(loss.size):
        losses[position[1], k] = loss[k]
    position[0] += position[2]
    position[1] += 1


def _end(loss: Array, losses: Array, position: Array) -> Sequence[Array] | None:
    if not (loss.flags.c_contiguous and losses.flags.c_contiguous):
        return None
    return loss.reshape(-1), losses.reshape(losses.shape[0], -1), position


take_rows = array_kernel(take_rows_loop, (2, 1, 2), _rows, Ops.take_rows)
take_batch = array_kernel(take_batch_loop, (2, 2, 1, 3), _batch, Ops.take_batch, split=_split_batch)
end_batch = array_kernel(end_batch_loop, (1, 2, 1), _end, Ops.end_batch)
