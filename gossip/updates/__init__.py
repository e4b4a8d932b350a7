"""From a node's update to its neighbours' models: hash chains, the mesh of neighbours, rounds.

What decides is pure; `*_task.py` beside it performs, on trio.
"""
