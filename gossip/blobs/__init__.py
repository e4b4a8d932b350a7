"""Content-addressed bytes: chunks, manifests, downloads from several sources, snapshots and how neighbours attest
them."""
