"""The roles of a node: trainer, observer, bootstrap node; and the Byzantine node of experiments."""
