"""Images that are changed at random, the same whoever prepares them."""

import cuda_emulator
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn import Crop, Cutout, Flip, Images, Normalise, Shift
from dnn.backend import ops_for
from dnn.data import augmentation
from dnn.data.dataset import split_rows
from dnn.errors import ConfigurationError, DataError, ShapeError


def made(count=24, shape=(1, 6, 5), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def augmented(images, seed=1, epoch=0):
    """Every image once, in the order of their numbers."""
    (batch,) = images.batches(np.arange(len(images)), len(images), [seed], epoch)
    return batch


def test_without_augmentation_bytes_are_brightness():
    pixels = made()
    images = Images(pixels)
    assert (len(images), images.shape, images.ndim) == (24, (24, 1, 6, 5), 4)
    np.testing.assert_array_equal(images[3:5], pixels[3:5] * np.float32(1 / 255))
    np.testing.assert_array_equal(np.asarray(images), augmented(images))
    numbers = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype("f4")
    np.testing.assert_array_equal(Images(numbers)[[2, 0]], numbers[[2, 0]])
    np.testing.assert_array_equal(images[np.array([[1, 2], [3, 4]])][1, 0], images[3])


def test_a_flip_turns_half_of_the_images_round():
    images = Images(made(200), [Flip()])
    found, plain = augmented(images), images[:]
    flipped = np.array([not np.array_equal(a, b) for a, b in zip(found, plain, strict=True)])
    assert 70 < flipped.sum() < 130
    np.testing.assert_array_equal(found[flipped], plain[flipped][..., ::-1])


@pytest.mark.parametrize("border", ["zero", "reflect"])
def test_a_crop_is_a_part_of_the_padded_image(border):
    pixels = made(400, (2, 6, 5))
    images = Images(pixels, [Crop((5, 4), padding=2, border=border)])
    edges = ((0, 0), (0, 0), (2, 2), (2, 2))
    padded = np.pad(images._pixels, edges, "constant" if border == "zero" else "reflect")
    padded = padded * np.float32(1 / 255)
    places = set()
    for image, whole in zip(augmented(images), padded, strict=True):
        found = [
            (top, left)
            for top in range(6)
            for left in range(6)
            if np.array_equal(image, whole[:, top : top + 5, left : left + 4])
        ]
        places.update(found)
        assert found
    assert len(places) == 36  # anywhere
    np.testing.assert_array_equal(images[:], padded[:, :, 2:7, 2:6])  # the middle
    assert images.shape == (400, 2, 5, 4)


def test_a_shift_moves_the_whole_image():
    images = Images(np.full((50, 1, 4, 4), 255, np.uint8), [Shift(1)])
    covered = augmented(images).sum(axis=(1, 2, 3)).round().astype(int)
    assert set(covered) == {16, 12, 9}
    np.testing.assert_array_equal(images[:], 1)


def test_a_cutout_is_the_mean_wherever_it_stands():
    pixels = made(60, (3, 8, 8))
    normalise = Normalise.of(pixels)
    for order in ([Cutout(4), normalise], [normalise, Cutout(4)]):
        images = Images(pixels, order)
        found, plain = augmented(images), images[:]
        blank = (found == 0).all(axis=1)
        assert {*blank.sum(axis=(1, 2))} <= {a * b for a in (2, 3, 4) for b in (2, 3, 4)}
        assert blank.any(axis=0).all()
        kept = ~blank[:, None] & np.ones((1, 3, 1, 1), bool)
        same = [np.array_equal(a[k], b[k]) for a, b, k in zip(found, plain, kept, strict=True)]
        assert all(same)
    two = augmented(Images(pixels, [Cutout(2), Cutout(2)]))
    assert (two == 0).all(axis=1).sum(axis=(1, 2)).max() > 4


def test_normalise_is_learned_from_the_images():
    pixels = made(300, (3, 4, 4))
    pixels[:, 2] = 7
    learned = Normalise.of(pixels)
    ready = Images(pixels, [learned])[:]
    np.testing.assert_allclose(ready.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(ready.std(axis=(0, 2, 3)), [1, 1, 0], rtol=1e-5, atol=1e-5)
    numbers = pixels.astype("f4") / 255
    np.testing.assert_allclose(Normalise.of(numbers).mean, learned.mean, rtol=1e-6)
    np.testing.assert_allclose(Images(numbers, [learned])[:], ready, rtol=1e-4, atol=1e-5)
    one = Images(pixels, [Normalise(0.5, 0.25)])[:]
    np.testing.assert_allclose(one, (numbers - 0.5) / 0.25, rtol=1e-5, atol=1e-6)


ALL = (Crop(padding=2, border="reflect"), Flip(), Cutout(2), Shift(1))


def test_results_depend_on_seed_epoch_and_number_alone():
    pixels = made(40, (2, 6, 5))
    order = np.random.default_rng(0).permutation(40)
    expected = augmented(Images(pixels, ALL))
    for workers, size in ((1, 40), (1, 7), (3, 7), (8, 1)):
        images = Images(pixels, ALL, workers=workers)
        batches = [*images.batches(order, size, [1], 0)]
        assert len(batches) == -(-40 // size)
        np.testing.assert_array_equal(np.concatenate(batches), expected[order])
        (both,) = images.batches(np.stack([order, order[::-1]]), 40, [1, 2], 0)
        np.testing.assert_array_equal(both[0], expected[order])
        np.testing.assert_array_equal(both[1], augmented(images, seed=2)[order[::-1]])
    images = Images(pixels, ALL)
    assert not np.array_equal(augmented(images, epoch=1), expected)
    assert not np.array_equal(augmented(images, seed=2), expected)
    np.testing.assert_array_equal(images[:], images[:])  # nothing at random
    words = augmentation._random(np.full(500, 7, np.uint64), 3, np.arange(500), 2)
    assert words.shape == (2, 4, 500)
    assert 0 <= words.min() < 0.01
    assert 0.99 < words.max() < 1
    assert abs(np.corrcoef(words.reshape(8, -1)) - np.eye(8)).max() < 0.15


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_the_compiled_loop_gathers_as_numpy_does(dtype):
    generator = np.random.default_rng(0)
    pixels = made(9, (3, 7, 6)).astype(dtype)
    records = np.zeros((9, 3 * 7 * 6 + 2), dtype)  # a label before each image, as in a file
    records[:, 2:] = pixels.reshape(9, -1)
    strided = records[:, 2:].reshape(9, 3, 7, 6)
    arguments = (
        generator.integers(0, 9, 20),
        generator.integers(-1, 7, (20, 5)),
        generator.integers(-1, 6, (20, 8)),
        np.tile([[1, 3, 2, 5], [4, 5, 0, 8]], (20, 1, 1)),
        generator.normal(size=3).astype("f4"),
        generator.normal(size=3).astype("f4"),
    )
    found = []
    for ops in (ops_for("numpy"), ops_for("cpu")):
        for source in (pixels, strided, pixels[:, :, ::-1][:, :, ::-1], pixels[::-1][::-1]):
            out = np.full((20, 3, 5, 8), np.nan, "f4")
            ops.take_images(source, *arguments, out)
            found.append(out)
    for other in found[1:]:
        np.testing.assert_allclose(found[0], other, rtol=1e-6, atol=1e-5)


class Upside(dnn.Augmentation):
    """One's own: every third image stands on its head."""

    def place(self, pixels, random):
        if random is not None:
            turns = (random[3] < 1 / 3)[:, None]
            pixels.rows = np.where(turns, pixels.rows[:, ::-1], pixels.rows)


def network(seed, **options):
    layers = [dnn.Input(1, 6, 5), dnn.Flatten(), *dnn.mlp(30, [8], 3)[1:]]
    return dnn.NeuralNetwork(layers, optimizer=dnn.SGD(0.1, 0.9), seed=seed, **options)


def test_networks_train_on_images():
    pixels, y = made(50), np.arange(50) % 3
    images = Images(pixels, [Upside(), Shift(1), Normalise.of(pixels)])
    first, second = network(1), network(1)
    history = first.fit(images, y, epochs=4, batch_size=16, progress=False)
    # By hand, batch after batch; and in two calls, with other workers.
    for epoch in range(4):
        batches = images.batches(dnn.seeds.epoch_order(50, 1, epoch), 16, [1], epoch)
        losses = []
        for rows, batch in zip(dnn.batches(50, 16, 1, epoch), batches, strict=True):
            losses.append(second.evaluate(batch, y[rows])["loss"] * len(rows) / 50)
            plan = second._network.plan("training", len(rows))
            plan.load(batch, y[rows], np.arange(len(rows)))
            plan.plan.run()
            for function, arguments in second._update.steps:
                function(*arguments)
        assert sum(losses) == pytest.approx(history.loss[epoch], rel=1e-4)
    assert first.evaluate(images, y)["loss"] == pytest.approx(
        second.evaluate(images, y)["loss"], rel=1e-3
    )
    third = network(1)
    again = Images(pixels, images.augment, workers=5)
    losses = [third.fit(again, y, epochs=2, batch_size=16, progress=False).loss for _ in range(2)]
    assert losses[0] + losses[1] == history.loss
    np.testing.assert_array_equal(third(images), first(images[:]))
    np.testing.assert_array_equal(third.predict(images), first.predict(images))


def test_each_of_several_networks_gets_what_it_gets_alone():
    pixels, y = made(50), np.arange(50) % 3
    data = dnn.DeviceData(Images(pixels, [Shift(1), Flip()]), y)
    layers = [dnn.Input(1, 6, 5), dnn.Flatten(), *dnn.mlp(30, [8], 3)[1:]]
    networks = dnn.Ensemble(layers, optimizer=dnn.SGD(0.1, 0.9), seeds=[1, 2])
    rows = [np.arange(10, 50)] * 2
    options = {"epochs": [2, 3], "batch_size": 16, "validation_rows": rows}
    histories = networks.fit(data, rows=[np.arange(50)] * 2, **options)
    for seed, epochs, history in zip((1, 2), (2, 3), histories, strict=True):
        alone = network(seed)
        same = alone.fit(
            data, epochs=epochs, batch_size=16, progress=False, validation=(pixels / 255.0, y)
        )
        assert same.loss == history.loss
        held_out = alone.evaluate(Images(pixels[10:]), y[10:])
        assert held_out == history.validation[-1]


def test_a_share_for_validation_is_not_augmented():
    pixels, y = made(60), np.arange(60) % 3
    images = Images(pixels, [Shift(2), Cutout(3)])
    model, plain = network(3), network(3)
    history = model.fit(images, y, validation=0.25, epochs=1, progress=False)
    assert len(history.validation) == 1
    kept, out = split_rows(60, y, 0.25, 3)
    pair = (Images(pixels[out]), y[out])
    other = plain.fit(images.take(kept), y[kept], validation=pair, epochs=1, progress=False)
    assert (other.loss, other.validation) == (history.loss, history.validation)


@pytest.mark.skipif(cuda_emulator.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_images_are_sent_to_a_gpu_batch_by_batch(monkeypatch):
    fake_cupy.install(monkeypatch)
    pixels, y = made(40), np.arange(40) % 3
    images = Images(pixels, [Shift(1), Flip()])
    here = network(1).fit(images, y, epochs=2, batch_size=16, progress=False)
    for resident in (None, True, False):
        found = network(1, device="cuda").fit(
            images, y, epochs=2, batch_size=16, progress=False, resident=resident
        )
        np.testing.assert_allclose(found.loss, here.loss, rtol=1e-5)


def test_what_is_wrong_with_images():
    pixels = made()
    for call, kind, message in [
        (lambda: Images(pixels[0]), ShapeError, r"\(n, channels, height, width\), not \(1, 6, 5\)"),
        (lambda: Images(pixels[:0]), ShapeError, "images are"),
        (lambda: Images(pixels.astype(str)), DataError, "bytes or numbers"),
        (lambda: Images(pixels, [Flip]), ConfigurationError, "is no Augmentation"),
        (lambda: Images(pixels, workers=0), ConfigurationError, "workers"),
        (lambda: Images(pixels, [Normalise([1, 2], 1)]), ShapeError, "2 means for 1 channels"),
        (lambda: Images(pixels, [Crop(9)]), ShapeError, "9 pixels are more than the 6"),
        (lambda: Images(pixels, [Crop(padding=5, border="reflect")]), ShapeError, "mirrored"),
        (lambda: Crop(padding=-1), ConfigurationError, "padding"),
        (lambda: Crop(border="wrap"), ConfigurationError, "unknown border 'wrap'"),
        (lambda: Crop(0), ConfigurationError, "size"),
        (lambda: Shift(0), ConfigurationError, "pixels"),
        (lambda: Cutout(0), ConfigurationError, "side"),
        (lambda: Normalise(0, 0), ConfigurationError, "above 0"),
        (lambda: Normalise(np.nan, 1), ConfigurationError, "finite"),
        (lambda: Crop(widht=3), ConfigurationError, "no argument 'widht'"),
    ]:
        with pytest.raises(kind, match=message):
            call()
    numbers = np.zeros((2, 1, 3, 3))
    numbers[1, 0, 2, 1] = np.inf
    with pytest.raises(DataError, match=r"inf in image 1, at \(0, 2, 1\)"):
        Images(numbers)
    with pytest.raises(ShapeError, match=r"x has shape \(24, 1, 6, 5\)"):
        dnn.NeuralNetwork(dnn.mlp(30, [], 3)).fit(Images(pixels), np.zeros(24, int))

    class Broken(dnn.Augmentation):
        def place(self, pixels, random):
            if random is not None:
                raise RuntimeError("broken on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        network(1).fit(Images(pixels, [Broken()]), np.zeros(24, int), progress=False)


def _rows(pixels):
    pixels.rows = pixels.rows + 6


def _negative_and_large(pixels):
    pixels.columns = np.full(pixels.columns.shape, 2**62)


def _fractions(pixels):
    pixels.columns = pixels.columns * 0.5


def _fewer(pixels):
    pixels.rows = pixels.rows[:3]


def _box(*edges):
    def place(pixels):
        pixels.boxes.append(np.tile(edges, (len(pixels.rows), 1)))

    return place


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (_rows, DataError, r"Mine\(\): rows are 0 .. 5, or negative, not 11"),
        (_negative_and_large, DataError, "columns are 0 .. 4"),
        (_fractions, DataError, "columns must be an array of integers, not float64"),
        (_fewer, ShapeError, "rows of 24 images"),
        (_box(0, 7, 0, 5), DataError, "boxes must lie inside of the image, 6 x 5"),
        (_box(-1, 6, 0, 5), DataError, "boxes must lie inside"),
        (_box(0, 6, 0), ShapeError, "boxes of 24 images"),
        (lambda pixels: setattr(pixels, "rows", pixels.rows[:, 1:]), ShapeError, "at random"),
    ],
)
def test_an_augmentation_of_ones_own_stays_inside_of_the_image(change, kind, message):
    class Mine(dnn.Augmentation):
        def place(self, pixels, random):
            if random is not None:
                change(pixels)

    with pytest.raises(kind, match=message):
        augmented(Images(made(), [Mine()]))


def test_batches_of_images_that_are_not_there():
    images = Images(made())
    for order in ([0, 24], [-1, 0]):
        with pytest.raises(DataError, match=r"images 0 \.\. 23"):
            next(images.batches(np.array(order), 2, [1], 0))
