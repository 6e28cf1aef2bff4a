"""Direct messages between the modules of a group, and boundaries and fields that they share.

::

    address       Address, and the Peers that a rank of a group can send to
    channel       one rank's messages: send, recv, move; values as memory to send, on GPUs too
    messages      the head of a message; messages that a rank has sent and that have reached it
    boundary      an array of which modules own and read sections
    streams       pushes with time stamps, and reading them at other times
    stamps        the time stamps that are kept, and interpolation between them
    mapping       weights between point sets that do not match
    mapped_field  values at the points of one module, mapped to those of another
    acceleration  the next values to try in an implicit coupling
"""
