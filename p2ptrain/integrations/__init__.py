"""p2ptrain in other people's training code: `join` for a loop of one's own, and one module a framework.

    swarm          `p2ptrain.join`: three lines in any loop
    transformers   `SwarmCallback` for the Trainer of Hugging Face, and those of TRL
    lightning      `SwarmCallback` for the Trainer of Lightning
    torchft        `GossipManager` for torchft's `LocalSGD` and `DiLoCo`

This package may import the runtime (`node`); nothing of p2ptrain imports it but `p2ptrain.join`, when it is called. A
framework is imported when its module is.
"""
