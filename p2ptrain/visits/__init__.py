"""Learning with visitors: devices that take a model, train some steps, and leave one difference (FedBuff, 2106.06639).

`model_versions.py` has the models that visitors start from, as bytes. `visitor_mean.py` makes one bounded difference
of those that came. A visitor is nobody's neighbour, and whatever it says is a claim.
"""
