"""What a node's start imports: each of these would be a second and more of it."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer

Trainer(Digits(), TrainConfig(), Shard()).step()
print(*sorted({"torch._dynamo", "sklearn", "scipy"} & set(sys.modules)))
import p2ptrain.privacy.accounting, node.privacy.budget, node.roles.trainer
print(*sorted({"torch._dynamo", "opacus", "scipy.stats"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_neither_a_step_nor_a_node_waits_for_a_compiler_for_statistics_or_for_an_accounting_package() -> None:
    """torch's optimizers and scikit-learn would import them, and few nodes ask for the others."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "\n\n", done.stderr
