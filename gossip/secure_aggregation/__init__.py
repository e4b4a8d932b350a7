"""The sum of a group's vectors, of which no member learns another's: the state machine, and the task that performs
it."""
