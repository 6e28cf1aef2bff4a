"""Training: networks, their data, epochs, evaluation, state of training, checkpoints."""
