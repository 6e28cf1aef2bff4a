"""Sets of images: CIFAR's binary form, folders of classes, .npz files."""

import io
import itertools
import os
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support import DATA

import dnn
from dnn.data import image_reading
from dnn.errors import (
    ConfigurationError,
    DataError,
    LabelError,
    MissingDependencyError,
    ShapeError,
)

CIFAR10 = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def cifar(count, label_bytes, seed, classes=10):
    generator = np.random.default_rng(seed)
    records = generator.integers(0, 256, (count, label_bytes + 3072), dtype=np.uint8)
    records[:, 0] %= 20 if label_bytes == 2 else classes
    records[:, label_bytes - 1] %= classes
    return records


def write_cifar10(folder):
    folder.mkdir(exist_ok=True)
    parts = [cifar(4, 1, seed) for seed in range(6)]
    for name, records in zip(CIFAR10, parts, strict=True):
        (folder / name).write_bytes(records.tobytes())
    return parts


def write_archive(path, folder, names, prefix=""):
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.add(folder / name, prefix + name)


def test_cifar10_from_a_folder_and_from_an_archive(tmp_path):
    parts = write_cifar10(tmp_path / "cifar-10-batches-bin")
    archive = tmp_path / "archives" / "cifar-10-binary.tar.gz"
    archive.parent.mkdir()
    # Names that would lead out of a folder are only read, never written to.
    write_archive(archive, tmp_path / "cifar-10-batches-bin", CIFAR10, "../../elsewhere/")
    expected = np.concatenate(parts[:5])
    for path in (tmp_path, tmp_path / "cifar-10-batches-bin", archive, archive.parent):
        train, test = dnn.load_cifar10(path)
        assert (train.x.dtype, train.images.shape) == (np.uint8, (20, 3, 32, 32))
        np.testing.assert_array_equal(train.x, expected[:, 1:])
        np.testing.assert_array_equal(train.y, expected[:, 0])
        np.testing.assert_array_equal(test.x, parts[5][:, 1:])
        assert test.class_names[3] == "cat"
        assert repr(train) == "Dataset('cifar10': 20 images of 3 x 32 x 32, 10 classes)"
        np.testing.assert_array_equal(dnn.load_dataset("cifar10", path).x, train.x)
    assert {path.name for path in tmp_path.iterdir()} == {"archives", "cifar-10-batches-bin"}


def test_cifar10s_own_records(tmp_path):
    source = DATA / "cifar10" / "data_batch_1.first200.bin"
    if not source.exists():
        pytest.skip("there is no cifar10/data_batch_1.first200.bin in the folder DIEL_DATA")
    for name in CIFAR10:
        (tmp_path / name).write_bytes(source.read_bytes())
    train, test = dnn.load_cifar10(tmp_path)
    assert (len(train), len(test)) == (1000, 200)
    assert test.y[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert test.images[0, :, 0, 0].tolist() == [59, 62, 63]  # red, green, blue of the corner


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    parts = [cifar(6, 2, seed, 100) for seed in range(2)]
    for name, records in zip(("train.bin", "test.bin"), parts, strict=True):
        (tmp_path / name).write_bytes(records.tobytes())
    fine, test = dnn.load_cifar100(tmp_path)
    coarse, _ = dnn.load_cifar100(tmp_path, "coarse")
    assert (fine.classes, coarse.classes, len(test)) == (100, 20, 6)
    assert fine.y.tolist() == parts[0][:, 1].tolist()
    assert coarse.y.tolist() == parts[0][:, 0].tolist()
    np.testing.assert_array_equal(fine.x, parts[0][:, 2:])
    assert isinstance(fine.x, np.memmap)  # what is not looked at is not read
    assert dnn.load_dataset("cifar100", tmp_path, labels="coarse").classes == 20
    with pytest.raises(ConfigurationError, match="unknown labels 'rough'"):
        dnn.load_cifar100(tmp_path, "rough")


def test_damaged_cifar(tmp_path):
    folder = tmp_path / "there"
    write_cifar10(folder)
    path = tmp_path / "a.tar.gz"
    write_archive(path, folder, CIFAR10)
    raw = path.read_bytes()
    for cut in (len(raw) // 2, len(raw) - 20, 30):
        path.write_bytes(raw[:cut])
        with pytest.raises(DataError, match=r"a\.tar\.gz: truncated or damaged archive"):
            dnn.load_cifar10(path)
    path.write_bytes(raw[:1000] + bytes(1000) + raw[2000:])
    with pytest.raises(DataError, match="truncated or damaged archive"):
        dnn.load_cifar10(path)
    write_archive(path, folder, CIFAR10[1:])
    with pytest.raises(DataError, match=r"data_batch_1\.bin is not in the archive"):
        dnn.load_cifar10(path)
    with pytest.raises(DataError, match=r"neither data_batch_1\.bin nor .*dnn\.download"):
        dnn.load_cifar10(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        dnn.load_cifar10(tmp_path / "nowhere")
    third = folder / CIFAR10[2]
    third.write_bytes(third.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is truncated: 12291 bytes"):
        dnn.load_cifar10(folder)
    third.write_bytes(b"")
    with pytest.raises(DataError, match=r"data_batch_3\.bin: cannot be read"):
        dnn.load_cifar10(folder)
    third.write_bytes(b"\x0a" + bytes(3072))
    with pytest.raises(LabelError, match="label 10 in row 8"):
        dnn.load_cifar10(folder)
    third.unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin: cannot be read"):
        dnn.load_cifar10(folder)


def stated(name, size, sparse_size=None):
    """The head of an archive's member."""
    member = tarfile.TarInfo(name)
    member.size = size
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if sparse_size is not None:
        head[156:157] = tarfile.GNUTYPE_SPARSE
        head[386:482] = b"%011o\0%011o\0" % (sparse_size, 0) + bytes(72)
        head[483:495] = b"%011o\0" % sparse_size
        head[148:156] = b"        "
        head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def test_what_an_archive_states_is_not_taken_unseen(tmp_path):
    path, size = tmp_path / "a.tar", 20_000 * 3073
    for head, message in [
        (stated(CIFAR10[0], 0, size), r"data_batch_1\.bin is sparse"),
        (stated(CIFAR10[0], size), "is of 61460000 bytes, and no file of the set is"),
        (stated(CIFAR10[0], 3074), "is truncated: 3074 bytes, records have 3073"),
    ]:
        path.write_bytes(head + bytes(1024))
        with pytest.raises(DataError, match=message):
            dnn.load_cifar10(path)


def write_images(folder, shapes):
    library = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    generator = np.random.default_rng(0)
    written = []
    for place, (name, shape) in enumerate(shapes):
        pixels = generator.integers(0, 256, shape, dtype=np.uint8)
        path = folder / name / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        library.fromarray(pixels).save(path)
        written.append(pixels)
    return written


def test_a_folder_of_classes(tmp_path):
    shapes = [("dog", (4, 6, 3)), ("cat", (4, 6, 3)), ("dog", (4, 6)), ("emu", (4, 6, 3))]
    written = write_images(tmp_path, shapes)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    loaded = dnn.load_image_folder(tmp_path)
    assert loaded.class_names == ("cat", "dog", "emu")
    assert loaded.y.tolist() == [0, 1, 1, 2]
    assert (loaded.images.dtype, loaded.images.shape) == (np.uint8, (4, 3, 4, 6))
    np.testing.assert_array_equal(loaded.images[1], written[0].transpose(2, 0, 1))
    np.testing.assert_array_equal(loaded.images[2], np.stack([written[2]] * 3))  # grey as colour
    grey = dnn.load_dataset("image_folder", tmp_path, grey=True)
    assert grey.image_shape == (1, 4, 6)
    np.testing.assert_array_equal(grey.images[2, 0], written[2])
    assert dnn.load_image_folder(tmp_path, (8, 9)).image_shape == (3, 8, 9)


def one_image(folder, image, name="1.png", grey=True, **how):
    """Return the pixels that are read of an image of Pillow's, written to a folder of one class."""
    (folder / "cat").mkdir(exist_ok=True)
    image.save(folder / "cat" / name, **how)
    return dnn.load_image_folder(folder, grey=grey).images[0]


@pytest.mark.parametrize("name", ["1.png", "1.tif", "1.pgm"])
def test_grey_values_of_16_bits_are_scaled(tmp_path, name):
    library = pytest.importorskip("PIL.Image")
    values = np.array([[0, 128, 129, 257], [32767, 32768, 65406, 65535]], np.uint16)
    expected = np.round(values / 257).astype(np.uint8)
    image = library.fromarray(values)
    np.testing.assert_array_equal(one_image(tmp_path, image, name)[0], expected)
    colour = one_image(tmp_path, image, name, grey=False)
    np.testing.assert_array_equal(colour, np.stack([expected] * 3))
    assert dnn.load_image_folder(tmp_path, 1, grey=True).x[0, 0] == pytest.approx(
        expected.mean(), abs=1
    )


def test_big_endian_and_inverted_grey_values_of_16_bits(tmp_path):
    library = pytest.importorskip("PIL.Image")
    values = np.array([[0, 257, 65535]], np.uint16)
    image = library.frombytes("I;16B", (3, 1), values.astype(">u2").tobytes())
    np.testing.assert_array_equal(one_image(tmp_path, image, "1.tif"), [[[0, 1, 255]]])
    image = library.fromarray(values)
    white_is_0 = one_image(tmp_path, image, "1.tif", tiffinfo={262: 0})
    np.testing.assert_array_equal(white_is_0, [[[255, 254, 0]]])


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("name", ["1.png", "1.tif", "1.webp"])
def test_images_are_turned_as_their_exif_data_say(tmp_path, orientation, name):
    library = pytest.importorskip("PIL.Image")
    if name.endswith("webp") and not pytest.importorskip("PIL.features").check("webp"):
        pytest.skip("Pillow was built without WebP")
    upright = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    stored = {
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: np.rot90(upright, 2).T,
        8: np.rot90(upright, -1),
    }.get(orientation, upright)
    exif = library.Exif()
    exif[0x0112] = orientation
    how = {"lossless": True, "exact": True} if name.endswith("webp") else {}
    image = library.fromarray(np.ascontiguousarray(stored))
    np.testing.assert_array_equal(one_image(tmp_path, image, name, exif=exif, **how)[0], upright)


def test_colours_of_every_kind(tmp_path):
    library = pytest.importorskip("PIL.Image")
    colour = (200, 100, 50)
    image = library.new("RGB", (2, 1), colour)
    palette = image.quantize(2)
    cases = [
        (image.convert("RGBA"), {}, colour),
        (library.new("RGBA", (2, 1), (*colour, 0)), {}, colour),
        (library.new("LA", (2, 1), (77, 3)), {}, (77, 77, 77)),
        (library.new("1", (2, 1), 1), {}, (255, 255, 255)),
        (palette, {}, colour),
        (palette, {"transparency": b"\x10\x20"}, colour),
        (palette, {"transparency": 0}, colour),
    ]
    for given, how, expected in cases:
        assert one_image(tmp_path, given, grey=False, **how)[:, 0, 0].tolist() == list(expected)
    cmyk = library.new("CMYK", (2, 1), (0, 255, 255, 0))
    assert one_image(tmp_path, cmyk, "1.tif", grey=False).shape == (3, 1, 2)
    (tmp_path / "cat" / "1.png").unlink()
    assert one_image(tmp_path, cmyk, "1.tif", grey=False)[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("mode", "name", "how", "words"),
    [
        ("F", "1.tif", {}, "its pixels are floats, which do not say what is black"),
        ("I", "1.tif", {}, "its pixels are integers of more than 16 bits, or signed ones"),
        ("L", "1.gif", {"save_all": True}, "has 2 frames or pages"),
        ("L", "1.tif", {"save_all": True}, "has 2 frames or pages"),
        ("L", "1.png", {"save_all": True}, "has 2 frames or pages"),
    ],
)
def test_images_that_are_refused(tmp_path, mode, name, how, words):
    library = pytest.importorskip("PIL.Image")
    image = library.new(mode, (3, 2), 0)
    more = {"append_images": [library.new(mode, (3, 2), 200)]} if how else {}
    with pytest.raises(DataError, match=rf"1\.\w+: {words}"):
        one_image(tmp_path, image, name, **how, **more)


def test_truncated_images_and_images_too_large_to_be_meant(tmp_path, monkeypatch):
    library = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8)
    for name in ("1.png", "1.jpg", "1.tif", "1.gif", "1.bmp"):
        one_image(tmp_path, library.fromarray(noise), name)
        file = tmp_path / "cat" / name
        file.write_bytes(file.read_bytes()[:-200])
        with pytest.raises(DataError, match=f"{name}: cannot be read as an image"):
            dnn.load_image_folder(tmp_path)
        file.unlink()
    monkeypatch.setattr(library, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="cannot be read as an image: Image size"):
        one_image(tmp_path, library.fromarray(noise))


def test_large_sets_of_images_lie_in_a_file(tmp_path, monkeypatch):
    write_images(tmp_path, [("cat", (4, 6, 3)), ("dog", (4, 6, 3))])
    expected = dnn.load_image_folder(tmp_path)
    monkeypatch.setattr(image_reading, "_IN_MEMORY", 10)
    loaded = dnn.load_image_folder(tmp_path)
    assert isinstance(loaded.x, np.memmap)
    np.testing.assert_array_equal(loaded.x, expected.x)


def test_folders_that_are_wrong(tmp_path, monkeypatch):
    written = tmp_path / "set"
    write_images(written, [("cat", (4, 6, 3)), ("dog", (4, 6, 3)), ("dog", (5, 6, 3))])
    with pytest.raises(DataError, match=r"2\.png: the image is 5 x 6, and the others are 4 x 6"):
        dnn.load_image_folder(written)
    broken = written / "dog" / "2.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DataError, match=r"2\.png: cannot be read as an image"):
        dnn.load_image_folder(written)
    broken.write_bytes(b"no image at all")
    with pytest.raises(DataError, match=r"2\.png: cannot be read as an image"):
        dnn.load_image_folder(written, (4, 6))
    broken.unlink()
    outside = tmp_path / "outside.png"
    (written / "dog" / "1.png").rename(outside)
    (written / "dog" / "link.png").symlink_to(outside)
    with pytest.raises(DataError, match=r"link\.png: a link to .*outside\.png, outside of"):
        dnn.load_image_folder(written)
    (written / "dog" / "link.png").unlink()
    with pytest.raises(DataError, match="dog: no images of this class"):
        dnn.load_image_folder(written)
    with pytest.raises(DataError, match="no folder of a class"):
        dnn.load_image_folder(written / "cat")
    with pytest.raises(DataError, match="no such folder"):
        dnn.load_image_folder(tmp_path / "nowhere")
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "diel\[images\]"'):
        dnn.load_image_folder(written)


def test_sizes_of_images_that_are_wrong(tmp_path):
    write_images(tmp_path, [("cat", (4, 6, 3)), ("dog", (5, 6, 3))])
    assert dnn.load_image_folder(tmp_path, 3).image_shape == (3, 3, 3)
    for size in ((0, 0), [-1, 4], 0, (4,), "44", (4.5, 4), True):
        with pytest.raises(ConfigurationError, match="size"):
            dnn.load_image_folder(tmp_path, size)


def test_what_is_no_file_of_an_image(tmp_path, monkeypatch):
    write_images(tmp_path, [("cat", (4, 6, 3))])
    os.mkfifo(tmp_path / "cat" / "a.png")
    with pytest.raises(DataError, match=r"a\.png: is no file"):
        dnn.load_image_folder(tmp_path)
    (tmp_path / "cat" / "a.png").unlink()
    listed = Path.iterdir

    def refuse(folder):  # as for a user who is not root
        if folder.name == "cat":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match="cat: cannot be read: Permission denied"):
        dnn.load_image_folder(tmp_path)


def test_an_interrupt_ends_the_reading_of_images(tmp_path, monkeypatch):
    write_images(tmp_path, [("cat", (4, 6, 3))] * 100)
    decoded, read = image_reading.ImageReading.decoded, []
    numbers = itertools.count(1)  # several threads draw from it

    def interrupted(reading, library, path):
        number = next(numbers)
        read.append(path)
        if number > 1:
            time.sleep(0.005)
        if number == 2:
            raise KeyboardInterrupt
        return decoded(reading, library, path)

    monkeypatch.setattr(image_reading.ImageReading, "decoded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dnn.load_image_folder(tmp_path)
    assert len(read) < 90


def test_npz(tmp_path):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (5, 8, 6), dtype=np.uint8)
    path = tmp_path / "made.npz"
    for samples, shape, expected in [
        (pixels, (1, 8, 6), pixels[:, None]),
        (np.stack([pixels] * 3, axis=1), (3, 8, 6), np.stack([pixels] * 3, axis=1)),
        (np.stack([pixels] * 3, axis=3), (3, 8, 6), np.stack([pixels] * 3, axis=1)),
    ]:
        np.savez(path, x_train=samples, y_train=np.arange(5)[:, None] % 3)
        loaded = dnn.load_npz(path)
        assert (loaded.image_shape, loaded.classes, loaded.name) == (shape, 3, "made")
        np.testing.assert_array_equal(loaded.images, expected)
    np.savez_compressed(path, a=np.ones((5, 2)), b=np.arange(5))
    loaded = dnn.load_dataset("npz", path, x="a", y="b")
    assert (loaded.x.shape, loaded.image_shape, loaded.standardise_by) == ((5, 2), None, "columns")
    with pytest.raises(DataError, match="the samples are rows of 2 numbers"):
        _ = loaded.images
    with pytest.raises(DataError, match=r"no array 'x' \(there are: a, b\)"):
        dnn.load_npz(path)


def test_npz_of_sequences(tmp_path):
    path, x = tmp_path / "made.npz", np.arange(24.0).reshape(2, 4, 3)
    np.savez(path, x=x, y=[0, 1], ends=[4, 2])
    loaded = dnn.load_npz(path, lengths="ends")
    assert loaded.sequence_shape == (4, 3)
    assert loaded.standardise_by == "none"
    assert "2 sequences of 4 x 3" in repr(loaded)
    samples = loaded.x.reshape(2, 5, 3)
    assert np.array_equal(samples, dnn.pad_sequences(x, 4, [4, 2]))
    assert samples[:, 4, 0].tolist() == [4, 2]
    for wrong, message in (([4, 5], "room for 4"), ([0, 2], "at least 1"), ([4], "must be 2")):
        np.savez(path, x=x, y=[0, 1], ends=wrong)
        with pytest.raises((DataError, ShapeError), match=message):
            dnn.load_npz(path, lengths="ends")
    np.savez(path, x=x[0], y=[0, 1, 0, 1], ends=[1, 1, 1, 1])
    with pytest.raises(ShapeError, match="no sequences"):
        dnn.load_npz(path, lengths="ends")
    with pytest.raises(DataError, match="no array 'steps'"):
        dnn.load_npz(path, lengths="steps")
    with pytest.raises(ShapeError, match="have not 6 values"):
        dnn.Dataset(np.zeros((1, 6)), np.zeros(1, int), 1, "made", sequence_shape=(4, 3))


def test_npz_files_that_are_wrong(tmp_path):
    path = tmp_path / "made.npz"
    np.savez(path, x=np.array([{}, {}], object), y=np.arange(2))
    with pytest.raises(DataError, match="allow_pickle"):
        dnn.load_npz(path)
    np.savez(path, x=np.zeros((2, 3)), y=np.zeros(2))
    with pytest.raises(LabelError, match="y must be integers"):
        dnn.load_npz(path)
    np.savez(path, x=np.zeros((2, 3)), y=np.zeros(3, int))
    with pytest.raises(ShapeError, match="do not fit"):
        dnn.load_npz(path)
    np.savez(path, x=np.zeros((2, 5, 6, 7)), y=np.zeros(2, int))
    with pytest.raises(ShapeError, match="channels"):
        dnn.load_npz(path)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        dnn.load_npz(path)
    np.save(io.BytesIO(), np.zeros(2))
    with path.open("wb") as file:
        np.save(file, np.zeros(2))
    with pytest.raises(DataError, match="a single array"):
        dnn.load_npz(path)


def npy(header):
    """An array of which there is the header alone."""
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": "<f8", "fortran_order": False, **header})
    return raw.getvalue()


def test_npz_files_that_state_anything(tmp_path):
    path, rows, labels = tmp_path / "made.npz", np.zeros((2, 3)), np.arange(2)
    for x, y, message in [
        (np.float64(3), labels, "x is a single number"),
        (rows, np.int64(1), "y is a single number"),
        (rows.astype("U3"), labels, "x must be numbers, not <U3"),
        (rows + 1j, labels, "x must be numbers, not complex128"),
        (np.zeros(2, [("a", "f4")]), labels, "x must be numbers"),
        (rows, np.array([0, 2**64 - 1], np.uint64), "label 18446744073709551615 in row 1"),
        (rows, np.array([2**62, 0]), "label 4611686018427387904 in row 0 is too large"),
    ]:
        np.savez(path, x=x, y=y)
        with pytest.raises(DataError, match=message):
            dnn.load_npz(path)
    for name, raw, message in [
        ("x", b"no array", "no array 'x'"),
        ("x.npy", b"no array at all", "cannot be read"),
        ("x.npy", npy({"shape": (10**13, 2)}), "x: truncated or damaged"),
        ("x.npy", npy({"shape": (-1, -2)}) + bytes(16), "x: truncated or damaged"),
    ]:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, raw)
        with pytest.raises(DataError, match=message):
            dnn.load_npz(path)
    np.savez(path, x=rows, y=labels)
    raw = bytearray(path.read_bytes())
    raw[6] |= 1  # encrypted, as the member's own head and the table at the end say
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="encrypted"):
        dnn.load_npz(path)


def test_bytes_are_standardised_as_brightness_is():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (3000, 12), dtype=np.uint8)
    x[:, 5] = 7
    shape, y = (3, 2, 2), np.arange(3000) % 4
    made = dnn.Dataset(x, y, 4, "bytes", "one scale", shape)
    same = dnn.Dataset(x / 255.0, y, 4, "floats", "one scale", shape)
    parts, others = dnn.train_validation_split(made), dnn.train_validation_split(same)
    assert parts[0].x.dtype == np.uint8
    for by in ("one scale", "columns", "none"):
        found = dnn.standardise(*dnn.impute(*parts), by=by)
        expected = dnn.standardise(*dnn.impute(*others), by=by)
        for one, other in zip(found, expected, strict=True):
            assert one.x.dtype == np.float32
            np.testing.assert_allclose(one.x, other.x, rtol=1e-5, atol=2e-6)
    _train, mixed = dnn.standardise(parts[0], others[1])
    np.testing.assert_allclose(mixed.x, dnn.standardise(*others)[1].x, rtol=1e-5, atol=2e-6)
    _, mixed = dnn.standardise(others[0], parts[1])
    np.testing.assert_allclose(mixed.x, dnn.standardise(*others)[1].x, rtol=1e-5, atol=2e-6)
    with pytest.raises(ShapeError, match=r"images \(1, 2, 2\) have not 12 values"):
        dnn.Dataset(x, y, 4, "bytes", image_shape=(1, 2, 2))


def test_images_of_the_sets_that_are_there(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    assert dnn.load_digits().images.shape == (1797, 1, 8, 8)
    with pytest.raises(ConfigurationError, match=r"no option 'size': it takes none"):
        dnn.load_dataset("digits", size=3)
    with pytest.raises(ConfigurationError, match=r"no option 'labels': it takes size, grey"):
        dnn.load_dataset("image_folder", tmp_path, labels="fine")
