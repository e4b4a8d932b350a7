"""Prometheus metrics: what events and readings become, and what Prometheus is to scrape."""
