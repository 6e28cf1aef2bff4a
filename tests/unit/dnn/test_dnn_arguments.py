"""Arguments of a wrong kind: refused where they are given, with what is expected.

`CALLS` has valid arguments of everything public that takes numbers, flags or texts. Each argument
is replaced by values of other kinds in turn, as its annotation says which those are.
"""

import importlib.util
import inspect

import numpy as np
import pytest

import dnn
from dnn.errors import ConfigurationError, DnnError, explains_arguments
from dnn.initializers import mask, normal

NAN = float("nan")
HUGE, TEXT = 10**400, np.array("text")
X, Y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) % 2
DATA = dnn.Dataset(X, Y, 2, "data")
OPTIMIZER = {"clip_value": 1.0, "clip_norm": 1.0, "average": 0.9, "schedule": "constant"}
RECURRENT = {"layers": 1, "bidirectional": False, "dropout": 0.0, "return_sequences": False}
RECURRENT |= {"bias": True, "initial": "zeros", "layer_norm": False}


def layers():
    return [dnn.Input(2), dnn.FullyConnected(2)]


CALLS = {
    **{
        name: (getattr(dnn, name), {"weight_decay": 0.1, **OPTIMIZER})
        for name in ("AdaGrad", "Adam", "AdamW", "LARS", "Muon", "NAdam", "RMSProp", "SGD")
    },
    **{name: (getattr(dnn, name), {"units": 3, **RECURRENT}) for name in ("GRU", "LSTM", "RNN")},
    "AvgPool2D": (dnn.AvgPool2D, {}),
    "BatchNorm": (dnn.BatchNorm, {}),
    "BestCheckpoint": (dnn.BestCheckpoint, {"path": "best.npz"}),
    "BinaryCrossEntropy": (dnn.BinaryCrossEntropy, {}),
    "Checkpoint": (dnn.Checkpoint, {"path": "kept.npz", "every_steps": 3}),
    "Conv1D": (dnn.Conv1D, {"filters": 2, "window": 3}),
    "Conv2D": (dnn.Conv2D, {"filters": 2, "window": 3}),
    "Cosine": (dnn.Cosine, {"steps": 5}),
    "Crop": (dnn.Crop, {"size": 4}),
    "Cutout": (dnn.Cutout, {"side": 2}),
    "Dataset": (dnn.Dataset, {"x": X, "y": Y, "classes": 2, "name": "data"}),
    "Dropout": (dnn.Dropout, {}),
    "EarlyStopping": (dnn.EarlyStopping, {}),
    "Embedding": (dnn.Embedding, {"count": 4, "units": 2, "padding": 0}),
    "FullyConnected": (dnn.FullyConnected, {"units": 3}),
    "GrowingBatch": (dnn.GrowingBatch, {"start": 4, "every": 2, "most": 9}),
    "Images": (dnn.Images, {"pixels": np.zeros((2, 1, 4, 4), np.uint8)}),
    "L1": (dnn.L1, {"strength": 0.1}),
    "L2": (dnn.L2, {"strength": 0.1}),
    "LayerNorm": (dnn.LayerNorm, {}),
    "MaxPool2D": (dnn.MaxPool2D, {}),
    "NeuralNetwork": (dnn.NeuralNetwork, {"layers": layers()}),
    "Normalise": (dnn.Normalise, {"mean": 0.5, "deviation": 0.5}),
    "OneCycle": (dnn.OneCycle, {"steps": 10}),
    "Pruning": (dnn.Pruning, {"report": lambda step, value: True}),
    "RadialBasis": (dnn.RadialBasis, {"epsilon": 2.0}),
    "SequenceInput": (dnn.SequenceInput, {"steps": 3}),
    "Shift": (dnn.Shift, {"pixels": 1}),
    "SimulatedWorkers": (dnn.SimulatedWorkers, {"workers": 2}),
    "SoftmaxCrossEntropy": (dnn.SoftmaxCrossEntropy, {}),
    "SpatialDropout": (dnn.SpatialDropout, {}),
    "StepDecay": (dnn.StepDecay, {"every": 3}),
    "TrainingParameters": (dnn.TrainingParameters, {}),
    "Upsample2D": (dnn.Upsample2D, {}),
    "WarmUp": (dnn.WarmUp, {"steps": 3}),
    "batches": (dnn.batches, {"samples": 10, "batch_size": 2, "seed": 0, "epoch": 0}),
    "lenet5": (dnn.lenet5, {}),
    "limit_memory": (dnn.limit_memory, {"device": "cpu", "share": 0.5}),
    "mlp": (dnn.mlp, {"inputs": 3, "hidden": [4], "outputs": 2}),
    "pad_sequences": (dnn.pad_sequences, {"sequences": [[1, 2], [3]]}),
    "prefetch": (dnn.prefetch, {"source": [1, 2]}),
    "standardise": (dnn.standardise, {"train": DATA}),
    "train_validation_split": (dnn.train_validation_split, {"data": DATA}),
    "train_validation_test_split": (dnn.train_validation_test_split, {"data": DATA}),
    "vgg16": (dnn.vgg16, {}),
}
WRONG = {
    "Hyperparameter": ["0.1", True, NAN, [], 1j, {}, ["0.1"], [True]],
    "float": ["0.1", True, NAN, 1j, {}, b"1"],
    "int": ["64", True, -1, 1.5, NAN, b"1", {}],
    "bool": ["yes", "False", 2, 1.5, NAN],
    "str": [5, True, b"x", 1.5],
}
"""By the word in an annotation: values that are of another kind, or that no argument takes."""


def wrong_values(annotation):
    """Return values that an argument does not take; none if its annotation says nothing of them."""
    words = [word for word in WRONG if word in annotation]
    if not words or any(word in annotation for word in ("Callable", "Literal", "Mapping")):
        return []
    values = [value for word in words for value in WRONG[word]]
    if "int" in words or "float" in words or "Hyperparameter" in words:
        values = [value for value in values if value != 5 and (value != 1.5 or "int" in words)]
    if "bool" in words:
        values = [value for value in values if value is not True]
    if "str" in words:
        values = [value for value in values if not isinstance(value, str)]
    return values


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_a_wrong_kind_are_refused_where_they_are_given(name):
    function, valid = CALLS[name]
    if name != "limit_memory":  # which needs a GPU
        function(**valid)
    annotations = {
        key: parameter.annotation
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }
    if "clip_norm" in valid:
        options = inspect.signature(dnn.Optimizer).parameters
        annotations |= {key: options[key].annotation for key in OPTIMIZER}
    if "layer_norm" in valid:
        options = inspect.signature(dnn.LSTM).parameters
        annotations |= {key: options[key].annotation for key in RECURRENT}
    tried = 0
    if name == "limit_memory" and importlib.util.find_spec("cupy") is None:
        del annotations["device"]  # it is CuPy that knows the devices
    for key, annotation in annotations.items():
        for value in wrong_values(str(annotation)):
            arguments = {**valid, key: value}
            if name == "NeuralNetwork":  # whose layers are in use now
                arguments["layers"] = layers()
            with pytest.raises(DnnError) as caught:
                function(**arguments)
            told = str(caught.value)
            # A number of units that is one, but negative, is the layer's to refuse.
            is_named = key in told or (value == -1 and name in ("mlp", "lenet5", "vgg16"))
            assert is_named, f"{key} = {value!r}: {told}"
            tried += 1
    assert tried


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dnn.SGD("0.1"), "SGD: learning_rate must be .*, not '0.1'"),
        (lambda: dnn.SGD(True), "SGD: learning_rate must be .*, not True"),
        (lambda: dnn.SGD([0.1, "0.2"]), "SGD: learning_rate must be"),
        (lambda: dnn.SGD(nesterov="no", momentum=0.9), "SGD: nesterov must be true or false"),
        (lambda: dnn.FullyConnected("64"), "FullyConnected: units must be an integer, not '64'"),
        (lambda: dnn.FullyConnected(True), "FullyConnected: units must be an integer, not True"),
        (lambda: dnn.FullyConnected(0), "FullyConnected: units must be an integer of at least 1"),
        (lambda: dnn.FullyConnected(NAN), "FullyConnected: units must be an integer, not nan"),
        (lambda: dnn.Dropout(2), "rate"),
        (lambda: dnn.Dropout("0.5"), "Dropout: rate must be a number, not '0.5'"),
        (lambda: dnn.Input(True), "no shape of a sample"),
        (lambda: dnn.Reshape(4, True), "Reshape"),
        (lambda: dnn.Tensor(True), "a shape is made of integers"),
        (lambda: dnn.Tensor(1.5), "a shape is made of integers"),
        (lambda: dnn.Tensor(TEXT), "a shape is made of integers"),
        (lambda: dnn.Tensor(HUGE), "a length in the shape is beyond 64 bits"),
        (lambda: dnn.load_dataset(X), "load_dataset: name must be text"),
        (lambda: dnn.mlp(2, 5, 2), "mlp: hidden must be a list of integers, not 5"),
        (lambda: dnn.mlp(2, "55", 2), "mlp: hidden must be a list of integers"),
        (lambda: dnn.Activation([]), "Activation: function must be text or a function"),
        (lambda: dnn.train_validation_split(DATA, 0), "fraction must be between 0 and 1"),
        (lambda: dnn.train_validation_split(DATA, "0.2"), "fraction must be a number"),
        (lambda: dnn.train_validation_split(DATA, True), "fraction must be a number"),
        (lambda: dnn.batches(10, 0, 0, 0), "batch_size must be an integer of at least 1"),
        (lambda: dnn.batches(10, 2, 0, -1), "epoch must be an integer of at least 0"),
        (lambda: dnn.limit_memory("cuda", 1.5), "share must be above 0 and at most 1"),
        (lambda: dnn.SimulatedWorkers(2, slow=3), "slow must be a mapping"),
        (lambda: dnn.standardise(X), "standardise: train must be a Dataset"),
        (lambda: dnn.train_validation_split(X), "data must be a Dataset"),
        (lambda: dnn.NeuralNetwork(5), "NeuralNetwork: layers must be a list of layers, not 5"),
        (lambda: dnn.Residual(5), "Residual: layers must be a list of layers"),
        (lambda: dnn.Images(np.zeros((2, 1, 4, 4)), 5), "augment must be a list of Augmentation"),
        (lambda: dnn.layers_from_tables(5), "tables must be a list of tables"),
        (lambda: dnn.pad_sequences(5), "sequences must be a list of arrays"),
        (lambda: normal("0", 1), "normal: mean must be a number, not '0'"),
        (lambda: mask(True), "mask: probability must be a number, not True"),
        (lambda: dnn.Ensemble(layers(), seeds=[1], states="x"), "states must be a mapping"),
        (lambda: dnn.load_csv("x.csv", True), "load_csv: label must be text or an integer"),
        (lambda: dnn.load_csv("x.csv", missing=TEXT), "missing must be a list of texts"),
        (lambda: dnn.Dataset(X.tolist(), Y, 2, "data"), "Dataset: x must be an array"),
        (lambda: dnn.Dataset(X, None, 2, "data"), "Dataset: y must be an array, not None"),
        (lambda: dnn.Dataset(X.astype(str) + "m", Y, 2, "data"), "data: x must be numbers"),
        (lambda: dnn.Dataset(np.full((12, 2), HUGE), Y, 2, "data"), "data: x must be numbers"),
        (lambda: dnn.NeuralNetwork(layers(), parallel=2), "parallel must be a Scheme, or None"),
        (lambda: dnn.NeuralNetwork(layers(), params={}), "params must be a TrainingParameters"),
        (lambda: dnn.NeuralNetwork(np.ones(2)), "layers"),
        (lambda: dnn.RoutineTable(5), "choices are rows of"),
        (lambda: dnn.load(5), "load: path must be text or a path, not 5"),
        (lambda: dnn.load_checkpoint(None, "x"), "model must be a NeuralNetwork, not None"),
        (lambda: dnn.save_checkpoint(5, "x"), "model must be a NeuralNetwork, not 5"),
        (lambda: dnn.minimize(5, dnn.SGD(0.1)), "loss must be a Node, not 5"),
        (lambda: dnn.reading_options("cvs"), "unknown data set 'cvs'"),
        (lambda: dnn.reading_options([]), "name must be text"),
        (lambda: dnn.class_weights(-1, 2), "labels must be a vector of integers"),
        (lambda: dnn.TrainedModel(5), "TrainedModel: network must be a NeuralNetwork, not 5"),
        (lambda: dnn.Normalise(HUGE, 1), "mean must be .* of at most 64 bits, not 1000"),
        (lambda: dnn.batches(HUGE, 2, 0, 0), "samples must be an integer of at most 64 bits"),
        (lambda: dnn.batches(5, 2, 10**5000, 0), "seed must be .* of at most 64 bits, not a int"),
        (lambda: dnn.EarlyStopping(min_delta=HUGE), "min_delta must be a number of at most"),
        (lambda: dnn.Tensor(2, HUGE), "initializer must be"),
        (lambda: dnn.mlp(2, TEXT, 2), "hidden must be a list of integers"),
        (lambda: dnn.Conv2D(2, TEXT), "window"),
        (lambda: dnn.pad_sequences(TEXT), "sequences must be a list of arrays"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_argument_is_told(call, message):
    with pytest.raises(DnnError, match=message):
        call()


WEIGHTS = [[1, 1], True, 3, "even", {0: "a"}, {0: NAN}, {0: -1}, {0: None}, {0: True}, {True: 1.0},
           {5: 1.0}, {"a": 1.0}, {0: [1.0, 2.0]}]  # fmt: skip
OF_FIT = {
    "epochs": ["5", 0, -1, True, 1.5, NAN],
    "batch_size": ["5", 0, -1, True, 1.5, NAN],
    "accumulate": ["5", 0, True],
    "class_weight": WEIGHTS,
    "validation": [0, 1, "0.2", True, NAN, (X,), [X, Y, Y]],
    "callbacks": [5, ["a"], dnn.EarlyStopping(), dnn.EarlyStopping],
    "progress": ["yes", 2],
    "resident": ["yes", 1.5],
}


@pytest.mark.parametrize("name", OF_FIT)
def test_arguments_of_fit(name):
    for value in OF_FIT[name]:
        model = dnn.NeuralNetwork(layers(), seed=1)
        with pytest.raises(DnnError) as caught:
            model.fit(X, Y, **{"progress": False, name: value})
        assert name.replace("_", " ") in str(caught.value).replace("_", " "), value


@pytest.mark.parametrize("weights", WEIGHTS, ids=repr)
def test_class_weights_that_are_none(weights):
    with pytest.raises(ConfigurationError, match="class weights"):
        dnn.class_weights(Y, 2, weights)


def test_numbers_of_numpy_are_numbers():
    assert dnn.FullyConnected(np.int64(3)).units == 3
    assert dnn.Dropout(np.float32(0.5))
    assert dnn.Dropout(np.array(0.5))
    assert dnn.SGD(np.float64(0.5), nesterov=np.bool_(True), momentum=0.9)
    assert dnn.SGD(np.array([0.5, 0.25])).hyperparameters["learning_rate"] == (0.5, 0.25)
    assert dnn.mlp(np.int32(2), np.array([4, 5]), np.int64(2))


def test_what_no_annotation_names_is_not_looked_at():
    @explains_arguments
    def function(first: "float", other: "int | bytes", *rest: "int", last: "str | None" = None):
        return first, other, rest, last

    assert function(1, "any", "x", last=None) == (1, "any", ("x",), None)
    with pytest.raises(ConfigurationError, match="function: last must be text, or None, not 5"):
        function(1, 2, last=5)
    with pytest.raises(ConfigurationError, match="first must be a number, not None"):
        function(None, 2)
    with pytest.raises(ConfigurationError, match="has no argument 'lost'"):
        function(1, 2, lost=5)
