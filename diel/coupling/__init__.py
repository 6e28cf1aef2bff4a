"""Modules of a group that speak to each other directly.

::

    address.py   who can be spoken to: Address, and the Roster of a group
    account.py   how many messages a rank has sent and received
    channel.py   one rank's messages: send, recv, move
    sending.py   the handle that send returns
    inbox.py     what has come, sorted by the copy that it is for
    outbox.py    what has yet to be received
    heads.py     what a message says of itself
    values.py    values as memory to send, arrays as memory to receive into
    devices.py   arrays in the memory of a GPU
    boundary.py  an array of which modules own and read sections
"""
