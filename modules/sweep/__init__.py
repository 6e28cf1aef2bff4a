"""The running part of a sweep: who runs which trial, and what is written down.

::

    messages                between the master and its trainers, through the tuple space
    leases                  which trials are to be given out, are out, or are recorded: pure
    ledger                  trials.jsonl: a line for each trial
    steering                what is asked of a sweep while it runs, and the answers
    in_flight               which trials each rank is running, for whoever finds it dead

    master_loop             the master: records outcomes, does what is asked of the sweep
    dispatcher              gives out leases: which trials are next, and who gets them
    warm_start              what is taken over from an earlier sweep
    decisions               what becomes of what is asked: pure
    results                 from outcomes to ledger records to rows, the best rows
    output                  results.csv, the report, what is shown
    export                  what was recorded, for other programs

    shared                  in what a run takes part: a sweep of its own, shared, or of another run
    joining                 files between a master and workers of other runs
    joined_workers          these workers, for the master
    joined_loop             a worker
    election                which of several masters leads

    worker_loop             a trainer: claims leases, runs their trials
    runners                 where it runs: here, or on all ranks of a copy
    subprocess_runner       or in a process of its own, which may die
"""
