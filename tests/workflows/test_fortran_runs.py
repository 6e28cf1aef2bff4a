"""Library modules in Fortran: the whole of diel.f90, whose struct and table are those of diel.h."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
from pathlib import Path

import pytest
from compiled import STRICT, STRICT_FORTRAN, compile_fortran
from support import diel, records_of, workflow

from diel.compiled.layout import CALLS, HEADER_FOLDER, ArrayStruct, CopyStruct
from diel.workflow.elf import content_of, read_shared_object
from diel.workflow.libraries import ABI, HEADER

SOURCE = r"""
module solver
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use diel
  implicit none
contains

  ! A condition that has to be true; the first that is not fails the copy, with its number.
  subroutine check(d, number, is_true)
    type(diel_copy), intent(inout) :: d
    integer, intent(in) :: number
    logical, intent(in) :: is_true
    character(20) :: text
    integer :: unused
    if (is_true) return
    write (text, "(a, i0)") "check ", number
    unused = diel_log(d, DIEL_ERROR, text // diel_error_text(d))
    unused = diel_acknowledge(d, int(number, int64))
  end subroutine

  integer(c_int) function run(d) bind(C)
    type(diel_copy), intent(inout) :: d
    call options(d)
    call tuples(d)
    call messages(d)
    call boundaries(d)
    call states(d)
    run = diel_log(d, DIEL_INFO, "all of it")
  end function

  subroutine options(d)
    type(diel_copy), intent(inout) :: d
    integer :: status
    real(real64) :: dt, list(4)
    integer(int32) :: steps
    integer(int64) :: whole, whole_list(2), count
    logical :: is_on
    character(20) :: name
    character(80) :: json
    dt = 0.5
    steps = 7
    is_on = .false.
    status = diel_option(d, "solver.dt", dt)
    call check(d, 1, status == DIEL_DONE)
    call check(d, 2, dt == 0.25)
    status = diel_option(d, "solver.dx", dt)
    call check(d, 3, status == DIEL_ABSENT)
    call check(d, 4, dt == 0.25)
    status = diel_option(d, "steps", steps)
    call check(d, 5, status == DIEL_DONE)
    call check(d, 6, steps == 12)
    status = diel_option(d, "large", whole)
    call check(d, 7, status == DIEL_DONE)
    call check(d, 8, whole == 2_int64**40)
    status = diel_option(d, "large", steps)
    call check(d, 9, status == DIEL_FAILED)
    call check(d, 10, steps == 12)
    call check(d, 11, index(diel_error_text(d), "more than 32 bits") > 0)
    status = diel_clear_error(d)
    call check(d, 12, status == DIEL_DONE)
    status = diel_option(d, "on", is_on)
    call check(d, 13, status == DIEL_DONE)
    call check(d, 14, is_on)
    status = diel_option(d, "names.1", name)
    call check(d, 15, status == DIEL_DONE)
    call check(d, 16, name == "b")
    status = diel_option(d, "list", list, count)
    call check(d, 17, status == DIEL_DONE)
    call check(d, 18, count == 3)
    call check(d, 19, all(list(:3) == [1.0_real64, 2.0_real64, 2.5_real64]))
    status = diel_option(d, "whole", whole_list, count)
    call check(d, 20, status == DIEL_DONE)
    call check(d, 21, count == 2 .and. all(whole_list == [3, 4]))
    status = diel_option_json(d, "solver", json)
    call check(d, 22, status == DIEL_DONE)
    call check(d, 23, json == '{"dt": 0.25}')
    call check(d, 24, diel_has_option(d, "solver") .and. .not. diel_has_option(d, "solver.none"))
    status = diel_option(d, "solver.dt", steps)
    call check(d, 25, status == DIEL_FAILED)
    call check(d, 26, index(diel_error_text(d), "a whole number is asked for") > 0)
    status = diel_clear_error(d)
    call check(d, 27, status == DIEL_DONE)
    call check(d, 28, diel_error_text(d) == "")
    call check(d, 29, diel_string(d%module) == "solver" .and. diel_string(d%group) == "all")
    call check(d, 30, d%copies == 1 .and. d%depth == 1 .and. diel_string(d%element) == "")
    call check(d, 31, diel_must_stop(d) == DIEL_GO_ON .and. diel_time_left(d) < 0)
  end subroutine

  subroutine tuples(d)
    type(diel_copy), intent(inout) :: d
    integer :: status
    integer(int32) :: small(2, 3), one
    integer(int64) :: cube(2, 3, 4), number, claim, count
    real(real32) :: single(5), single_back(5)
    real(real64) :: plane(3, 2), back(3, 2), other(2, 3), sum
    complex(real64) :: wave(2)
    logical(c_bool) :: flags(3)
    character(12) :: words
    character(8) :: own
    type(diel_array) :: value
    real(real64), pointer :: seen(:, :)
    integer :: i, j, k

    write (own, "(a, i0)") "rank/", d%rank
    plane = reshape([(0.5_real64 * i, i = 1, 6)], [3, 2])
    status = diel_put(d, own // "/plane", plane, DIEL_STRIPED + DIEL_VISIBLE)
    call check(d, 32, status == DIEL_DONE)
    status = diel_read_value(d, own // "/plane", value)
    call check(d, 33, status == DIEL_DONE)
    call check(d, 34, value%dtype == DIEL_FLOAT64 .and. all(value%shape(:2) == [2, 3]))
    call check(d, 35, all(diel_shape(value) == shape(plane)))
    call c_f_pointer(value%data, seen, diel_shape(value))
    call check(d, 36, all(seen == plane))
    status = diel_free(d, value)
    call check(d, 37, status == DIEL_DONE)
    call check(d, 38, .not. c_associated(value%data))
    status = diel_free(d, value)
    call check(d, 39, status == DIEL_DONE)
    status = diel_get(d, own // "/plane", other)
    call check(d, 40, status == DIEL_FAILED)
    call check(d, 41, index(diel_error_text(d), "(2, 3)") > 0)
    status = diel_clear_error(d)
    call check(d, 42, status == DIEL_DONE)
    status = diel_read(d, own // "/plane", back)
    call check(d, 43, status == DIEL_DONE)
    call check(d, 44, all(back == plane))
    status = diel_get(d, own // "/plane", back, timeout=5.0_real64)
    call check(d, 45, status == DIEL_DONE)
    status = diel_get(d, own // "/plane", back, timeout=0.0_real64)
    call check(d, 46, status == DIEL_LATE)
    ! A part that is not in one piece is refused.
    status = diel_put(d, own // "/row", plane(2, :))
    call check(d, 47, status == DIEL_FAILED)
    call check(d, 48, index(diel_error_text(d), "not in one piece") > 0)
    status = diel_clear_error(d)
    call check(d, 49, status == DIEL_DONE)
    status = diel_put(d, own // "/column", plane(:, 2))
    call check(d, 50, status == DIEL_DONE)
    status = diel_get(d, own // "/column", back(:, 1))
    call check(d, 51, status == DIEL_DONE)
    call check(d, 52, all(back(:, 1) == plane(:, 2)))
    status = diel_put(d, own // "/empty", single(:0))
    call check(d, 53, status == DIEL_DONE)
    status = diel_get(d, own // "/empty", single(:0))
    call check(d, 54, status == DIEL_DONE)

    do concurrent (i = 1:2, j = 1:3, k = 1:4)
      cube(i, j, k) = 100 * i + 10 * j + k
    end do
    small = int(cube(:, :, 1), int32)
    single = [(real(i), i = 1, 5)]
    wave = [(1.0_real64, 2.0_real64), (3.0_real64, 4.0_real64)]
    flags = logical([.true., .false., .true.], c_bool)
    if (d%rank == 0) then
      status = diel_put(d, "small", small)
      call check(d, 55, status == DIEL_DONE)
      status = diel_put(d, "cube", cube)
      call check(d, 56, status == DIEL_DONE)
      status = diel_put(d, "wave", wave)
      call check(d, 57, status == DIEL_DONE)
      status = diel_put(d, "flags", flags)
      call check(d, 58, status == DIEL_DONE)
      status = diel_put(d, "number", 42_int64)
      call check(d, 59, status == DIEL_DONE)
      status = diel_put(d, "real", 2.5_real64)
      call check(d, 60, status == DIEL_DONE)
      status = diel_put(d, "words", "to Python")
      call check(d, 61, status == DIEL_DONE)
      status = diel_get(d, "transposed", cube(:, :, 1))
      call check(d, 62, status == DIEL_DONE)
      call check(d, 63, all(cube(:, :, 1) == 2 * small))
      status = diel_get(d, "answer", words)
      call check(d, 64, status == DIEL_DONE)
      call check(d, 65, words == "from Python")
      status = diel_get(d, "count", number)
      call check(d, 66, status == DIEL_DONE)
      call check(d, 67, number == 7)
      status = diel_get_value(d, "table", value)
      call check(d, 68, status == DIEL_DONE)
      call check(d, 69, value%dtype == DIEL_JSON .and. diel_text_of(value) == '{"a": [1, null]}')
    end if
    status = diel_put(d, own // "/single", single)
    call check(d, 70, status == DIEL_DONE)
    status = diel_get(d, own // "/single", single_back)
    call check(d, 71, status == DIEL_DONE)
    call check(d, 72, all(single_back == single))
    status = diel_put(d, own // "/one", 3_int32)
    call check(d, 73, status == DIEL_DONE)
    status = diel_get(d, own // "/one", one)
    call check(d, 74, status == DIEL_DONE)
    call check(d, 75, one == 3)

    status = diel_put(d, own // "/words/left", "hello")
    call check(d, 76, status == DIEL_DONE)
    status = diel_put(d, own // "/words/left", "x", DIEL_IF_ABSENT)
    call check(d, 77, status == DIEL_ABSENT)
    status = diel_count(d, own // "/words/*", count)
    call check(d, 78, status == DIEL_DONE)
    call check(d, 79, count == 1)
    status = diel_claim_value(d, own // "/words/*", value, claim)
    call check(d, 80, status == DIEL_DONE)
    call check(d, 81, diel_text_of(value) == "hello")
    status = diel_free(d, value)
    call check(d, 82, status == DIEL_DONE)
    call check(d, 83, index(diel_matched_tag(d), "left") > 0)
    status = diel_give_back(d, claim)
    call check(d, 84, status == DIEL_DONE)
    status = diel_claim_value(d, own // "/words/*", value, claim, lease=60.0_real64)
    call check(d, 85, status == 0)
    status = diel_renew(d, claim, 60.0_real64)
    call check(d, 86, status == DIEL_DONE)
    status = diel_acknowledge(d, claim)
    call check(d, 87, status == DIEL_DONE)
    status = diel_increment(d, "sum", 1.0_real64, sum)
    call check(d, 88, status == DIEL_DONE)
    call check(d, 89, sum >= 1)
    status = diel_flush(d)
    call check(d, 90, status == DIEL_DONE)
  end subroutine

  subroutine messages(d)
    type(diel_copy), intent(inout) :: d
    interface
      integer(c_int) function sum_of_ranks(handle) bind(C)
        import
        integer(c_int32_t), value :: handle
      end function
    end interface
    integer :: status
    integer(int32) :: copies, ranks, handle
    real(real64) :: x(3)
    character(20) :: words
    type(diel_array) :: value
    type(diel_address) :: source
    status = diel_peers(d, "peer", copies, ranks)
    call check(d, 91, status == DIEL_DONE)
    call check(d, 92, copies == 1 .and. ranks == 1)
    x = [1, 2, 3]
    status = diel_send(d, "peer", 0, 0, x, "numbers")
    call check(d, 93, status == DIEL_DONE)
    x(1) = 9
    status = diel_move(d, "peer", 0, 0, x, timeout=60.0_real64)
    call check(d, 94, status == DIEL_DONE)
    status = diel_send_value(d, "peer", 0, 0, diel_value(7_int64), "seven")
    call check(d, 95, status == DIEL_DONE)
    status = diel_recv(d, x, "peer", tag="back")
    call check(d, 96, status == DIEL_DONE)
    call check(d, 97, x(2) == 20)
    status = diel_recv(d, words, tag="words", source=source)
    call check(d, 98, status == DIEL_DONE)
    call check(d, 99, words == "well done" .and. diel_module_of(source) == "peer")
    status = diel_recv_value(d, value, "peer", 0, 0, "words")
    call check(d, 100, status == DIEL_DONE)
    call check(d, 101, diel_text_of(value) == "again")
    status = diel_free(d, value)
    call check(d, 102, status == DIEL_DONE)
    status = diel_recv(d, x, "peer", timeout=0.0_real64)
    call check(d, 103, status == DIEL_LATE)
    status = diel_send(d, "pear", 0, 0, x)
    call check(d, 104, status == DIEL_FAILED)
    status = diel_clear_error(d)
    call check(d, 105, status == DIEL_DONE)
    status = diel_comm_handle(d, handle)
    call check(d, 106, status == DIEL_DONE)
    call check(d, 107, sum_of_ranks(handle) == d%ranks * (d%ranks - 1) / 2)
    status = diel_module_comm_handle(d, handle)
    call check(d, 108, status == DIEL_DONE)
    call check(d, 109, sum_of_ranks(handle) == d%ranks * (d%ranks - 1) / 2)
  end subroutine

  ! The wall is the last line of a field, whose lines are not in one piece.
  subroutine boundaries(d)
    type(diel_copy), intent(inout) :: d
    real(real64), allocatable, target :: field(:, :), theirs(:)
    real(real64), pointer :: whole(:, :)
    type(diel_boundary) :: wall, back, table
    type(diel_array) :: section
    integer(int64) :: start(2), step
    integer :: at, i, mine, status
    status = diel_boundary_open(d, "wall", wall)
    call check(d, 110, status == DIEL_DONE)
    call check(d, 111, wall%owned == 1 .and. wall%read == 0)
    status = diel_boundary_open(d, "back", back)
    call check(d, 112, status == DIEL_DONE)
    call check(d, 113, back%read == 1)
    status = diel_boundary_open(d, "table", table)
    call check(d, 114, status == DIEL_DONE)
    status = diel_section(d, wall, DIEL_OWNED, 0, section, start)
    call check(d, 115, status == DIEL_DONE)
    mine = 8 / d%ranks
    call check(d, 116, all(diel_shape(section) == [1, mine]))
    call check(d, 117, all(start == [1, d%rank * mine + 1]))
    allocate (field(10, mine), theirs(8))
    status = diel_bind(d, wall, DIEL_OWNED, 0, field(9:10, :))
    call check(d, 118, status == DIEL_FAILED)
    call check(d, 200, index(diel_error_text(d), "of shape (1, ") > 0)
    status = diel_clear_error(d)
    call check(d, 119, status == DIEL_DONE)
    status = diel_bind(d, wall, DIEL_OWNED, 0, field(10:10, :))
    call check(d, 120, status == DIEL_DONE)
    status = diel_bind(d, back, DIEL_READS, 0, theirs)
    call check(d, 121, status == DIEL_DONE)
    do at = 0, 2
      do i = 1, mine
        field(:, i) = -1
        field(10, i) = 100 * at + start(2) + i - 1
      end do
      status = diel_exchange(d, wall, 60.0_real64)
      call check(d, 122, status == DIEL_DONE)
      status = diel_pull(d, back, step=step)
      call check(d, 123, status == DIEL_DONE)
      call check(d, 124, step == at)
      call check(d, 125, all(theirs == [(2.0_real64 * (100 * at + i), i = 1, 8)]))
    end do
    status = diel_boundary_array(d, table, section)
    call check(d, 126, status == DIEL_DONE)
    call c_f_pointer(section%data, whole, diel_shape(section))
    whole(:, d%rank + 1) = [10 * d%rank + 1, 10 * d%rank + 2, 10 * d%rank + 3]
    call check(d, 127, all(shape(whole) == [3, 2]))
    status = diel_push(d, table)
    call check(d, 128, status == DIEL_DONE)
  end subroutine

  subroutine states(d)
    type(diel_copy), intent(inout) :: d
    integer :: status
    real(real64) :: x(2)
    type(diel_array) :: value
    x = [1.5, 2.5]
    status = diel_restore(d, "x", x)
    call check(d, 129, status == DIEL_ABSENT)
    status = diel_restore_value(d, "x", value)
    call check(d, 130, status == DIEL_ABSENT)
    status = diel_save(d, "x", x)
    call check(d, 131, status == DIEL_DONE)
    value = diel_value(3_int64)
    status = diel_save_value(d, "step", value)
    call check(d, 132, status == DIEL_DONE)
    status = diel_checkpoint(d)
    call check(d, 133, status == DIEL_DONE)
    status = diel_progress(d, 3.0_real64, 3.0_real64, "steps")
    call check(d, 134, status == DIEL_DONE)
    status = diel_progress(d, 3.0_real64)
    call check(d, 135, status == DIEL_DONE)
    status = diel_result(d, "last", x(2))
    call check(d, 136, status == DIEL_DONE)
    status = diel_result(d, "what", "text")
    call check(d, 137, status == DIEL_DONE)
    value = diel_value(d%ranks)
    status = diel_result_value(d, "ranks", value)
    call check(d, 138, status == DIEL_DONE)
    status = diel_allow_loss(d)
    call check(d, 139, status == DIEL_DONE)
  end subroutine

end module
"""

# PyPI's Open MPI has no module `mpi`: a C file of the library uses the communicator.
IN_C = """
#include <mpi.h>

int sum_of_ranks(int handle);
int sum_of_ranks(int handle) {
    int rank, sum;
    MPI_Comm_rank(MPI_Comm_f2c(handle), &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_Comm_f2c(handle));
    return sum;
}
"""

PEER = """
import numpy as np

def run(ctx):
    ranks = ctx.ranks_of("solver")
    small, cube = ctx.tuples.tget("small"), ctx.tuples.tget("cube")
    assert small.dtype == np.int32 and small.shape == (3, 2)
    assert small[2, 1] == 231  # small(2, 3)
    assert cube.shape == (4, 3, 2) and cube[3, 2, 1] == 234  # cube(2, 3, 4)
    assert ctx.tuples.tget("wave").tolist() == [1 + 2j, 3 + 4j]
    assert ctx.tuples.tget("flags").tolist() == [True, False, True]
    assert ctx.tuples.tget("number") == 42 and ctx.tuples.tget("real") == 2.5
    assert ctx.tuples.tget("words") == "to Python"
    ctx.tuples.tput("transposed", 2 * small.astype(np.int64))
    ctx.tuples.tput("answer", "from Python")
    ctx.tuples.tput("count", 7)
    ctx.tuples.tput("table", {"a": [1, None]})
    for rank in range(ranks):
        solver = ("solver", 0, rank)
        x = ctx.recv(solver, tag="numbers")
        assert x.tolist() == [1, 2, 3]
        assert ctx.recv(solver).tolist() == [9, 2, 3]
        assert ctx.recv(solver, tag="seven") == 7
        ctx.send(10 * x, solver, tag="back")
        ctx.send("well done", solver, tag="words")
        ctx.send("again", solver, tag="words")
    wall, back, table = ctx.boundary("wall"), ctx.boundary("back"), ctx.boundary("table")
    for step in range(3):
        wall.exchange()
        back.owned[0][...] = 2 * wall.read[0][:, 0]
        back.push()
    table.pull()
    assert table.read[0].tolist() == [[10 * i + j for j in (1, 2, 3)] for i in range(2)][:ranks]
"""

FILE = """
[[module]]
name = "solver"
library = "./solver.so:run"
processes = RANKS

[module.options]
steps = 12
large = 1099511627776
on = true
names = ["a", "b"]
whole = [3, 4]
list = [1, 2, 2.5]
solver.dt = 0.25

[[module]]
name = "peer"
function = "./peer.py:run"

# In Fortran (1, 8), (8) and (3, 2).
[[boundary]]
name = "wall"
shape = [8, 1]
owners = [{ module = "solver", split = 0 }]
readers = [{ module = "peer" }]

[[boundary]]
name = "back"
shape = [8]
owners = [{ module = "peer" }]
readers = [{ module = "solver" }]

[[boundary]]
name = "table"
shape = [2, 3]
owners = [{ module = "solver", section = [[0, RANKS], [0, 3]], split = 0 }]
readers = [{ module = "peer", section = [[0, RANKS], [0, 3]] }]

[[group]]
name = "all"
modules = ["solver", "peer"]
"""


@pytest.mark.parametrize(("ranks", "optimised"), [(1, "-O0"), (2, "-O3")])
def test_every_call_of_fortran(tmp_path: Path, ranks: int, optimised: str) -> None:
    source = tmp_path / "solver.f90"
    source.write_text(SOURCE)
    (tmp_path / "in_c.c").write_text(IN_C)
    subprocess.run(
        ["mpicc", *STRICT, "-fPIC", "-c", "in_c.c"], cwd=tmp_path, check=True, timeout=60
    )
    mpi = diel("config", "--libs", "--mpi", cwd=tmp_path).stdout.split()
    compile_fortran(source, "in_c.o", *mpi, flags=(*STRICT_FORTRAN, optimised))
    text = FILE.replace("RANKS", str(ranks))
    done = diel("run", workflow(tmp_path, text, peer=PEER), cwd=tmp_path)
    assert done.status == 0, done.output
    assert "all of it" not in done.output
    ended = records_of(tmp_path, "CopyFinished", module="solver")
    assert [each["returned"] for each in ended] == [{"last": 2.5, "what": "text", "ranks": ranks}]


def test_struct_and_table_are_those_of_the_header(tmp_path: Path) -> None:
    source = tmp_path / "solver.f90"
    source.write_text(CRASH)
    library = compile_fortran(source)
    symbol = read_shared_object(library).symbols[HEADER]
    found = struct.unpack("=4i", content_of(library, symbol)[:16])
    table_bytes = 8 * (1 + len(CALLS))
    assert found == (ABI, ctypes.sizeof(CopyStruct), table_bytes, ctypes.sizeof(ArrayStruct))
    text = (HEADER_FOLDER / "diel.f90").read_text()
    listed = re.search(r"type\(c_funptr\) :: ((?:.*&\n)*.*)", text)
    assert listed
    assert re.findall(r"\w+", listed[1]) == list(CALLS)
    header = (HEADER_FOLDER / "diel.h").read_text()
    codes = dict(re.findall(r"\b(DIEL_[A-Z0-9_]+) = (\d+)", header))
    ours = re.findall(r"\b(DIEL_[A-Z0-9_]+) = (\d+)", text)
    assert len(ours) > 30
    assert [(name, codes[name]) for name, _ in ours] == ours


CRASH = """
integer(c_int) function run(d) bind(C)
  use, intrinsic :: iso_c_binding
  use diel
  implicit none
  type(diel_copy), intent(inout) :: d
  real(c_double), pointer :: grid(:)
  call c_f_pointer(c_null_ptr, grid, [10])
  run = diel_put(d, "x", sum(grid))
end function
"""


@pytest.mark.thorough
def test_a_crash_is_told_with_its_stack(tmp_path: Path) -> None:
    source = tmp_path / "crash.f90"
    source.write_text(CRASH)
    library = compile_fortran(source)
    text = '[[module]]\nname = "solver"\nlibrary = "./crash.so:run"\n'
    text += '[[group]]\nname = "all"\nmodules = ["solver"]\n'
    done = diel("run", workflow(tmp_path, text), cwd=tmp_path)
    assert done.status not in (0, 2), done.output
    assert f"module solver.0 crashed: Segmentation fault at {library}(run+" in done.output
