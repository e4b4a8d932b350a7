"""What a node tells: its event log, the report of each round, progress, the summary at the end."""
