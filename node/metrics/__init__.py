"""Prometheus metrics of a node, from its events and from readings at the scrape."""
