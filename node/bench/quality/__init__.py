"""A study of learning rules that are tuned alike, on texts that are not reported on, with predictions made first."""
