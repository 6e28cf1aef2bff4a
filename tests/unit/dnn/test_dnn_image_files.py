"""Images as people have them: 16 bits, floats, transparent, turned, in a table; and new ones."""

import io
import json
import shutil
import struct
import zlib

import numpy as np
import pytest

import dnn
from dnn.data.image_folder import read_images
from dnn.data.image_reading import ImageReading
from dnn.errors import ConfigurationError, DataError, LabelError

Image = pytest.importorskip("PIL.Image")
GENERATOR = np.random.default_rng(0)
BYTES = GENERATOR.integers(0, 256, (5, 7), dtype=np.uint8)
WIDE = GENERATOR.integers(0, 65536, (5, 7), dtype=np.uint16)
COLOURS = GENERATOR.integers(0, 256, (5, 7, 3), dtype=np.uint8)
CLEAR = GENERATOR.integers(0, 256, (5, 7, 4), dtype=np.uint8)


def folder_of(tmp_path, image, name="a.png", **options):
    (tmp_path / "cat").mkdir(exist_ok=True)
    if isinstance(image, bytes):
        (tmp_path / "cat" / name).write_bytes(image)
    else:
        image.save(tmp_path / "cat" / name, **options)
    return tmp_path


def read(tmp_path, image, name="a.png", saved=None, **options):
    folder = folder_of(tmp_path, image, name, **(saved or {}))
    return dnn.load_image_folder(folder, **options).images[0]


def oracle(image, mode):
    pixels = np.asarray(image.convert(mode))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
def test_grey_values_of_16_bits_keep_them_all_as_floats(tmp_path, name):
    found = read(tmp_path, Image.fromarray(WIDE), name, grey=True, values="floats")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[0], (WIDE / 65535).astype(np.float32))
    assert len(np.unique(found)) == len(np.unique(WIDE))
    colours = read(tmp_path, Image.fromarray(WIDE), name, values="floats")
    np.testing.assert_array_equal(colours, np.repeat(found, 3, axis=0))
    narrow = read(tmp_path, Image.fromarray(WIDE), name, grey=True)
    np.testing.assert_array_equal(narrow[0], np.round(WIDE / 257).astype(np.uint8))


def test_floats_and_whole_numbers_of_32_bits_are_taken_as_they_are(tmp_path):
    values = GENERATOR.normal(20, 100, (5, 7)).astype(np.float32)
    found = read(tmp_path, Image.fromarray(values), "a.tiff", grey=True, values="floats")
    np.testing.assert_array_equal(found[0], values)
    whole = GENERATOR.integers(-70000, 70000, (5, 7), dtype=np.int32)
    found = read(tmp_path, Image.fromarray(whole), "a.tiff", grey=True, values="floats")
    np.testing.assert_array_equal(found[0], whole.astype(np.float32))
    for image in (Image.fromarray(values), Image.fromarray(whole)):
        with pytest.raises(DataError, match=r'cat/a\.tiff: its pixels are .* values = "floats"'):
            read(tmp_path, image, "a.tiff")
    values[2, 3] = np.nan
    with pytest.raises(DataError, match=r"cat/a\.tiff: a pixel is NaN or infinite"):
        read(tmp_path, Image.fromarray(values), "a.tiff", values="floats")


def test_bytes_as_floats_are_brightness(tmp_path):
    image = Image.fromarray(COLOURS)
    np.testing.assert_allclose(
        read(tmp_path, image, values="floats"), oracle(image, "RGB") / np.float32(255)
    )
    data = dnn.load_image_folder(tmp_path, values="floats")
    assert (data.x.dtype, data.standardise_by) == (np.float32, "one scale")
    # Scaled as Pillow scales numbers.
    wide = Image.fromarray(WIDE)
    expected = Image.fromarray((WIDE / 65535).astype(np.float32))
    expected = np.asarray(expected.resize((4, 3), Image.Resampling.BILINEAR))
    found = read(tmp_path, wide, grey=True, values="floats", size=(3, 4))
    np.testing.assert_array_equal(found[0], expected)


def png(bits, colour, pixels):
    """Return a PNG file that Pillow cannot write."""

    def chunk(name, data):
        crc = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)

    rows, columns = pixels.shape[:2]
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", columns, rows, bits, colour, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_colours_of_16_bits_are_no_floats_since_half_of_them_would_be_lost(tmp_path):
    wide = GENERATOR.integers(0, 65536, (4, 3, 3)).astype(">u2")
    found = read(tmp_path, png(16, 2, wide))
    np.testing.assert_array_equal(found, (wide >> 8).astype(np.uint8).transpose(2, 0, 1))
    with pytest.raises(DataError, match=r"cat/a\.png: has several channels of 16 bits"):
        read(tmp_path, png(16, 2, wide), values="floats")


# -- turned ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("wide", [False, True])
def test_images_are_turned_as_their_exif_data_say(tmp_path, orientation, wide):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(WIDE if wide else BYTES)
    found = read(tmp_path, image, saved={"exif": exif}, grey=True, values="floats")
    with Image.open(tmp_path / "cat" / "a.png") as opened:
        turned = np.asarray(ImageOps.exif_transpose(opened))
    np.testing.assert_allclose(found[0], turned / (65535 if wide else 255), rtol=1e-6)


# -- transparent -----------------------------------------------------------------------------------


def palette(transparent):
    image = Image.fromarray(BYTES % 4).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    return image, ({"transparency": transparent} if transparent is not None else {})


IMAGES = {
    "colours": (Image.fromarray(CLEAR), {}),
    "grey": (Image.fromarray(CLEAR[..., :2]), {}),
    "palette": palette(1),
    "palette of many": palette(bytes([0, 128, 255, 7])),
    "opaque palette": palette(None),
    "one colour": (Image.fromarray(COLOURS), {"transparency": tuple(COLOURS[1, 2].tolist())}),
    "opaque": (Image.fromarray(COLOURS), {}),
    "opaque grey": (Image.fromarray(BYTES), {}),
    "1 bit": (Image.fromarray(BYTES > 99), {}),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_transparency_is_dropped_or_laid_on_a_colour_or_a_channel(tmp_path, kind):
    image, saved = IMAGES[kind]
    folder_of(tmp_path, image, **saved)
    with Image.open(tmp_path / "cat" / "a.png") as opened:
        clear = opened.convert("RGBA")
    (dropped,) = dnn.load_image_folder(tmp_path).images
    np.testing.assert_array_equal(dropped, oracle(clear, "RGBA")[:3])
    for colour in ("white", "#ff8800"):
        behind = Image.new("RGBA", clear.size, colour)
        expected = Image.alpha_composite(behind, clear)
        (found,) = dnn.load_image_folder(tmp_path, background=colour).images
        np.testing.assert_array_equal(found, oracle(expected, "RGB"))
        (found,) = dnn.load_image_folder(tmp_path, background=colour, grey=True).images
        np.testing.assert_array_equal(found, oracle(expected.convert("RGB"), "L"))
    data = dnn.load_image_folder(tmp_path, alpha="channel")
    assert data.image_shape == (4, 5, 7)
    np.testing.assert_array_equal(data.images[0], oracle(clear, "RGBA"))
    grey = dnn.load_image_folder(tmp_path, alpha="channel", grey=True)
    assert grey.image_shape == (2, 5, 7)
    np.testing.assert_array_equal(grey.images[0], oracle(clear, "LA"))
    (floats,) = dnn.load_image_folder(tmp_path, alpha="channel", values="floats").images
    np.testing.assert_allclose(floats, data.images[0] / np.float32(255))


def test_how_images_are_read_is_checked(tmp_path):
    folder_of(tmp_path, Image.fromarray(BYTES))
    for options, words in (
        ({"values": "many"}, "unknown values 'many'"),
        ({"alpha": "drops"}, "unknown alpha 'drops'.*drop"),
        ({"background": "whitish"}, "'whitish' is no colour"),
        ({"background": "white", "alpha": "channel"}, "leave out background, or alpha"),
        ({"label": "kind"}, "label is of a table: add table"),
        ({"file": "name"}, "file is of a table"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            dnn.load_image_folder(tmp_path, **options)


# -- odd files -------------------------------------------------------------------------------------


def saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def odd_files():
    colours = Image.fromarray(GENERATOR.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    frames = [Image.fromarray(BYTES), Image.fromarray(255 - BYTES)]
    huge = struct.pack(">IIBBBBB", 40000, 40000, 8, 2, 0, 0, 0)
    return {
        "truncated.png": (saved(colours, "PNG")[:-4000], "cannot be read as an image"),
        "truncated.jpg": (saved(colours, "JPEG")[:-900], "cannot be read as an image"),
        "truncated.tiff": (saved(colours, "TIFF")[:4000], "cannot be read as an image"),
        "empty.png": (b"", "cannot be read as an image"),
        "text.jpg": (b"no image at all", "cannot be read as an image"),
        "huge.png": (
            png(8, 2, COLOURS).replace(struct.pack(">IIBBBBB", 7, 5, 8, 2, 0, 0, 0), huge),
            "cannot be read as an image",
        ),
        "zero.png": (
            png(8, 2, COLOURS).replace(struct.pack(">II", 7, 5), struct.pack(">II", 0, 0)),
            "cannot be read as an image",
        ),
        "moves.gif": (
            saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
            "has 2 frames or pages",
        ),
        "pages.tiff": (
            saved(frames[0], "TIFF", save_all=True, append_images=frames[1:]),
            "has 2 frames or pages",
        ),
    }


@pytest.mark.parametrize("values", ["bytes", "floats"])
@pytest.mark.parametrize("name", odd_files())
def test_an_odd_file_ends_in_an_error_that_names_it(tmp_path, name, values):
    raw, words = odd_files()[name]
    with pytest.raises(DataError, match=rf"cat/{name}: {words}"):
        read(tmp_path, raw, name, values=values)


def test_cmyk_and_1_bit_are_read_as_pillow_converts_them(tmp_path):
    inks = Image.frombytes("CMYK", (7, 5), CLEAR.tobytes())
    found = read(tmp_path, inks, "a.tiff")
    np.testing.assert_array_equal(found, oracle(inks, "RGB"))
    bits = Image.fromarray(BYTES > 99)
    np.testing.assert_array_equal(read(tmp_path, bits, "a.tiff", grey=True), oracle(bits, "L"))


# -- a table of labels -----------------------------------------------------------------------------


def table_of(tmp_path, text, name="labels.csv"):
    (tmp_path / "pictures").mkdir(exist_ok=True)
    for number in range(12):
        pixels = np.full((4, 4, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number}.png")
    (tmp_path / name).write_text(text)
    return tmp_path


ROWS = range(12)
CLASSES = "\n".join(
    ["name,kind", *(f"pictures/{n}.png,{'light' if n > 5 else 'dark'}" for n in ROWS)]
)


def test_a_table_names_files_and_classes(tmp_path):
    data = dnn.load_image_folder(table_of(tmp_path, CLASSES), table="labels.csv")
    assert (data.class_names, data.classes, data.image_shape) == (("dark", "light"), 2, (3, 4, 4))
    assert data.y.tolist() == [int(n > 5) for n in ROWS]
    assert data.images[:, 0, 0, 0].tolist() == [20 * n for n in ROWS]  # in the order of the table
    named = dnn.load_dataset("image_folder", tmp_path, table="labels.csv", file="name", label=1)
    np.testing.assert_array_equal(named.x, data.x)


def test_a_table_of_several_labels_or_of_numbers(tmp_path):
    tags = ["low", "low|odd"] * 6
    rows = [f"{n},pictures/{n}.png,{tags[n]},{n / 4}" for n in ROWS]
    text = "\n".join(["id,file,tags,score", *rows])
    table_of(tmp_path, text)
    several = dnn.load_image_folder(
        tmp_path, table="labels.csv", file="file", label="tags", label_separator="|"
    )
    assert (several.task, several.targets) == ("multilabel", ("low", "odd"))
    assert several.y.tolist() == [[1, n % 2] for n in ROWS]
    numbers = dnn.load_image_folder(tmp_path, table="labels.csv", file="file", target="score")
    assert (numbers.task, numbers.targets) == ("regression", ("score",))
    assert numbers.y[:, 0].tolist() == [n / 4 for n in ROWS]
    weighted = dnn.load_image_folder(
        tmp_path, table="labels.csv", file="file", label="tags", weight="score", beside=["id"]
    )
    assert weighted.weights is not None
    assert weighted.beside["id"].tolist() == [*ROWS]


def test_names_of_files_may_be_those_of_windows_and_comments_may_stand_above(tmp_path):
    text = "# made by us\n" + CLASSES.replace("/", "\\")
    data = dnn.load_image_folder(table_of(tmp_path, text), table="labels.csv")
    assert data.images[:, 0, 0, 0].tolist() == [20 * n for n in ROWS]


def test_what_is_hidden_in_a_folder_is_no_image(tmp_path):
    table_of(tmp_path, "")
    for name in (".ipynb_checkpoints", "others"):
        shutil.copytree(tmp_path / "pictures", tmp_path / name)
    (tmp_path / "others" / "._1.png").write_bytes(b"left by macOS")
    data = dnn.load_image_folder(tmp_path)
    assert (data.class_names, len(data)) == (("others", "pictures"), 24)


def test_a_table_without_names(tmp_path):
    table_of(tmp_path, CLASSES.partition("\n")[2])
    data = dnn.load_image_folder(tmp_path, table="labels.csv")
    assert data.y.tolist() == [int(n > 5) for n in ROWS]
    new = read_images(tmp_path / "labels.csv", data.reading, data.image_shape, data.class_names)
    np.testing.assert_array_equal(new.x, data.x)


def test_numbers_of_a_table_with_a_comma_and_rows_without_one(tmp_path):
    table_of(tmp_path, "name;score\npictures/1.png;1,5\npictures/2.png;NA\npictures/3.png;-2\n")
    wanted = {"target": "score", "missing": ["NA"], "decimal": ",", "skip_unlabelled": True}
    data = dnn.load_image_folder(tmp_path, table="labels.csv", **wanted)
    assert (data.y.tolist(), data.images[:, 0, 0, 0].tolist()) == ([[1.5], [-2]], [20, 60])


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("name,kind\npictures/99.png,a\n", {}, r"labels\.csv: there is no file 'pictures/99\.png'"),
        ("name,kind\n../x.png,a\n", {}, r"labels\.csv: '\.\./x\.png' lies outside of"),
        ("name,kind\n/etc/passwd,a\n", {}, "lies outside of"),
        ("name,kind\npictures,a\n", {}, "'pictures' is no file"),
        ("name,kind\nlabels.csv,a\n", {}, r"labels\.csv: cannot be read as an image"),
        ("name,kind\npictures/1.png,a\n", {"file": "nam"}, "no column 'nam'; is it 'name'"),
        ("name,kind\npictures/1.png,a\n", {"table": "label.csv"}, r"there is no file 'label\.csv'"),
        ("name,kind\npictures/1.png,a\n", {"table": "../x.csv"}, "lies outside of"),
    ],
)
def test_a_table_that_is_wrong(tmp_path, text, options, words):
    table_of(tmp_path, text)
    with pytest.raises(DataError, match=words):
        dnn.load_image_folder(tmp_path, **{"table": "labels.csv", **options})
    table_of(tmp_path, "name,kind\npictures/1.png,a\npictures/2.png,\n")
    with pytest.raises(LabelError, match="missing"):
        dnn.load_image_folder(tmp_path, table="labels.csv", missing=[""])


# -- new images ------------------------------------------------------------------------------------


def trained(tmp_path, data, loss="softmax_cross_entropy"):
    (prepared,) = dnn.standardise(data)
    layers = [*dnn.mlp(data.features, [6], data.outputs, "relu")]
    model = dnn.NeuralNetwork(layers, loss, optimizer=dnn.Adam(0.02), seed=1)
    model.fit(prepared.x, prepared.y, epochs=60, batch_size=4, progress=False)
    model.save(tmp_path / "model.safetensors", data=prepared)
    return prepared, dnn.load(tmp_path / "model.safetensors"), model


@pytest.mark.parametrize(
    "options", [{}, {"values": "floats", "grey": True}, {"alpha": "channel", "size": (3, 2)}]
)
def test_new_images_are_read_as_those_of_the_training(tmp_path, options):
    pytest.importorskip("safetensors")
    table_of(tmp_path, CLASSES)
    data = dnn.load_image_folder(tmp_path, table="labels.csv", **options)
    prepared, loaded, model = trained(tmp_path, data)
    expected = np.array(["dark", "light"])[model.predict(prepared.x)]
    assert "pictures/" not in json.dumps(loaded.reading.to_json())  # no names of files are kept
    # A table, with labels and without; a folder; an image.
    found = loaded.predict_file(tmp_path / "labels.csv")
    assert found.values.tolist() == expected.tolist()
    assert found.metrics == model.evaluate(prepared.x, prepared.y)
    assert found.rows.cells[3] == ["pictures/3.png"]
    (tmp_path / "new.csv").write_text("name\npictures/9.png\npictures/0.png\n")
    found = loaded.predict_file(tmp_path / "new.csv")
    assert (found.values.tolist(), found.metrics) == ([expected[9], expected[0]], {})
    found = loaded.predict_file(tmp_path / "pictures")
    names = [cells[0] for cells in found.rows.cells]
    assert found.values.tolist() == [expected[int(name[:-4])] for name in names]
    assert loaded.predict_class(tmp_path / "pictures" / "7.png").tolist() == [expected[7]]
    assert loaded.evaluate(tmp_path / "labels.csv") == model.evaluate(prepared.x, prepared.y)
    (tmp_path / "light").mkdir()
    (tmp_path / "pictures" / "11.png").rename(tmp_path / "light" / "11.png")
    only = tmp_path / "only"
    only.mkdir()
    (tmp_path / "light").rename(only / "light")
    found = loaded.predict_file(only)
    assert found.metrics["accuracy"] == float(found.values[0] == "light")
    for place, words in (
        (tmp_path / "gone.png", "there is no such file"),
        (tmp_path / "labels", "there is no such file or folder"),
    ):
        with pytest.raises(DataError, match=words):
            loaded.predict_file(place)


def test_new_images_of_another_size_or_kind(tmp_path):
    pytest.importorskip("safetensors")
    folder_of(tmp_path, Image.fromarray(COLOURS))
    (tmp_path / "dog").mkdir()
    Image.fromarray(255 - COLOURS).save(tmp_path / "dog" / "b.png")
    _, loaded, _ = trained(tmp_path, dnn.load_image_folder(tmp_path))
    (tmp_path / "new").mkdir()
    Image.fromarray(COLOURS[:4]).save(tmp_path / "new" / "c.png")
    with pytest.raises(DataError, match=r"new/c\.png: the image is 4 x 7, and those of the train"):
        loaded.predict_file(tmp_path / "new")
    (tmp_path / "new.csv").write_text("name\nnew/c.png\n")
    with pytest.raises(DataError, match=r"new\.csv: is no image, and the model takes images"):
        loaded.predict_file(tmp_path / "new.csv")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none: no images in this folder"):
        loaded.predict_file(tmp_path / "none")


def test_several_labels_and_numbers_of_new_images(tmp_path):
    pytest.importorskip("safetensors")
    text = "\n".join(["file,tags,score", *(f"pictures/{n}.png,{'a|b' if n > 5 else 'a'},{n / 4}"
                                          for n in ROWS)])  # fmt: skip
    table_of(tmp_path, text)
    several = dnn.load_image_folder(tmp_path, table="labels.csv", label="tags", label_separator="|")
    _, loaded, model = trained(tmp_path, several, "multi_label_cross_entropy")
    found = loaded.predict_file(tmp_path / "labels.csv")
    assert found.values.shape == (12, 2)
    assert 0 <= found.metrics["exact_match"] <= 1
    numbers = dnn.load_image_folder(tmp_path, table="labels.csv", target="score")
    prepared, loaded, model = trained(tmp_path, numbers, "mean_squared_error")
    found = loaded.predict_file(tmp_path / "labels.csv")
    np.testing.assert_allclose(
        found.values, loaded.scale.in_units(model.predict(prepared.x)), rtol=1e-5
    )
    assert found.metrics["rmse"] >= 0


def test_a_reading_is_described_and_rebuilt():
    reading = ImageReading.of((3, 4), True, "floats", "drop", "#ff8800")
    assert ImageReading.from_json(json.loads(json.dumps(reading.to_json()))) == reading
    for wrong in ({"values": "odd"}, {"grey": 1}, {"alpha": []}, {"background": 3}):
        with pytest.raises((ValueError, TypeError)):
            ImageReading.from_json({**reading.to_json(), **wrong})


def test_a_picture_of_many_pixels_is_named(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, Image.fromarray(BYTES), "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    with pytest.warns(Image.DecompressionBombWarning) as caught:
        dnn.load_image_folder(folder)
    assert {"cat/large.png: the image has 35 pixels, more than the 30" in str(each.message)
            for each in caught} == {True}  # fmt: skip
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 17)
    with pytest.raises(DataError, match=r"cat/large\.png: cannot be read as an image: .*35 pixels"):
        dnn.load_image_folder(folder)
