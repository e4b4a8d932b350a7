"""What runs and sweeps left on disk, as one HTML file that needs nothing else (`p2ptrain report`)."""
