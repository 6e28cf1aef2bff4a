"""Where copies run: decided before a run starts, or group by group, and all of it pure.

::

    planning.py       how many ranks and copies, which ranks serve, are there enough GPUs
    gpus.py           which rank has which GPUs
    assignment.py     which of the free ranks a copy takes
    preview.py        who would run where and when: the scheduler, without a run
"""
