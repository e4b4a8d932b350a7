"""Bytes by content: chunks, manifests, downloads from several sources, snapshots and what others attest of them."""
