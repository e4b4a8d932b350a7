"""Grids of experiments: every combination of settings and seeds is a cell, which is run once and kept (`p2ptrain
sweep`)."""
