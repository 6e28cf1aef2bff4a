"""A convolutional network that learns the digits 0 to 4, for a sweep that goes on with its body."""

from __future__ import annotations

import dnn


def pretrain(ctx) -> dict[str, float]:
    """Train on half of the classes, and write the weights into the run directory."""
    digits = dnn.load_digits()
    few, _ = dnn.train_validation_split(digits, 0.2, seed=0)
    few = few.take((few.y < 5).nonzero()[0])
    layers = [
        *(dnn.Input(64), dnn.Reshape(1, 8, 8)),
        *(dnn.Conv2D(8, 3, padding="same"), dnn.BatchNorm(), dnn.Activation("relu")),
        *(dnn.MaxPool2D(2), dnn.Flatten()),
        *(dnn.FullyConnected(32), dnn.Activation("relu"), dnn.FullyConnected(5)),
    ]
    model = dnn.NeuralNetwork(layers, optimizer=dnn.Adam(0.003), seed=1)
    history = model.fit(few.x, few.y, epochs=3, progress=False)
    model.save_weights(ctx.run_dir / "body.npz")
    return {"accuracy": history.accuracy[-1]}
