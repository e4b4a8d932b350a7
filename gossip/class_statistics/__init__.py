"""Class statistics of members' data, for newcomers: an opaque payload, signed, that a neighbour asks for.

`statement.py` seals and checks, `ask_task.py` asks on trio.
"""
