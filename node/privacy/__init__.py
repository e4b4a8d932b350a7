"""What a node's data have told: a ledger that is written before a release, and a budget that is enforced by it."""
