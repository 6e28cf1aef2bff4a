"""The running part of a sweep: who tries what, and what is written down.

::

    leases, bitmap      what is to be given out, is out, or is recorded       pure
    standing            the best rows, and which columns are all the same     pure
    messages            what a master and its trainers say to each other
    ledger, table       a line for each trial: trials.jsonl, results.csv
    conducting          the master's loop
    recording           what is behind: from outcomes to records to rows
    showing, reporting  what people see: table, best rows, report, notes
    serving, trying     a trainer's loop, and one trial in it
    task                what a trainer does for each trial, and where:
    isolation, limits       in a process of its own, that can be ended
    under_way               what a rank is at, for whoever finds it dead
    together                on all ranks of a copy
    tabular             data for trainers of other frameworks
    preview, export     a sweep before it is run, and what it has recorded for other programs
"""
