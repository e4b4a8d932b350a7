"""Reading what a run has left on disk: checkpoints, and the models in them. Nothing here writes.

`files` reads one checkpoint and tells whether it is whole, `models` finds those of a run that belong together and makes
a `state_dict` of them. The runtime reads through the same functions (`node/training/checkpoint.py`), so there is one
reader.
"""
