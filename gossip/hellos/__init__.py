"""Hellos: how two connected members become neighbours, bridges between their regions, or part, and what each tells.

What decides is pure; `hello_task.py` says them, on trio.
"""
