"""The detectors, one a file; each is river's, with settings for one value a round."""
