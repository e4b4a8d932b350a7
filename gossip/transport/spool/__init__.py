"""A byte stream between two machines that share a folder and nothing else."""
