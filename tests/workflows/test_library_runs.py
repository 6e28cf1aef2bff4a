"""Library modules in runs: every part of diel.h, called from C and C++."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compiled import STRICT, STRICT_CPP, compile_library
from support import diel, records_of, workflow

BASICS = r"""
#include <mpi.h>
#include <diel.h>

#define CHECK(what) if (!(what)) return diel_logf(d, DIEL_ERROR, "line %d: %s", __LINE__, #what), 1

#ifdef __cplusplus
extern "C"
#endif
int run(diel *d) {
    double dt = 0.5, list[4], x[6], sum = 0, mine;
    int64_t whole = 7, count = 0, claim = 0;
    int is_on = 0, rank, i;
    char text[64], tag[64];
    diel_array value, found;
    MPI_Comm comm = diel_comm(d);

    memset(&found, 0, sizeof found);
    CHECK(diel_option_double(d, "solver.dt", &dt) == DIEL_DONE && dt == 0.25);
    CHECK(diel_option_double(d, "solver.dx", &dt) == DIEL_ABSENT && dt == 0.25);
    CHECK(diel_option_int(d, "steps", &whole) == DIEL_DONE && whole == 12);
    CHECK(diel_option_bool(d, "on", &is_on) == DIEL_DONE && is_on == 1);
    CHECK(diel_option_text(d, "names.1", text, sizeof text) == DIEL_DONE && !strcmp(text, "b"));
    CHECK(diel_option_doubles(d, "list", list, 4, &count) == DIEL_DONE && count == 3);
    CHECK(list[0] == 1 && list[2] == 2.5);
    CHECK(diel_option_doubles(d, "list", list, 2, &count) == DIEL_FAILED && count == 3);
    CHECK(diel_option_int(d, "solver.dt", &whole) == DIEL_FAILED);
    CHECK(strstr(diel_error(d), "a whole number is asked for") != NULL);
    CHECK(diel_clear_error(d) == DIEL_DONE);
    CHECK(diel_has_option(d, "solver") && !diel_has_option(d, "solver.none"));
    CHECK(diel_option_json(d, "solver", text, sizeof text) == DIEL_DONE);
    CHECK(!strcmp(text, "{\"dt\": 0.25}"));

    CHECK(d->abi == DIEL_ABI && d->bytes == (int32_t)sizeof *d && d->copies == 1);
    CHECK(!strcmp(d->module, "solver") && !strcmp(d->group, "all") && d->depth == 1);
    MPI_Comm_rank(comm, &rank);
    CHECK(rank == d->rank);
    mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
    CHECK(sum == d->ranks * (d->ranks + 1) / 2);

    for (i = 0; i < 6; i++) x[i] = rank + 0.5 * i;
    value = diel_matrix(DIEL_FLOAT64, x, 2, 3);
    snprintf(tag, sizeof tag, "part/%d", rank);
    CHECK(diel_put_with(d, tag, &value, DIEL_STRIPED | DIEL_VISIBLE, -1) == DIEL_DONE);
    CHECK(diel_read(d, tag, &found, 5) == DIEL_DONE && found.owner != 0);
    CHECK(found.dtype == DIEL_FLOAT64 && found.ndim == 2 && found.shape[1] == 3);
    CHECK(!memcmp(found.data, x, sizeof x));
    CHECK(diel_free(d, &found) == DIEL_DONE && found.data == NULL);
    CHECK(diel_get_doubles(d, tag, x, 6, 5) == DIEL_FAILED); /* another shape */
    CHECK(strstr(diel_error(d), "(2, 3)") != NULL);
    diel_clear_error(d);
    memset(x, 0, sizeof x);
    CHECK(diel_get(d, tag, &value, 5) == DIEL_DONE && x[5] == rank + 2.5);
    CHECK(diel_get(d, tag, &value, 0) == DIEL_LATE);

    snprintf(tag, sizeof tag, "words/%d/left", rank);
    CHECK(diel_put_text(d, tag, "hello") == DIEL_DONE);
    snprintf(tag, sizeof tag, "words/%d/*", rank);
    CHECK(diel_count(d, tag, &count) == DIEL_DONE && count == 1);
    CHECK(diel_claim(d, tag, &found, &claim, 5, 0) == DIEL_DONE && found.dtype == DIEL_TEXT);
    CHECK(!strcmp((char *)found.data, "hello") && found.bytes == 5);
    CHECK(diel_count(d, tag, &count) == DIEL_DONE && count == 0);
    CHECK(diel_give_back(d, claim) == DIEL_DONE);
    diel_free(d, &found);
    value = diel_vector(DIEL_TEXT, text, sizeof text);
    CHECK(diel_get(d, tag, &value, 5) == DIEL_DONE && !memcmp(text, "hello", 5));
    CHECK(value.shape[0] == 5 && diel_matched_tag(d, text, sizeof text) == DIEL_DONE);
    CHECK(strstr(text, "/left") != NULL);

    CHECK(diel_increment(d, "sum", 1, NULL) == DIEL_DONE && diel_flush(d) == DIEL_DONE);
    if (rank == 0) {
        while (diel_read(d, "sum", &found, 5) == DIEL_DONE && *(int64_t *)found.data < d->ranks)
            diel_free(d, &found);
        CHECK(found.dtype == DIEL_INT64 && found.ndim == 0);
        CHECK(diel_put_int(d, "from C", 42) == DIEL_DONE && diel_get(d, "table", &found, 9) == 0);
        CHECK(found.dtype == DIEL_JSON && !strcmp((char *)found.data, "{\"a\": [1, null]}"));
        CHECK(diel_get(d, "odd", &found, 9) == DIEL_FAILED && strstr(diel_error(d), "fractions"));
        diel_clear_error(d);
    }
    CHECK(diel_must_stop(d) == DIEL_GO_ON && diel_time_left(d) < 0);
    return diel_log(d, DIEL_INFO, "all of it");
}
"""

PEER = """
from fractions import Fraction

def run(ctx):
    assert ctx.tuples.tget("from C") == 42
    ctx.tuples.tput("table", {"a": [1, None]})
    ctx.tuples.tput("odd", Fraction(1, 3))
"""

FILE = """
[tuple_space]
servers = 2

[[module]]
name = "solver"
library = "./solver.so:run"
processes = {ranks}
options.steps = 12
options.on = true
options.names = ["a", "b"]
options.list = [1, 2, 2.5]
options.solver.dt = 0.25

[[module]]
name = "peer"
function = "./peer.py:run"

[[group]]
name = "all"
modules = ["solver", "peer"]
"""


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_the_calls_of_one_module(tmp_path: Path, language: str) -> None:
    source = tmp_path / f"solver.{language}"
    source.write_text(BASICS)
    if language == "c":
        compile_library(source, compiler="mpicc")
    else:
        compile_library(source, compiler="mpicxx", flags=(*STRICT_CPP, "-Wno-cast-function-type"))
    ranks = {"c": 2, "cpp": 4}[language]
    file = workflow(tmp_path, FILE.format(ranks=ranks), peer=PEER)
    done = diel("run", file, cwd=tmp_path)
    assert done.status == 0, done.output
    assert records_of(tmp_path, "GroupFinished")


COUPLED = r"""
#include <diel.h>
#include <stdlib.h>

#define CHECK(what) if (!(what)) return diel_logf(d, DIEL_ERROR, "line %d: %s", __LINE__, #what), 1

int run(diel *d) {
    double field[4][10], theirs[8], x[3] = {1, 2, 3};
    int64_t strides[2] = {10, 1}, start[2], step = -1;
    int32_t copies = 0, ranks = 0;
    int i, j, at;
    char text[64];
    diel_boundary wall, back;
    diel_array value, found;
    diel_address source;

    memset(&found, 0, sizeof found);
    CHECK(diel_peers(d, "peer", &copies, &ranks) == DIEL_DONE && copies == 1 && ranks == 1);
    value = diel_vector(DIEL_FLOAT64, x, 3);
    CHECK(diel_send(d, "peer", 0, 0, "numbers", &value) == DIEL_DONE);
    x[0] = 9;
    CHECK(diel_move(d, "peer", 0, 0, NULL, &value, 20) == DIEL_DONE);
    CHECK(diel_recv_doubles(d, "peer", 0, 0, "back", x, 3, 20) == DIEL_DONE && x[1] == 20);
    CHECK(diel_recv(d, NULL, 0, 0, "words", &found, &source, 20) == DIEL_DONE);
    CHECK(found.dtype == DIEL_TEXT && !strcmp((char *)found.data, "well done"));
    CHECK(!strcmp(source.module, "peer") && source.copy == 0 && source.rank == 0);
    CHECK(diel_recv(d, "peer", 0, 0, "words", &found, NULL, 0) == DIEL_LATE);
    CHECK(diel_send(d, "pear", 0, 0, NULL, &value) == DIEL_FAILED);
    CHECK(strstr(diel_error(d), "did you mean \"peer\"?") != NULL);
    diel_clear_error(d);

    CHECK(diel_boundary_open(d, "wall", &wall) == DIEL_DONE && wall.owned == 1 && wall.read == 0);
    CHECK(diel_boundary_open(d, "back", &back) == DIEL_DONE && back.owned == 0 && back.read == 1);
    CHECK(diel_section(d, &wall, DIEL_OWNED, 0, &found, start) == DIEL_DONE);
    CHECK(found.shape[0] == 4 && found.shape[1] == 1 && start[0] == 4 * d->rank && start[1] == 0);
    CHECK(diel_bind(d, &wall, DIEL_OWNED, 0, &field[0][9], strides) == DIEL_DONE);
    CHECK(diel_bind(d, &back, DIEL_READS, 0, theirs, NULL) == DIEL_DONE);
    CHECK(diel_bind(d, &back, DIEL_READS, 1, theirs, NULL) == DIEL_FAILED);
    diel_clear_error(d);
    for (at = 0; at < 3; at++) {
        for (i = 0; i < 4; i++)
            for (j = 0; j < 10; j++) field[i][j] = 100 * at + 10 * (4 * d->rank + i) + j;
        CHECK(diel_exchange(d, &wall, 20) == DIEL_DONE);
        CHECK(diel_pull(d, &back, 20, &step) == DIEL_DONE && step == at);
        for (i = 0; i < 8; i++) CHECK(theirs[i] == 2 * (100 * at + 10 * i + 9));
    }
    value = diel_vector(DIEL_FLOAT64, theirs, 8);
    CHECK(diel_restore(d, "theirs", &found) == DIEL_ABSENT);
    CHECK(diel_save(d, "theirs", &value) == DIEL_DONE);
    value = diel_vector(DIEL_TEXT, text, (int64_t)snprintf(text, sizeof text, "rank %d", d->rank));
    CHECK(diel_save(d, "name", &value) == DIEL_DONE && diel_checkpoint(d) == DIEL_DONE);
    CHECK(diel_progress(d, 3, 3, "steps") == DIEL_DONE);
    return diel_result_double(d, "last", theirs[7]);
}
"""

COUPLED_PEER = """
import numpy as np

def run(ctx):
    for rank in range(2):
        x = ctx.recv(("solver", 0, rank), tag="numbers")
        assert x.tolist() == [1, 2, 3]
        assert ctx.recv(("solver", 0, rank)).tolist() == [9, 2, 3]
        ctx.send(10 * x, ("solver", 0, rank), tag="back")
        ctx.send("well done", ("solver", 0, rank), tag="words")
    wall, back = ctx.boundary("wall"), ctx.boundary("back")
    for step in range(3):
        wall.exchange()
        back.owned[0][...] = 2 * wall.read[0][:, 0]
        back.push()
"""

COUPLED_FILE = """
[[module]]
name = "solver"
library = "./solver.so:run"
processes = 2

[[module]]
name = "peer"
function = "./peer.py:run"

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

[[group]]
name = "all"
modules = ["solver", "peer"]
"""


def test_messages_boundaries_and_states(tmp_path: Path) -> None:
    source = tmp_path / "solver.c"
    source.write_text(COUPLED)
    compile_library(source)
    done = diel("run", workflow(tmp_path, COUPLED_FILE, peer=COUPLED_PEER), cwd=tmp_path)
    assert done.status == 0, done.output
    ended = records_of(tmp_path, "CopyFinished", module="solver")
    assert [record["returned"] for record in ended] == [{"last": 2 * (200 + 70 + 9)}]


EXCHANGED = r"""
#include <mpi.h>
#include <diel.h>
#include <unistd.h>

#define CHECK(what) if (!(what)) return diel_logf(d, DIEL_ERROR, "line %d: %s", __LINE__, #what), 1

int run(diel *d) {
    double field[8][10], theirs[16];
    int64_t strides[2] = {10, 1};
    int is_left = !strcmp(d->module, "left"), i, at, status = DIEL_LATE, late = 0;
    diel_boundary mine, other, first;

    CHECK(diel_boundary_open(d, is_left ? "from_left" : "from_right", &mine) == DIEL_DONE);
    CHECK(diel_boundary_open(d, is_left ? "from_right" : "from_left", &other) == DIEL_DONE);
    CHECK(diel_bind(d, &mine, DIEL_OWNED, 0, &field[0][3], strides) == DIEL_DONE);
    CHECK(diel_bind(d, &other, DIEL_READS, 0, theirs, NULL) == DIEL_DONE);
    for (at = 0; at < 50; at++) {
        for (i = 0; i < 8; i++) field[i][3] = 1000 * at + 100 * is_left + 8 * d->rank + i;
        CHECK(diel_exchange(d, &mine, 30) == DIEL_DONE);
        CHECK(diel_exchange(d, &other, 30) == DIEL_DONE);
        for (i = 0; i < 16; i++) CHECK(theirs[i] == 1000 * at + 100 * !is_left + i);
    }
    CHECK(diel_push(d, &mine, 1) == DIEL_FAILED);
    CHECK(strstr(diel_error(d), "exchange it in C") != NULL);
    diel_clear_error(d);
    CHECK(diel_boundary_open(d, "both", &first) == DIEL_DONE);
    if (!is_left) usleep(700000);
    while (status == DIEL_LATE) late += (status = diel_exchange(d, &first, 0.2)) == DIEL_LATE;
    CHECK(status == DIEL_DONE && (!is_left || late > 0));
    if (diel_has_option(d, "leaves")) return 5;
    status = diel_exchange(d, &first, -1);
    return diel_has_option(d, "is_left") ? (status == DIEL_STOPPED ? 0 : 1) : status;
}
"""

EXCHANGED_FILE = """
[[module]]
name = "left"
library = "./both.so:run"
processes = 2
options.is_left = true

[[module]]
name = "right"
library = "./both.so:run"
processes = 2
options = { leaves = true }

[[boundary]]
name = "from_left"
shape = [16, 1]
owners = [{ module = "left", split = 0 }]
readers = [{ module = "right" }]

[[boundary]]
name = "from_right"
shape = [16, 1]
owners = [{ module = "right", split = 0 }]
readers = [{ module = "left" }]

[[boundary]]
name = "both"
shape = [200, 300]
owners = [{ module = "left", section = [[0, 100], [0, 300]], split = 0 },
          { module = "right", section = [[100, 200], [0, 300]], split = 0 }]
readers = [{ module = "left" }, { module = "right" }]

[[group]]
name = "all"
modules = ["left", "right"]
"""


def test_libraries_with_mpi_exchange_boundaries_in_c(tmp_path: Path) -> None:
    """Whose partner has failed leaves its wait."""
    (tmp_path / "both.c").write_text(EXCHANGED)
    compile_library(tmp_path / "both.c", compiler="mpicc", flags=("-std=gnu99", "-Wall", "-Wextra"))
    done = diel("run", workflow(tmp_path, EXCHANGED_FILE), cwd=tmp_path)
    assert "line" not in done.output
    assert "module 'right' failed: ModuleFailed: ./both.so:run returned 5" in done.output
    assert done.status == 1, done.output


CRASHES = r"""
#include <diel.h>
#include <stdlib.h>

static double *grid;
double kernel(int i);
__attribute__((noinline)) double kernel(int i) { return grid[i] + 1; }

int run(diel *d) {
    char how[32] = "";
    volatile double x;
    diel_option_text(d, "how", how, sizeof how);
    if (!strcmp(how, "segfault")) x = kernel(5);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "exit")) exit(3);
    (void)x;
    return 0;
}
"""

CRASHES_FILE = """
[[module]]
name = "solver"
library = "./crash.so:run"
options.how = "{how}"

[[group]]
name = "all"
modules = ["solver"]
"""


@pytest.mark.sample
@pytest.mark.parametrize(
    ("how", "words", "frame"),
    [
        ("segfault", "Segmentation fault", r"\(kernel\+"),
        # The address behind a call that never returns may be of another part of the function.
        ("abort", "Aborted", r"\((run)?\+"),
        ("exit", r"exit\(3\) in a library", r"\((run)?\+"),
    ],
)
@pytest.mark.parametrize("optimised", ["-O0", "-O2"])
def test_a_crash_is_told_with_its_c_stack(
    tmp_path: Path, how: str, words: str, frame: str, optimised: str
) -> None:
    source = tmp_path / "crash.c"
    source.write_text(CRASHES)
    library = compile_library(source, flags=(*STRICT, optimised))
    done = diel("run", workflow(tmp_path, CRASHES_FILE.replace("{how}", how)), cwd=tmp_path)
    assert done.status not in (0, 2), done.output
    told = rf"module solver\.0 crashed: {words} at {re.escape(str(library))}{frame}"
    assert re.search(told, done.output), done.output
    assert "libffi" not in done.output


# What diel.h says where another mpi.h was included before it.
ANOTHER_MPI = """
extern const char diel_mpi_[64];
const char diel_mpi_[64] = "Open MPI 3.1";
"""
PLAIN = """
#include <diel.h>
int helper(void);
int run(diel *d) { return helper() + d->rank; }
"""
FAILS = """
#include <diel.h>
int run(diel *d) {
    double x;
    if (diel_has_option(d, "quiet")) return 7;
    if (diel_get_double(d, "number", &x, 0) != DIEL_LATE) return 1;
    return diel_put_text(d, "a//b", "lost");
}
int forgets(diel *d) {
    diel_put_text(d, "a//b", "lost");
    return 0;
}
"""
REFUSED_FILE = """
{modules}

[[group]]
name = "all"
modules = ["linked", "compiled", "unfinished", "fails", "quiet", "forgets"]
"""
REFUSED_MODULE = """
[[module]]
name = "{name}"
library = "{library}"
on_failure = "continue"
"""


def test_what_goes_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "mpi.c").write_text("int helper(void); int helper(void) { return 0; }")
    compile_library(tmp_path / "mpi.c", flags=("-Wl,-soname,libmpi.so.99",))
    (tmp_path / "mpi.so").rename(tmp_path / "libmpi.so.99")
    (tmp_path / "libmpi.so").symlink_to("libmpi.so.99")
    (tmp_path / "linked.c").write_text(PLAIN)
    found_by = (f"-L{tmp_path}", "-Wl,--no-as-needed", "-lmpi", f"-Wl,-rpath,{tmp_path}")
    compile_library(tmp_path / "linked.c", flags=found_by)
    (tmp_path / "unfinished.c").write_text(PLAIN)
    compile_library(tmp_path / "unfinished.c")
    (tmp_path / "compiled.c").write_text(PLAIN.replace("helper() +", "0 *") + ANOTHER_MPI)
    compile_library(tmp_path / "compiled.c")
    (tmp_path / "fails.c").write_text(FAILS)
    compile_library(tmp_path / "fails.c")
    libraries = {name: f"./{name}.so:run" for name in ("linked", "compiled", "unfinished", "fails")}
    libraries |= {"quiet": "./fails.so:run", "forgets": "./fails.so:forgets"}
    modules = "".join(
        REFUSED_MODULE.format(name=name, library=library) for name, library in libraries.items()
    ).replace('"quiet"\n', '"quiet"\noptions.quiet = true\n')
    done = diel("run", workflow(tmp_path, REFUSED_FILE.format(modules=modules)), cwd=tmp_path)
    reasons = {record["module"]: record["error"] for record in records_of(tmp_path, "CopyGivenUp")}
    assert set(reasons) == set(libraries), done.output
    assert "linked.so is linked with libmpi.so.99, and this process runs" in reasons["linked"]
    assert "compiled.so was compiled with Open MPI 3.1, and this" in reasons["compiled"]
    assert "unfinished.so:run cannot be loaded: " in reasons["unfinished"]
    assert "undefined symbol: helper" in reasons["unfinished"]
    assert reasons["quiet"] == "ModuleFailed: ./fails.so:run returned 7"
    for name in ("fails", "forgets"):
        assert reasons[name].startswith('TagError: "a//b": a field of a tag cannot be empty')
