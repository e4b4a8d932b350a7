"""What all tests share: hypothesis draws the same examples in every run, so that a failure is a change's."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
