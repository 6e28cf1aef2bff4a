"""Which ranks run which copies, with which GPUs; all of it pure.

::

    planning.py       how many ranks and copies, which ranks serve tuples, whether GPUs suffice
    gpus.py           which rank has which GPUs
    assignment.py     which of the free ranks a copy takes
    preview.py        which copies would run where and when: the scheduler, without a run
"""
