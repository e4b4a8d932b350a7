"""What a node reports: its event log, the lines for people, its progress, the summary at the end."""
