"""`p2ptrain top`: a node, or a whole run, in a terminal.

`source.py` looks (`remote.py` asks nodes), `screen.py` draws, `keys.py` listens.
"""
