"""Lists in the documentation name what their tables in the code have, no more and no less."""

from __future__ import annotations

import inspect
import re

import pytest
from support import ROOT

from diel.cli.completion import levels
from diel.cli.main import build_parser
from diel.executive.batch_scripts import LAUNCHERS, SCHEDULERS
from diel.workflow.annotations import FieldType
from dnn import catalogue
from modules.hyperparameters import Hyperparameters, defaults
from modules.metrics import METRICS
from modules.parallel import SCHEMES
from modules.strategies import RULES, STRATEGIES
from modules.sweep.output import FORMATS
from modules.trainer import Options

SWEEPS = (ROOT / "docs" / "sweeps.md").read_text()
CLUSTERS = (ROOT / "docs" / "clusters.md").read_text()
OPTIMIZERS = catalogue("optimizer")


def rows(page: str, first: str) -> list[list[str]]:
    """Return the cells of each row of the table whose head begins so."""
    table = page.partition(f"\n{first}")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines()[1:] if not line.startswith("|--")]
    return [[cell.strip() for cell in re.split(r"(?<= )\|(?= )", line[1:-1])] for line in lines]


def named(text: str) -> list[str]:
    """Return the words in backticks, without quotation marks."""
    return [word.strip('"') for word in re.findall(r"`([^`]+)`", text)]


def choices(name: str) -> set[str]:
    return {*FieldType.of(Hyperparameters.model_fields[name]).choices}


KNOWN = {
    name: cells
    for cells in rows(SWEEPS.partition("### What our trainer knows")[2], "| | | if left out |")
    for name in named(cells[0])
}


@pytest.mark.parametrize("name", ["activation", "cell", "loss", "optimizer", "schedule"])
def test_the_page_names_all_choices_of_a_hyperparameter(name: str) -> None:
    assert {*named(KNOWN[name][1])} == choices(name)


def test_the_page_has_every_hyperparameter() -> None:
    assert KNOWN.keys() == Hyperparameters.model_fields.keys() - {"layers"}


@pytest.mark.parametrize(
    "name",
    [name for name in KNOWN if any(name in taken for taken in defaults().values())],
)
def test_the_page_says_which_optimizers_have_a_parameter_and_its_default(name: str) -> None:
    whose = {kind: taken[name] for kind, taken in defaults().items() if name in taken}
    if name != "learning_rate":
        assert whose.keys() == {*named(KNOWN[name][1])} & OPTIMIZERS.keys()
    text = KNOWN[name][2].replace("false", "0").replace("true", "1")
    said = {float(number) for number in re.findall(r"(?<![\w`])\d+(?:\.\d+)?(?:e-\d+)?", text)}
    found = {float(value) for value in whose.values()}
    assert found == said or (found < said and KNOWN[name][0].count("`") > 2)


def test_the_page_names_all_data_sets_and_what_reading_takes() -> None:
    sets = catalogue("data set")
    bundled = named(SWEEPS.partition("### Data of your own\n\n")[2].partition(" come with")[0])
    table = rows(SWEEPS, "| `dataset` | what is at")
    read = [name for cells in table for name in named(cells[0])]
    assert [*bundled] == [name for name, known in sets.items() if known.is_bundled]
    assert sorted([*bundled, *read]) == sorted(sets)
    changes = re.search(r"List (`flip`.*?) in the order", SWEEPS, re.DOTALL)
    assert changes is not None
    assert {*named(changes[1])} == catalogue("augmentation").keys()


def test_the_page_names_all_precisions_and_schemes() -> None:
    (cells,) = [row for row in rows(SWEEPS, "| option | | if left out") if "precision" in row[0]]
    listed = cells[1].partition(", as ")[0]
    assert {*named(listed)} == {*FieldType.of(Options.model_fields["precision"]).choices}
    schemes = rows(SWEEPS, "| `training.parallel` |")
    words = {word for row in schemes for word in re.findall(r"\"(\w+)\"", row[0])}
    assert words | {"mesh"} == SCHEMES.keys()


def test_the_page_names_all_strategies_rules_and_metrics() -> None:
    table = rows(SWEEPS.partition("## Strategies\n")[2], "| | |")
    first = [named(cells[0])[0] for cells in table]
    optuna = [name.removeprefix("optuna:") for name in STRATEGIES if ":" in name]
    (samplers,) = [cells[1] for cells in table if "optuna" in cells[0]]
    assert {*named(samplers)} - {'pip install "diel[optuna]'} == {*optuna}
    own = {name for name in STRATEGIES if ":" not in name}
    assert {*first} == own | {"optuna:tpe", "./file.py:Class"}
    rules = SWEEPS.partition("### Stopping trials early")[2].partition("\n### ")[0]
    assert RULES.keys() <= {*re.findall(r"\"(\w+)\"", rules)}
    known = re.search(r"The\s+better direction is known for (.*?);", SWEEPS, re.DOTALL)
    assert known is not None
    assert {*named(known[1])} == METRICS.keys()


@pytest.mark.parametrize("page", ["README.md", "docs/clusters.md", "docs/gui.md"])
def test_pages_that_list_the_batch_schedulers_have_all(page: str) -> None:
    text = " ".join((ROOT / page).read_text().replace("PBS Pro", "PBS").split())
    *others, last = (scheduler.name for scheduler in SCHEDULERS.values())
    found = re.findall(rf"{', '.join(others)},? (?:and|or) {last}", text)
    assert 0 < len(found) == text.count(", ".join(others[:2]))


def test_the_tables_on_clusters_have_every_scheduler() -> None:
    names = [scheduler.name for scheduler in SCHEDULERS.values()]
    table = rows(CLUSTERS, "| | `--scheduler` | submit |")
    assert [cells[0].split(" ")[0] for cells in table] == names
    assert [named(cells[1])[0] for cells in table] == [*SCHEDULERS]
    for cells, scheduler in zip(table, SCHEDULERS.values(), strict=True):
        assert named(cells[2])[0].startswith(" ".join(scheduler.submit_stdin))
    assert [cells[0] for cells in rows(CLUSTERS, "| | twenty jobs |")] == names
    assert {cells[0] for cells in rows(CLUSTERS, "| within | which MPI |")} == {*names}
    listed = re.search(r"`--launcher (.*?), of `diel run`", CLUSTERS)
    assert listed is not None
    assert named(f"`{listed[1]}") == [*LAUNCHERS]


def test_the_page_of_dnn_names_all_optimizers_and_schedules() -> None:
    page = (ROOT / "docs" / "dnn.md").read_text()
    optimizers = page.partition("These optimizers come with dnn: ")[2].partition(".\n")[0]
    classes = {each.__name__ for each in OPTIMIZERS.values()}
    assert {*named(optimizers.partition(". ")[0])} == classes
    (schedules,) = re.findall(r"^(`.*`) come with dnn\.$", page, re.MULTILINE)
    classes = {each.__name__ for each in catalogue("schedule").values()}
    assert {*named(schedules)} == classes - {"Constant"}
    (files,) = re.findall(r"^\| `download\(name, folder\)` \| (.*?), checked", page, re.MULTILINE)
    assert {*named(files)} == catalogue("download").keys()


def test_the_page_of_dnn_names_all_losses_with_their_options_and_all_metrics() -> None:
    page = (ROOT / "docs" / "dnn.md").read_text()
    losses = {named(cells[0])[0]: named(cells[1])[0] for cells in rows(page, "| loss | class")}
    for name, kind in catalogue("loss").items():
        options = inspect.signature(kind).parameters
        known, _, arguments = losses.pop(name).rstrip(")").partition("(")
        assert known == kind.__name__
        assert re.findall(r"\b[a-z_]+\b(?=[,=]|$)", arguments) == [*options]
    assert not losses
    for task, always, on_request in rows(page, "| task | metrics |"):
        of = catalogue("metric").items()
        assert {*named(on_request)} == {name for name, each in of if task in each.on_request}
        said = {*named(always)} - {"quantile", "pinball_0.1"}
        assert said == {name for name, each in of if each.task == task}


def test_the_help_of_a_sweep_names_all_formats_of_its_export() -> None:
    levels_of = {level.words: level for level in levels(build_parser())}
    (export,) = [each for each in levels_of["sweep",].options if "--export" in each.names]
    assert all(name in export.help for name in FORMATS)
