"""Reduce-scatter and all-gather among a named group of members: the state machine, and the task that performs it."""
