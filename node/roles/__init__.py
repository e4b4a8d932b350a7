"""What a node may be, each a `main`: trainer, observer, bootstrap node; and the byzantine one of experiments."""
