"""DP-SGD: what is protected is each example of the shard, in every step."""

from p2ptrain.privacy.clipped_gaussian import ClippedGaussian


class ExampleLevel(ClippedGaussian):
    """Abadi et al., 1607.00133: each example's gradient over all trained parameters together is clipped. The sum is
    divided by the number of examples that is expected, and never by the number drawn."""

    name = "example"
    unit = "example"
