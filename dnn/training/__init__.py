"""Training: networks, their data, epochs, evaluation, what training changes, checkpoints."""
