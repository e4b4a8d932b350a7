"""Local training: one node's model, inner optimizer and data order, with the parameters as one flat vector."""

from p2ptrain.training.base import Learner
from p2ptrain.training.flat import FlatParameters, fingerprint, vector_bytes
from p2ptrain.training.pace import auto_h, dylu_steps
from p2ptrain.training.train_config import TrainConfig, lr_at
from p2ptrain.training.trainer import Trainer
from p2ptrain.training.user_model import UserModel

__all__ = [
    "FlatParameters",
    "Learner",
    "TrainConfig",
    "Trainer",
    "UserModel",
    "auto_h",
    "dylu_steps",
    "fingerprint",
    "lr_at",
    "vector_bytes",
]
