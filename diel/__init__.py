"""A workflow executive with a tuple space, on MPI.

Importing this package imports neither MPI nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diel.coupling.acceleration import IQNILS as IQNILS
    from diel.coupling.acceleration import Aitken as Aitken
    from diel.coupling.acceleration import ConstantRelaxation as ConstantRelaxation
    from diel.coupling.address import Address as Address
    from diel.coupling.mapped_field import MappedField as MappedField
    from diel.coupling.mapping import mapping_weights as mapping_weights
    from diel.embedding import Executive as Executive
    from diel.executive.batch_scripts import batch_job as batch_job
    from diel.loading.context import Context as Context
    from diel.loading.functions import import_function as import_function
    from diel.loading.functions import load_plugin as load_plugin
    from diel.loading.process_state import restoring as restoring
    from diel.loading.reporter import Reporter as Reporter
    from diel.loading.reporter import ResultsTable as ResultsTable
    from diel.loading.trial_log import TrialLog as TrialLog
    from diel.opened_run import Run as Run
    from diel.opened_run import open_run as open_run
    from diel.plugins import installed_plugins as installed_plugins
    from diel.processes import end_with_parent as end_with_parent
    from diel.processes import start_helper as start_helper
    from diel.run.directory import repeat_command as repeat_command
    from diel.run.files import JsonLinesFile as JsonLinesFile
    from diel.run.files import file_opener as file_opener
    from diel.run.files import open_regular as open_regular
    from diel.run.files import part_of as part_of
    from diel.run.files import read_json as read_json
    from diel.run.files import replace_file as replace_file
    from diel.run.files import replacing as replacing
    from diel.run.files import whole_lines as whole_lines
    from diel.run.json_values import as_integer as as_integer
    from diel.run.json_values import as_number as as_number
    from diel.run.json_values import parse_json as parse_json
    from diel.sweeping import sweep as sweep
    from diel.text import describe_error as describe_error
    from diel.text import describe_traceback as describe_traceback
    from diel.text import duration_s as duration_s
    from diel.text import format_duration as format_duration
    from diel.text import format_value as format_value
    from diel.tuples.tags import ANY as ANY
    from diel.workflow.annotations import OneOf as OneOf
    from diel.workflow.functions import locate_function as locate_function
    from diel.workflow.load import load_workflow as load_workflow
    from diel.workflow.programs import child_environment as child_environment

__version__ = "0.1.0.dev0"

# Module -> the public names that it defines; imported on first use.
_PUBLIC = {
    "coupling.acceleration": "Aitken ConstantRelaxation IQNILS",
    "coupling.address": "Address",
    "coupling.mapped_field": "MappedField",
    "coupling.mapping": "mapping_weights",
    "embedding": "Executive",
    "executive.batch_scripts": "batch_job",
    "loading.context": "Context",
    "loading.functions": "import_function load_plugin",
    "loading.process_state": "restoring",
    "loading.reporter": "Reporter ResultsTable",
    "loading.trial_log": "TrialLog",
    "opened_run": "Run open_run",
    "plugins": "installed_plugins",
    "processes": "end_with_parent start_helper",
    "run.directory": "repeat_command",
    "run.files": (
        "JsonLinesFile file_opener open_regular part_of read_json replace_file replacing "
        "whole_lines"
    ),
    "run.json_values": "as_integer as_number parse_json",
    "sweeping": "sweep",
    "text": "describe_error describe_traceback duration_s format_duration format_value",
    "tuples.tags": "ANY",
    "workflow.annotations": "OneOf",
    "workflow.functions": "locate_function",
    "workflow.load": "load_workflow",
    "workflow.programs": "child_environment",
}
_MODULE_OF = {name: f"diel.{module}" for module, names in _PUBLIC.items() for name in names.split()}

# ANY, Address, sweep: constants, classes, functions.
__all__ = sorted(
    [*_MODULE_OF, "__version__"],
    key=lambda name: (not name.isupper(), name[0].islower(), name),
)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'diel' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
