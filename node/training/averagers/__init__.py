"""How a node closes a round with others. `base.py` has the contract, `averager_registry.py` the members."""
