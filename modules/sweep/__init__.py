"""The parts of a sweep that run: which rank runs which trial, and what is recorded.

::

    messages                between the master and its trainers, through the tuple space
    leases                  which trials are to be given out, are out, or are recorded: pure
    ledger                  trials.jsonl: a line for each trial
    steering                requests to a sweep while it runs, and the answers
    in_flight               which trials each rank is running, to be read if it dies

    master_loop             the master: records outcomes, decides on requests
    dispatcher              gives out leases: which trials are next, and which trainer gets them
    warm_start              results that are taken over from an earlier sweep
    decisions               what a request changes: pure
    results                 from outcomes to ledger records to rows, the best rows
    output                  results.csv, the report, progress
    export                  results for other programs

    shared                  which sweep a run takes part in: its own, a shared one, another run's
    joining                 files between a master and workers of other runs
    joined_workers          workers of other runs, for the master
    joined_loop             the loop of such a worker
    election                which of several masters leads

    worker_loop             a trainer: claims leases, runs their trials
    runners                 where a trial runs: in this process, or on all ranks of a copy
    subprocess_runner       or in a process of its own, which may die
"""
