"""What all of gossip stands on: identities, errors, bounds, the wire's formats, rate limits. No trio here."""
