"""Every file in ``workflows/`` runs, so that the examples stay true."""

from __future__ import annotations

import faulthandler
import gzip
import importlib.util
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support import (
    DATA,
    WORKFLOWS,
    as_one_workflow,
    check_end,
    diel,
    mpirun_diel,
    records_of,
    results,
    run_dir,
)

# Run by a test that looks at their results too, here or where it is named.
OWN_TEST = {
    *(
        "mnist_mlp",
        "mnist_lenet",
        "cifar_resnet",
        "digits_grid",
        "heart_search",
        "hello",
    ),
    "penguins",
    "pipeline",  # test_trace_runs
    "refine",  # test_when_runs
    *("mnist_allreduce", "mnist_server", "mnist_asgd", "mnist_local_sgd", "mnist_pipeline"),
    "mnist_mesh",
    "mnist_large_batch",
    "ensemble",  # test_executable_runs
    "digits_gpu",  # test_gpu_runs
    "in_time",  # test_limits
    "heat_coupled",  # test_heat_coupled
    "elastic_tube",  # test_elastic_tube
    "two_masses",  # test_two_masses
    *("greetings", "scaling"),  # test_moving_here
}
SWEEPS = (
    *("cancer_grid", "diabetes_regression", "digits_brackets", "digits_convolution"),
    *("digits_auto", "digits_fine_tuning", "digits_front", "digits_layers", "digits_patience"),
    *("digits_population", "digits_constraints", "digits_ranks", "digits_ranks_by_size"),
    *("digits_tensorboard", "heart_grid", "image_labels", "tickets"),
)
TRIALS = {"digits_brackets": 48, "digits_front": 32, "digits_population": 32}
"""Of three brackets, and of two generations; of other searches at most 24."""
FILES = [
    file
    for file in sorted(WORKFLOWS.glob("*.toml"))
    if file.stem not in OWN_TEST and file.stem not in SWEEPS
]
HEART = DATA / "heart" / "processed.cleveland.data"


@pytest.mark.sample
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.usefixtures("once")
def test_workflow_file_runs(file: Path, tmp_path: Path) -> None:
    finished = diel("run", file, cwd=tmp_path)
    check_end(finished, tmp_path)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_files_of_sweeps_run(tmp_path: Path) -> None:
    """Every file as a group of one run: to start each would take twice as long.

    With one epoch and few trials: more of them show nothing else.
    """
    lacks = {
        "heart_grid": not HEART.exists(),
        "digits_tensorboard": importlib.util.find_spec("tensorboardX") is None,
    }
    parts = {}
    for stem in (stem for stem in SWEEPS if not lacks.get(stem)):
        text = shortened(f"{stem}.toml", tmp_path, epochs="1").read_text()
        head, begin, text = text.partition("[[module]]")
        said = re.sub(r"(?m)^#.*\n|^\n", "", head)
        assert said == f'[workflow]\nname = "{stem.replace("_", "-")}"\n'
        text = begin + text
        for trials in re.findall(r"(?m)^trials = (\d+)", text):
            few = min(int(trials), TRIALS.get(stem, 24))
            text = text.replace(f"\ntrials = {trials}", f"\ntrials = {few}")
        options = '"modules.master:run"\n\n[module.options]\n'
        parts[stem] = text.replace(options, f'{options}trainer = "trainer"\n')
    toml = as_one_workflow(parts)
    (tmp_path / "all.toml").write_text(toml)
    faulthandler.cancel_dump_traceback_later()  # the run has a limit of its own
    environment = {"DIEL_DATA": str(DATA)}
    line = ("run", "-n", 5, "all.toml")
    finished = diel(*line, cwd=tmp_path, environment=environment, timeout_s=400)
    check_end(finished, tmp_path)
    ended = {record["module"] for record in records_of(tmp_path, "CopyFinished")}
    assert ended == set(re.findall(r'\[\[module]]\nname = "(\w+)"', toml))
    tables = run_dir(tmp_path).glob("sweeps/*/trials.jsonl")
    assert len([*tables]) == len(parts)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_a_network_learns_mnist(tmp_path: Path) -> None:
    if not (DATA / "mnist").exists():
        pytest.skip(f"there is no {DATA / 'mnist'}; set DIEL_DATA")
    file = shortened("mnist_mlp.toml", tmp_path, epochs="2", threads="1")
    finished = diel("run", file, cwd=tmp_path, environment={"DIEL_DATA": str(DATA)})
    assert finished.status == 0, finished.output
    (row,) = results(tmp_path)
    assert float(row["accuracy"]) >= 0.97
    returned = [r["returned"] for r in records_of(tmp_path, "CopyFinished")]
    assert returned == [{name: pytest.approx(float(value)) for name, value in row.items()}]


def shortened(file: str, folder: Path, **options: str) -> Path:
    """Return a copy of a workflow file, and of the files beside it, with other options.

    Beside other tests one thread is best: two of them would wait busily for each other.
    """
    text = (WORKFLOWS / file).read_text()
    for name, value in options.items():
        text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
        if not count:
            text = text.replace("\nseed = 1\n", f"\nseed = 1\n{name} = {value}\n")
    others = shutil.ignore_patterns("*.toml", "__pycache__")
    shutil.copytree(WORKFLOWS, folder, ignore=others, dirs_exist_ok=True)
    (folder / file).write_text(text)
    return folder / file


def part_of_mnist(folder: Path, training: int, test: int) -> dict[str, str]:
    """Write the first images of MNIST, which load at once; return the environment that names them.

    Skips the test if there is no MNIST.
    """
    mnist = DATA / "mnist"
    if not mnist.exists():
        pytest.skip(f"there is no {mnist}; set DIEL_DATA")
    (folder / "mnist").mkdir()
    for part, count in (("train", training), ("t10k", test)):
        for kind, header, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
            name = f"{part}-{kind}-ubyte.gz"
            with gzip.open(mnist / name) as file:
                data = file.read(header + count * size)
            data = data[:4] + count.to_bytes(4, "big") + data[8:]
            (folder / "mnist" / name).write_bytes(gzip.compress(data, 1))
    return {"DIEL_DATA": str(folder)}


@pytest.mark.usefixtures("once")
def test_penguins_are_predicted_by_the_names_of_their_species(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    file = shortened("penguins.toml", tmp_path, trials="3")
    finished = diel("run", file, cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert max(float(row["accuracy"]) for row in results(tmp_path)) > 0.95
    new = tmp_path / "new.csv"
    new.write_text(
        "sex,island,flipper_length_mm,body_mass_g,bill_length_mm,bill_depth_mm,species\n"
        "male,Torgersen,181,3750,39.1,18.7,Adelie\nNA,Dotson,NA,5200,48,14.2,Gentoo\n"
    )
    predicted = diel("predict", run_dir(tmp_path), new, cwd=tmp_path)
    assert predicted.status == 0, predicted.output
    assert [line.split(",")[1] for line in predicted.stdout.splitlines()[1:3]] == [
        "Adelie",
        "Gentoo",
    ]
    assert "accuracy 1, mcc 1, loss" in predicted.stdout + predicted.stderr
    assert "column 'island': a cell holds a category" in predicted.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_lenet_learns_digits(tmp_path: Path) -> None:
    environment = part_of_mnist(tmp_path, 2000, 1000)
    file = shortened("mnist_lenet.toml", tmp_path, images="1900", epochs="2", threads="1")
    finished = diel("run", file, cwd=tmp_path, environment=environment)
    assert finished.status == 0, finished.output
    (row,) = results(tmp_path)
    assert float(row["accuracy"]) > 0.8


ON_RANKS = ("mnist_allreduce", "mnist_server", "mnist_asgd", "mnist_local_sgd", "mnist_pipeline")
OF_SEVERAL = ("mnist_mesh", "mnist_large_batch")


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_ranks_train_one_network_together(tmp_path: Path) -> None:
    """Every file as a group of one run: to start each would take five times as long.

    Sums that are exchanged go round a ring, in place of what is measured to be the fastest.
    """
    environment = part_of_mnist(tmp_path, 1600, 1000)
    parts = []
    files = [*ON_RANKS, *OF_SEVERAL]
    for file in files:
        batch_size = {"mnist_large_batch": "250", "mnist_mesh": "100"}.get(file, "50")
        text = shortened(f"{file}.toml", tmp_path, images="1500", epochs="4").read_text()
        text = text[text.index("[[module]]") :]
        text = re.sub(r"^batch_size = .*", f"batch_size = {batch_size}", text, flags=re.MULTILINE)
        text = re.sub(r"^largest_batch = .*", "largest_batch = 500", text, flags=re.MULTILINE)
        text = text.replace('"mlp"', f'"{file}"').replace('name = "train"', f'name = "of_{file}"')
        before = f'depends = ["of_{files[len(parts) - 1]}"]\n' if parts else ""
        parts.append(text + before)
    (tmp_path / "all.toml").write_text("\n".join(parts))
    environment["DNN_ALLREDUCE"] = "ring"
    finished = diel("run", "all.toml", cwd=tmp_path, environment=environment, timeout_s=180)
    assert finished.status == 0, finished.output
    ended = records_of(tmp_path, "CopyFinished")
    found = {record["module"]: record["returned"]["accuracy"] for record in ended}
    assert set(found) == {*ON_RANKS, "units", "layers_and_units", "small", "large", "growing"}
    assert min(found.values()) > 0.7, found  # of an untrained network 0.1


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_resnet_takes_cifar(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    (tmp_path / "cifar10").mkdir()
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = generator.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / "cifar10" / name).write_bytes(records.tobytes())
    file = shortened(
        "cifar_resnet.toml", tmp_path, images="8", batch_size="8", epochs="1", threads="1"
    )
    finished = diel("run", file, cwd=tmp_path, environment={"DIEL_DATA": str(tmp_path)})
    assert finished.status == 0, finished.output
    (row,) = results(tmp_path)
    assert float(row["accuracy"]) in [right / 8 for right in range(9)]  # of 8 images
    environment = {"DIEL_DATA": str(tmp_path / "nowhere")}
    refused = diel("check", file, cwd=tmp_path, environment=environment)
    assert refused.status == 2
    assert "dnn.download('cifar10'" in refused.output


def test_hello_exchanges_tuples(tmp_path: Path) -> None:
    finished = diel("run", WORKFLOWS / "hello.toml", cwd=tmp_path)
    check_end(finished, tmp_path)
    assert "copy 1 heard 'Hello, answerer!'" in finished.stdout
    log = run_dir(tmp_path) / "logs" / "answerer.0.0.log"
    assert "received 'Hello, answerer!'" in log.read_text()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_digits_sweep_is_good_and_the_same_for_any_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    tables = []
    file = shortened("digits_grid.toml", tmp_path, epochs="3")
    for name, start, trainers in [
        ("one", partial(mpirun_diel, 4, "run", file), [1]),
        ("three", partial(diel, "run", "-n", 6, file), [2, 3]),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        finished = start(cwd=folder)
        check_end(finished, folder)
        assert "best of 36 by highest accuracy" in finished.stdout
        report = run_dir(folder) / "report.html"
        assert f"report: {report}" in finished.stdout
        assert "All 36 trials with a result are shown" in report.read_text()
        rows = results(folder)
        assert sorted(int(row["trial"]) for row in rows) == list(range(36))
        assert max(float(row["accuracy"]) for row in rows) >= 0.95
        used = {row["trainer"] for row in rows}
        # A trainer that starts late, where ranks share cores, may find that all has been done.
        assert len(used) in trainers
        varying = {"training_time_s", "trainer"}
        tables.append(
            sorted(tuple((k, v) for k, v in row.items() if k not in varying) for row in rows)
        )
    # As text, every digit of it: bit for bit.
    assert tables[0] == tables[1]


@pytest.mark.thorough
def test_the_number_of_threads_comes_from_the_file(tmp_path: Path) -> None:
    """Even if the environment says otherwise, and without a warning from the verification."""
    environment = {"OMP_NUM_THREADS": "7", "OPENBLAS_NUM_THREADS": "7"}
    file = tmp_path / "w.toml"
    (tmp_path / "m.py").write_text(
        "import numpy as np\n"
        "from threadpoolctl import threadpool_info\n"
        "def run(ctx):\n"
        "    np.ones((50, 50)) @ np.ones((50, 50))\n"
        "    return [pool['num_threads'] for pool in threadpool_info()]\n"
    )
    file.write_text(
        '[[module]]\nname = "one"\nfunction = "./m.py:run"\n'
        '[[module]]\nname = "two"\nfunction = "./m.py:run"\nthreads = 2\n'
        '[[group]]\nname = "first"\nmodules = ["one"]\n'
        '[[group]]\nname = "second"\nmodules = ["two"]\ndepends = ["first"]\n'
        '[[group]]\nname = "third"\nmodules = ["one"]\ndepends = ["second"]\n'
    )
    for name, start in (("launched", diel), ("bare", partial(mpirun_diel, 3))):
        folder = tmp_path / name
        folder.mkdir()
        finished = start("run", file, cwd=folder, environment=environment)
        assert finished.status == 0, finished.output
        returned = [r["returned"] for r in records_of(folder, "CopyFinished")]
        assert all(returned)
        assert [set(threads) for threads in returned] == [{1}, {2}, {1}]
        assert not records_of(folder, "MessageLogged")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_the_heart_search_reports_the_honest_figure_first(tmp_path: Path) -> None:
    if not HEART.exists():
        pytest.skip(f"there is no {HEART}; set DIEL_DATA")
    file = shortened("heart_search.toml", tmp_path, trials="30", epochs="12")
    file.write_text(file.read_text().replace("inner_folds = 4", "inner_folds = 2"))
    finished = diel("run", file, cwd=tmp_path, environment={"DIEL_DATA": str(DATA)})
    check_end(finished, tmp_path)
    honest = re.search(r"accuracy, nested cross-validation .*: (0\.\d+)", finished.stdout)
    naive = re.search(r"best of 30 on the rows that chose it: (0\.\d+)", finished.stdout)
    assert honest is not None
    assert naive is not None
    assert honest.start() < naive.start()
    assert "\nhonest: 10 best of 12 by highest accuracy" in finished.stdout
    assert "\npapers: 10 best of 30 by highest accuracy" in finished.stdout
    assert 0.78 <= float(honest[1]) <= 0.88
    assert float(naive[1]) >= 0.93
    assert "luck alone can give 0." in finished.stdout
