"""How much privacy releases have spent: by Renyi divergences while a node trains, by privacy loss distributions in a
report."""

from p2ptrain.privacy.accounting.renyi import ORDERS, RenyiAccountant, epsilon_of, noise_for

__all__ = ["ORDERS", "RenyiAccountant", "epsilon_of", "noise_for"]
