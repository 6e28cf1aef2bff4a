"""The running part of a sweep: who tries what, and what is written down.

::

    leases, bitmap      what is to be given out, is out, or is recorded       pure
    standing            the best rows, and which columns are all the same     pure
    ordering            results told in the order of their trials             pure
    messages            what a master and its trainers say to each other
    ledger, table       a line for each trial: trials.jsonl, results.csv
    conducting          the master's loop
    serving, trying     a trainer's loop, and one trial in it
    isolation           a trial in a process of its own, that can be ended
    export              what was recorded, for other programs
"""
