"""What ``diel new-module --language`` writes: a module in C, C++ or Fortran, and its build file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_C: Final = """\
/* The module NAME: copies share the work and meet in the tuple space. */
#include <diel.h>

/* Add the numbers below `count`: each copy a part, copy 0 the sums of all. */
int run(diel *d) {
    int64_t count = 100, number, part, total = 0;
    diel_array result = diel_number(DIEL_INT64, &total);
    int copy, status;

    status = diel_option_int(d, "count", &count); /* stays 100 where the file has none */
    if (status != DIEL_DONE && status != DIEL_ABSENT) return status;
    for (number = d->copy; number < count; number += d->copies) total += number;
    status = diel_put_int(d, "partial sum", total);
    if (status != DIEL_DONE || d->copy > 0) return status;
    total = 0;
    for (copy = 0; copy < d->copies; copy++) {
        status = diel_get_int(d, "partial sum", &part, 60);
        if (status != DIEL_DONE) return status;
        total += part;
        diel_progress(d, copy + 1, d->copies, NULL);
    }
    return diel_result(d, "total", &result);
}
"""

_CPP: Final = """\
// The module NAME: copies share the work and meet in the tuple space.
#include <diel.h>
#include <cstdint>

// Add the numbers below `count`: each copy a part, copy 0 the sums of all.
extern "C" int run(diel *d) {
    std::int64_t count = 100, total = 0;
    int status = diel_option_int(d, "count", &count); // stays 100 where the file has none
    if (status != DIEL_DONE && status != DIEL_ABSENT) return status;
    for (std::int64_t number = d->copy; number < count; number += d->copies) total += number;
    status = diel_put_int(d, "partial sum", total);
    if (status != DIEL_DONE || d->copy > 0) return status;
    total = 0;
    for (int copy = 0; copy < d->copies; copy++) {
        std::int64_t part = 0;
        status = diel_get_int(d, "partial sum", &part, 60);
        if (status != DIEL_DONE) return status;
        total += part;
        diel_progress(d, copy + 1, d->copies, nullptr);
    }
    diel_array result = diel_number(DIEL_INT64, &total);
    return diel_result(d, "total", &result);
}
"""

_FORTRAN: Final = """\
! The module NAME: copies share the work and meet in the tuple space.

! Add the numbers below `count`: each copy a part, copy 0 the sums of all.
integer(c_int) function run(d) bind(C)
  use, intrinsic :: iso_c_binding
  use diel
  implicit none
  type(diel_copy), intent(inout) :: d
  integer(c_int64_t) :: count, number, part, total
  integer :: copy, status

  count = 100 ! where the file has no such option
  run = diel_option(d, "count", count)
  if (run /= DIEL_DONE .and. run /= DIEL_ABSENT) return
  total = 0
  do number = d%copy, count - 1, d%copies
    total = total + number
  end do
  run = diel_put(d, "partial sum", total)
  if (run /= DIEL_DONE .or. d%copy > 0) return
  total = 0
  do copy = 1, d%copies
    run = diel_get(d, "partial sum", part, timeout=60d0)
    if (run /= DIEL_DONE) return
    total = total + part
    status = diel_progress(d, dble(copy), dble(d%copies))
  end do
  run = diel_result(d, "total", total)
end function
"""

_MAKEFILE: Final = """\
# Build NAME.so:   make
"""
_OF_C: Final = (
    _MAKEFILE
    + """\
CFLAGS = -O2 -g -Wall

NAME.so: NAME.c
\t$(CC) -shared -fPIC $(CFLAGS) $$(diel config --cflags) -o $@ NAME.c
"""
)
_OF_CPP: Final = (
    _MAKEFILE
    + """\
CXXFLAGS = -O2 -g -Wall

NAME.so: NAME.cpp
\t$(CXX) -shared -fPIC $(CXXFLAGS) $$(diel config --cflags) -o $@ NAME.cpp
"""
)
_OF_FORTRAN: Final = (
    _MAKEFILE
    + """\
FC = gfortran
FFLAGS = -O2 -g -Wall

NAME.so: NAME.f90
\t$(FC) -shared -fPIC $(FFLAGS) -o $@ $$(diel config --fortran) NAME.f90
"""
)

_TEST: Final = '''\
"""The test of NAME."""

import subprocess
import sys
from pathlib import Path

import diel

HERE = Path(__file__).parent
LIBRARY = "NAME.so"
FILE = HERE / "NAME.toml"


def test_the_copies_share_the_work(tmp_path):
    """The library is built and its workflow run: the first copy returns the sum."""
    subprocess.run(["make", "-s", "-C", HERE, LIBRARY], check=True, timeout=120)
    command = [sys.executable, "-m", "diel", "run", FILE, "--runs", tmp_path]
    subprocess.run(command, check=True, timeout=120)
    records = diel.open_run(next(tmp_path.iterdir())).journal()
    returned = [getattr(record, "returned", None) for record in records]
    assert {"total": 499_500} in returned
'''

_WORKFLOW: Final = """\
# Two copies of NAME.   make && diel run NAME.toml
[[module]]
name = "NAME"
library = "./NAME.so:run"
copies = 2
options = { count = 1000 }

[[group]]
name = "work"
modules = ["NAME"]
"""

_SOURCES: Final = {
    "c": ("NAME.c", _C, _OF_C),
    "cpp": ("NAME.cpp", _CPP, _OF_CPP),
    "fortran": ("NAME.f90", _FORTRAN, _OF_FORTRAN),
}
FILES: Final[Mapping[str, Mapping[str, str]]] = {
    language: {source: text, "Makefile": makefile, "test_NAME.py": _TEST, "NAME.toml": _WORKFLOW}
    for language, (source, text, makefile) in _SOURCES.items()
}
"""For each language what each file holds; NAME is the name of the module."""
