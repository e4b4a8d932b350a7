"""What touches this machine and belongs to no single part: run folders, signals, errors, streams, addresses."""
