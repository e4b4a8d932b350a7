"""`p2ptrain top`: a node, or a whole run, in a terminal.

`source.py` reads logs and asks nodes (`remote.py`), `screen.py` draws, `keys.py` reads keys.
"""
