"""A race: other people's ways to train together and ours, on links of a given speed, to the same held-out loss."""
