"""``diel schema``: what a workflow file may say, for editors and for readers."""

from __future__ import annotations

import argparse
import json


def schema(options: argparse.Namespace) -> int:
    """Print the schema or the page; return the exit code."""
    if options.format == "json":
        from diel.workflow.schema import workflow_schema

        print(json.dumps(workflow_schema(), indent=2, ensure_ascii=False))
    else:
        from diel.workflow.schema import reference

        print(reference(), end="")
    return 0
