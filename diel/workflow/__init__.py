"""From a TOML file to a validated workflow.

::

    load.py       reads a file and finds every problem in it at once
    model.py      what a valid file says: a Workflow and its tables
    module.py     what a [[module]] says
    group.py      what a [[group]] says
    tuple_space.py what [tuple_space] says
    boundary.py   what a [[boundary]] says, and boundary_checks.py what else has to be true of it
    contents.py   which keys of an entry say what it runs
    strict.py     what all tables have in common
    scalars.py    types of single values: names, counts
    sections.py   boxes of index ranges
    functions.py  where a module's function is, found without importing anything
    source.py     the file as TOML reads it
    references.py what entries say about each other
    programs.py   whether an executable can be started
    problems.py   pydantic's complaints as Problems: a path, plain words, a remedy
    wording.py    values and types in the words of a workflow file
    graph.py      cycles, orders and the heaviest antichain of the dependency graph
    size.py       how many MPI ranks a workflow needs
    drawing.py    a workflow as text, for Graphviz and for Mermaid
    tables.py     every table with its model; schema.py and reference.py document them from it
"""
