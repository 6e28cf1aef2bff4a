"""Ranks that make different schemes are told so, before they wait for each other in vain."""

import inspect

import pytest

from dnn.distributed import (
    AsynchronousSGD,
    DataParallel,
    LocalSGD,
    Mesh,
    ParameterServer,
    run_on_threads,
)
from dnn.errors import ConfigurationError, DisagreementError, PeerError

DIFFERENT = {
    "rows": (DataParallel, {"rows": "own"}),
    "wire": (DataParallel, {"wire": "float16"}),
    "on_nan": (DataParallel, {"on_nan": "skip"}),
    "batch_norm": (DataParallel, {"batch_norm": "together"}),
    "sharded": (DataParallel, {"sharded": True}),
    "steps": (LocalSGD, {"steps": 3}),
    "outer_momentum": (LocalSGD, {"outer_momentum": 0.5}),
    "outer_learning_rate": (LocalSGD, {"outer_learning_rate": 0.5}),
    "average_optimizer": (LocalSGD, {"average_optimizer": True}),
    "staleness": (ParameterServer, {"staleness": 2}),
    "dedicated": (AsynchronousSGD, {"dedicated": True}),
    "divide_by_staleness": (ParameterServer, {"divide_by_staleness": True}),
    "schedule": (Mesh, {"schedule": "gpipe"}),
}


def errors(make, ranks=2):
    """Return what each rank raises as it makes a scheme."""

    def tried(comm):
        with pytest.raises((DisagreementError, PeerError, ConfigurationError)) as caught:
            make(comm)
        return caught.value

    return run_on_threads(ranks, tried, timeout_s=60)


@pytest.mark.parametrize("option", DIFFERENT)
def test_ranks_with_different_options_are_told_so(option):
    scheme, options = DIFFERENT[option]
    for error in errors(lambda comm: scheme(comm, **(options if comm.rank else {}))):
        assert isinstance(error, DisagreementError)
        assert error.rank == 1
        assert f"scheme: rank 1 has {scheme.__name__}(" in str(error)
        mine, _, other = str(error).partition("rank 0 has ")
        assert f"{option}={options[option]!r}" in mine
        assert f"{option}=" in other
        assert f"{option}={options[option]!r}" not in other


def test_ranks_with_different_schemes_are_told_so():
    for error in errors(lambda comm: LocalSGD(comm) if comm.rank else DataParallel(comm)):
        assert isinstance(error, DisagreementError)
        assert "rank 1 has LocalSGD(" in str(error)
        assert "rank 0 has DataParallel(" in str(error)


def test_a_wrong_option_of_one_rank_ends_all():
    first, second = errors(lambda comm: LocalSGD(comm, steps=1 - comm.rank))
    assert isinstance(second, ConfigurationError)
    assert isinstance(first, PeerError)
    assert str(first).startswith("rank 1: ConfigurationError: steps must be")


@pytest.mark.parametrize("kind", [DataParallel, LocalSGD, Mesh, ParameterServer])
def test_every_option_is_compared(kind):
    (text,) = run_on_threads(1, lambda comm: repr(kind(comm)))
    _, *options = inspect.signature(kind).parameters
    assert [name for name in options if f"{name}=" not in text] == []
