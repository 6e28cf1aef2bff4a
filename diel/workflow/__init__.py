"""From a TOML file to a validated workflow.

::

    load.py        reads a file and finds every problem in it at once
    source.py      the file as TOML reads it, and the line of each key
    model.py       what a valid file says: a Workflow and its tables
    module.py      what a [[module]] says
    boundary.py    what a [[boundary]] says, and what else has to be true of it
    fields.py      types of single values: names, counts; which keys say what an entry runs
    references.py  what entries say about each other: names, dependencies, groups in groups
    functions.py   where a module's function is, found without importing anything;
                   definitions.py what its file defines
    programs.py    placeholders in the words of an executable, and whether it can be started
    problems.py    pydantic's complaints as Problems: a path, plain words, a remedy
    annotations.py what a key accepts, in words, and an example of it
    graph.py       cycles, orders and the heaviest antichain of the dependency graph
    sections.py    boxes of index ranges
    drawing.py     a workflow as text, for Graphviz and for Mermaid
    document.py    the text of a file as something to edit; edits.py its tables and keys
    schema.py      the JSON Schema of a file, and the page that documents its keys
"""
