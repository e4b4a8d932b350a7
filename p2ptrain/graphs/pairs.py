"""What graphs of pairs have in common."""


def check_pairs_only(name: str, group: int) -> int:
    """Return the size of a pair. ValueError for any other."""
    if group != 2:
        raise ValueError(f"the graph {name} is made of pairs: set group to 2, not {group}")
    return group


def doublings(members: int) -> int:
    """Return how many hops 1, 2, 4, ... there are below the number of members; 1 at the least."""
    return max(1, (members - 1).bit_length())


def is_power_of_two(members: int) -> bool:
    """Return whether it is 1, 2, 4, ..."""
    return members & (members - 1) == 0
