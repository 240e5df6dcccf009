"""`sightline fetch`: miniatures of the data sets are fetched from a server on loopback and read as the configs do."""

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from archives import tar_gz, zipped
from class_folders import png
from sightline import config, files
from sightline.cli import app
from sightline.data import load, load_classes
from sightline.data.fetching.catalog import DATASETS, fetch_hint
from sightline.data.fetching.fetch import fetch
from sightline.data.images.formats.cifar import SUPERCLASSES
from sightline.data.images.formats.omniglot_runs import read_one_shot_runs
from sightline.data.text.corpora import load_monolingual, load_parallel
from sightline.errors import SightlineError
from sightline.run_config import resolve_config

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run_cli(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result


def jpeg(color, size=(100, 90)):
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, "jpeg")
    return stream.getvalue()


def source_of(name):
    """The data section of a config."""
    return resolve_config(ROOT / "configs" / f"{name}.yaml", [])[0].data


def omniglot_files():
    images, shades = {}, iter(range(1000))
    for part, alphabets in {"background": ("Angelic", "Greek"), "evaluation": ("Ge_ez",)}.items():
        for alphabet in alphabets:
            for character in (1, 2):
                for drawer in (1, 2):
                    drawing = np.full((105, 105), 255, dtype=np.uint8)
                    drawing[next(shades), :] = 0
                    stream = io.BytesIO()
                    Image.fromarray(drawing).convert("1").save(stream, "png")
                    name = f"images_{part}/{alphabet}/character{character:02d}/0001_{drawer:02d}.png"
                    images.setdefault(part, {})[name] = stream.getvalue()
    run = {f"run01/{part}/{kind}01.png": png() for part, kind in (("training", "class"), ("test", "item"))}
    run["run01/class_labels.txt"] = b"run01/test/item01.png run01/training/class01.png\n"
    lists = {"train": ("Angelic", 1), "val": ("Greek", 2), "test": ("Ge_ez", 1)}
    rotations = ("000", "090", "180", "270")
    return {
        "images_background.zip": zipped(images["background"]),
        "images_evaluation.zip": zipped(images["evaluation"]),
        "all_runs.zip": zipped(run),
        **{
            f"{split}.txt": "".join(f"{alphabet}/character{number:02d}/rot{r}\n" for r in rotations).encode()
            for split, (alphabet, number) in lists.items()
        },
    }


def test_omniglot_is_packed_for_its_configs(miniature):
    miniature("omniglot", omniglot_files())
    output = run_cli("fetch", "omniglot").stdout
    assert "license: MIT, Brenden Lake" in output
    assert sorted(path.name for path in Path("data").iterdir()) == ["omniglot", "splits"]
    data = source_of("few-shot-omniglot-vinyals")
    splits = load_classes(data.source, split=data.split, size=data.image_size)
    assert splits.train.classes == ("Angelic/character01",)
    assert splits.validation.classes == ("Greek/character02",)
    assert splits.test.classes == ("Ge_ez/character01",)
    full = load(data.source, class_disjoint=True)
    assert (full.train.pixels[0, 0] == 0).nonzero()[:, 0].unique().tolist() == [0]
    assert (full.test.pixels[3, 0] == 0).nonzero()[:, 0].unique().tolist() == [11]
    task_config, _ = resolve_config(ROOT / "configs" / "few-shot-omniglot.yaml", [])
    assert len(read_one_shot_runs(task_config.evaluation.one_shot_runs)) == 1
    assert "Omniglot, 6 classes in 3 groups" in run_cli("data", "data/omniglot").stdout


def cifar_batch(*labels):
    return b"".join(bytes(label) + bytes([label[-1]]) * 3072 for label in labels)


def test_cifar10_is_unpacked(miniature):
    files = {f"cifar-10-batches-bin/data_batch_{i}.bin": cifar_batch((0,), (1,)) for i in range(1, 6)}
    files |= {"cifar-10-batches-bin/test_batch.bin": cifar_batch((1,))}
    files |= {"cifar-10-batches-bin/batches.meta.txt": b"airplane\nautomobile\n"}
    files |= {"cifar-10-batches-bin/readme.html": b"<html>"}
    miniature("cifar10", {"cifar-10-binary.tar.gz": tar_gz(files)})
    run_cli("fetch", "cifar10")
    splits = load(source_of("cifar10").source)
    assert (len(splits.train), len(splits.test), splits.train.classes) == (10, 1, ("airplane", "automobile"))
    assert not Path("data/cifar10/readme.html").exists()
    assert "CIFAR binary files, 2 classes" in run_cli("data", "data/cifar10").stdout
    assert run_cli("fetch", "cifar10").stdout == "cifar10 is in data; remove it to fetch it again\n"


def test_cifar100_comes_with_the_split_of_cifar_fs(miniature):
    classes = sorted(name for names in SUPERCLASSES.values() for name in names.split())
    records = cifar_batch(*((0, label) for label in range(100)))
    files = {"train.bin": records, "test.bin": records, "fine_label_names.txt": "\n".join(classes).encode()}
    archive = tar_gz({f"cifar-100-binary/{name}": data for name, data in files.items()})
    miniature("cifar100", {"cifar-100-binary.tar.gz": archive})
    run_cli("fetch", "cifar100")
    data = source_of("few-shot-cifar-fs")
    splits = load_classes(data.source, split=data.split)
    assert [len(part.classes) for part in (splits.train, splits.validation, splits.test)] == [64, 16, 20]
    assert "trees/maple_tree" in splits.validation.classes
    assert "100 classes" in run_cli("data", "data/cifar100").stdout


def idx(*shape):
    header = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
    return gzip.compress(header + bytes(range(10)) * (int(np.prod(shape)) // 10))


def test_fashion_mnist_has_class_names(miniature):
    files = {}
    for split in ("train", "t10k"):
        files[f"{split}-images-idx3-ubyte.gz"], files[f"{split}-labels-idx1-ubyte.gz"] = idx(10, 28, 28), idx(10)
    miniature("fashion-mnist", files)
    run_cli("fetch", "fashion-mnist")
    splits = load(source_of("fashion-mnist").source)
    assert (len(splits.train), len(splits.test), splits.train.classes[9]) == (10, 10, "Ankle boot")
    assert "T-shirt/top" in run_cli("data", "data/fashion-mnist").stdout


def test_cub_is_resized_and_split(miniature):
    names = [f"{i:03d}.Bird_{i}" for i in range(1, 9)]
    files = {f"CUB_200_2011/images/{name}/{name[4:]}_{j}.jpg": jpeg((20 * j, 9, 9)) for name in names for j in (1, 2)}
    miniature(
        "cub200", {"CUB_200_2011.tgz": tar_gz({**files, "CUB_200_2011/classes.txt": b"1 a", "attributes.txt": b""})}
    )
    run_cli("fetch", "cub200")
    data = source_of("few-shot-cub")
    splits = load_classes(data.source, split=data.split)
    assert splits.train.pixels.shape == (8, 3, 84, 84)
    assert splits.train.classes == ("001.Bird_1", "003.Bird_3", "005.Bird_5", "007.Bird_7")
    assert splits.validation.classes == ("002.Bird_2", "006.Bird_6")
    assert splits.test.classes == ("004.Bird_4", "008.Bird_8")
    assert "8 classes" in run_cli("data", data.source).stdout


def test_multi30k_is_read_by_its_configs(miniature):
    sides = {"de": b"Ein Hund.\nZwei Hunde.\n", "en": b"A dog.\nTwo dogs.\n"}
    parts = ("train", "val", "test_2016_flickr")
    files = {f"{part}.{name}.gz": gzip.compress(sides[name]) for part in parts for name in sides}
    files |= {f"train.{i}.en.gz": gzip.compress(f"Dog {i}.\nCat {i}.\n".encode()) for i in range(1, 6)}
    miniature("multi30k", files)
    run_cli("fetch", "multi30k")
    data = source_of("multi30k-transformer")
    pairs = load_parallel(data.source, languages=data.languages, columns=data.columns)
    assert pairs.train.source == ("Ein Hund.", "Zwei Hunde.")
    assert pairs.test.target == ("A dog.", "Two dogs.")
    assert len(load_parallel("data/multi30k/train").train) == 2  # an extra source of de-en
    captions = load_monolingual(source_of("masked-lm-captions").source).train.sentences
    assert captions == tuple(f"{name} {i}." for i in range(1, 6) for name in ("Dog", "Cat"))


def test_tatoeba_keeps_the_shortest_pairs_and_their_attribution(miniature, monkeypatch):
    monkeypatch.setattr("sightline.data.fetching.arrange.NUM_PAIRS", 2)
    text = "Go.\tGeh.\tCC-BY 2.0 (France) Attribution: tatoeba.org #1\nHi.\tHallo!\tCC\nRun!\tLauf!\tCC\n"
    miniature("tatoeba", {"deu-eng.zip": zipped({"deu.txt": text.encode(), "_about.txt": b""})})
    output = run_cli("fetch", "tatoeba").stdout
    assert "deu-eng.zip has no digest to check, because it changes at its address" in output
    data = source_of("de-en-short")
    pairs = load_parallel(data.source, languages=data.languages, columns=data.columns).train
    assert (pairs.source, pairs.target) == (("Geh.", "Hallo!"), ("Go.", "Hi."))
    assert "Attribution: tatoeba.org #1" in Path("data/de_en.tsv").read_text()


def test_flickr8k_has_images_and_captions(miniature):
    photos = {f"Flicker8k_Dataset/{i}_a.jpg": jpeg((i, 0, 0)) for i in range(3)} | {"__MACOSX/._0_a.jpg": b"x"}
    text = {"Flickr8k.token.txt": b"0_a.jpg#0\tA dog .\n", "Flickr_8k.trainImages.txt": b"0_a.jpg\n", "readme.txt": b""}
    miniature("flickr8k", {"Flickr8k_Dataset.zip": zipped(photos), "Flickr8k_text.zip": zipped(text)})
    run_cli("fetch", "flickr8k")
    assert sorted(path.name for path in Path("data/flickr8k/Images").iterdir()) == [f"{i}_a.jpg" for i in range(3)]
    texts = [path.name for path in sorted(Path("data/flickr8k").glob("*.txt"))]
    assert texts == ["Flickr8k.token.txt", "Flickr_8k.trainImages.txt"]


def test_a_failed_fetch_leaves_nothing_that_looks_like_data_and_goes_on(miniature, server):
    files = omniglot_files()
    miniature("omniglot", files)
    del server.files["all_runs.zip"]
    result = run_cli("fetch", "omniglot", status=2)
    assert "all_runs.zip must be a file, got HTTP status 404" in result.stderr
    assert [path.name for path in Path("data/omniglot").iterdir()] == ["omniglot_105_packed.npz"]
    server.files["all_runs.zip"] = files["all_runs.zip"]
    server.requests.clear()
    run_cli("fetch", "omniglot")
    assert "images_background.zip" not in [name for name, _ in server.requests]
    assert not Path("data/.downloads").exists()


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (tar_gz({"../../evil.bin": b"x"}), "entries must be relative paths"),
        (tar_gz({"cifar-10-batches-bin/test_batch.bin": b""}, kind=b"2"), "entries must be files and folders"),
        (tar_gz({"elsewhere/test_batch.bin": b"x"}), "must contain the binary version of CIFAR, got other files"),
        (tar_gz({"cifar-10-batches-bin/test_batch.bin": b"x" * 9999})[:100], "must be a complete tar.gz archive"),
    ],
    ids=["path", "link", "other files", "truncated"],
)
def test_a_hostile_or_damaged_archive_writes_nothing(miniature, archive, message):
    miniature("cifar10", {"cifar-10-binary.tar.gz": archive})
    assert message in run_cli("fetch", "cifar10", status=2).stderr
    assert [path.name for path in Path("data").iterdir()] == [".downloads"]
    assert not Path("evil.bin").exists()


@pytest.mark.parametrize("name", ["../deu.txt", "/deu.txt", "deu.txt"])
def test_a_hostile_zip_file_writes_nothing(miniature, name):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = 0o120777 << 16  # a symbolic link
        archive.writestr(info, "/etc/passwd")
    miniature("tatoeba", {"deu-eng.zip": stream.getvalue()})
    message = "must be a file or folder, got a link" if name == "deu.txt" else "must be relative paths"
    assert message in run_cli("fetch", "tatoeba", status=2).stderr
    assert not Path("data/de_en.tsv").exists()


def test_a_mirror_folder_is_used_and_kept(miniature, server):
    for name, data in omniglot_files().items():
        files.write_bytes(Path("copies") / name, data)
    miniature("omniglot", omniglot_files())
    run_cli("fetch", "omniglot", "--mirror", "copies", "--out", "elsewhere")
    assert server.requests == []
    assert len(list(Path("copies").iterdir())) == 6
    assert json.loads(Path("elsewhere/splits/omniglot/test.json").read_text()) == ["Ge_ez/character01"]


def test_two_fetches_of_one_data_set_do_not_mix(miniature):
    miniature("omniglot", omniglot_files())
    with (
        files.locked_folder(Path("data/.downloads/omniglot")),
        pytest.raises(SightlineError, match="which another process writes to; wait for it, or use another folder"),
    ):
        fetch("omniglot")


def test_data_without_an_address_say_what_to_do():
    assert "to data/ko_en.tsv.gz" in run_cli("fetch", "ko_en", status=2).stderr
    assert "did you mean 'cifar10'?" in run_cli("fetch", "cifar1", status=2).stderr


def paths_of(values):
    """All paths in the data folder that a config names."""
    if isinstance(values, dict | list):
        return [path for value in (values.values() if isinstance(values, dict) else values) for path in paths_of(value)]
    return [values] if isinstance(values, str) and values.startswith("data/") else []


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_path_of_a_config_belongs_to_a_data_set(path):
    hints = [fetch_hint(found) for found in paths_of(config.read(path))]
    assert hints
    assert all(hints)


@pytest.mark.parametrize(
    ("name", "dataset"), [("cifar10", "cifar10"), ("few-shot-cub", "cub200"), ("multi30k-rnn", "multi30k")]
)
def test_training_without_the_data_names_the_command(name, dataset):
    message = run_cli("train", ROOT / "configs" / f"{name}.yaml", status=2).stderr
    assert message.endswith(f"; to get it: sightline fetch {dataset}\n")


def test_other_paths_have_no_hint():
    assert [fetch_hint(path) for path in ("photos", "data", "data/birds", "cifar10", "mydata/cifar10")] == [""] * 5
    assert fetch_hint("/home/me/data/cifar100/x") == "; to get it: sightline fetch cifar100"


def test_every_file_of_the_catalog_has_a_digest_or_says_why_not():
    for dataset in DATASETS.values():
        assert dataset.license
        assert bool(dataset.outputs) != bool(dataset.instructions)
        for file in (file for output in dataset.outputs for file in output.files):
            assert (file.digest is None) == (file.evidence == "unpinned")
            assert file.digest is None or len(file.digest) == {"sha256": 71, "md5": 36}[file.digest.partition(":")[0]]


def test_the_list_separates_data_sets_that_must_be_made_by_hand_and_says_how():
    fetched, by_hand = run_cli("fetch").stdout.split("\n\n")
    for name, dataset in DATASETS.items():
        [line] = [line for line in (fetched if dataset.outputs else by_hand).split("\n") if line.startswith(f"{name} ")]
        assert dataset.title in line
        assert dataset.instructions in line
    assert by_hand.startswith("These have no public address, so `sightline fetch` cannot download them:\n")
