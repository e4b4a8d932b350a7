"""Private swarms on the command line: founding one, inviting, joining, changing. The formats: docs/private-swarms.md.

No torch here, but in `founding` (a swarm's recipe is checked as a trainer checks it) and where a trainer applies a
newer manifest (`applying`).
"""
