"""Public data sets that the configs use: addresses, sizes, digests, licenses and the files that are made of them.

The addresses are those of the data sets' pages, torchvision and TensorFlow Datasets; no test contacts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/057f034baf2ecb8530bc5710e5a23584d2a519cc/python"
_VINYALS = (
    "https://raw.githubusercontent.com/jakesnell/prototypical-networks/c9bb4d258267c11cb6e23f0a19242d24ca98ad8a"
    "/data/omniglot/splits/vinyals"
)
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data"
_CAPTIONS = (
    (867_789, "a0e057f07a9733199c0d755d77f6d583dc6f40a3180734b1130a216e2fdf3a3b"),
    (666_845, "d79dd70a9eafb2d1fe40151621278c4ae69b3c148c5052a53d7c7a41bf3ba023"),
    (555_423, "86e16fdcc699bcb6bca0f87c3cf1051f7de5ee3674dd588cedc5200194282749"),
    (465_845, "3771b84e010ad6197806d2a1188cb07c12149e3e0d178dd5966dee5763733686"),
    (375_613, "73988689307fe836994eae59735dc840c15da9775455fa76e6ed22606a042a91"),
)
"""Size and digest of the files of five captions of each image."""
_FLICKR8K = "https://github.com/jbrownlee/Datasets/releases/download/Flickr8k"


@dataclass(frozen=True)
class PublicFile:
    """A file at a public address."""

    address: str
    size: int | None
    """Bytes; None if no source states it."""
    digest: str | None
    """`sha256:` or `md5:` and hexadecimal digits; None if the file changes at its address."""
    evidence: Literal["computed", "published", "unpinned"]
    """Where size and digest come from: computed from a copy of the file; published by others and not computed again;
    or neither, because the file changes."""

    @property
    def name(self) -> str:
        """File name at the address."""
        return PurePosixPath(self.address).name


@dataclass(frozen=True)
class Output:
    """A file or folder that is made of downloaded files."""

    path: str
    """Path in the data folder."""
    arrange: str
    """Function of `arrange` that makes it."""
    files: tuple[PublicFile, ...] = ()
    uses: tuple[str, ...] = ()
    """Outputs that it is made of, after the files."""


@dataclass(frozen=True)
class PublicDataset:
    """A public data set."""

    title: str
    license: str
    outputs: tuple[Output, ...] = ()
    instructions: str = ""
    """What to do where no public address exists."""
    paths: tuple[str, ...] = ()
    """Paths that the configs use, if there are no outputs."""

    @property
    def size(self) -> int | None:
        """Bytes to download; None if unknown."""
        sizes = [file.size for output in self.outputs for file in output.files]
        return None if None in sizes else sum(size or 0 for size in sizes)


def _multi30k(name: str, size: int, digest: str, task: int = 1) -> PublicFile:
    return PublicFile(f"{_MULTI30K}/task{task}/raw/{name}.gz", size, f"sha256:{digest}", "computed")


def _fashion(name: str, size: int, digest: str, evidence: Literal["computed", "published"]) -> PublicFile:
    return PublicFile(f"{_FASHION}/{name}-ubyte.gz", size, f"sha256:{digest}", evidence)


def _vinyals(name: str, size: int, digest: str) -> PublicFile:
    return PublicFile(f"{_VINYALS}/{name}.txt", size, f"sha256:{digest}", "computed")


DATASETS: Mapping[str, PublicDataset] = {
    "omniglot": PublicDataset(
        "Omniglot: 1,623 handwritten characters, the official one-shot runs, and the split of Vinyals et al.",
        "MIT, Brenden Lake; the split: MIT, Jake Snell",
        (
            Output(
                "omniglot/omniglot_105_packed.npz",
                "pack_omniglot",
                (
                    PublicFile(
                        f"{_OMNIGLOT}/images_background.zip",
                        9_464_212,
                        "sha256:ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
                        "published",
                    ),
                    PublicFile(
                        f"{_OMNIGLOT}/images_evaluation.zip",
                        6_462_886,
                        "sha256:1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
                        "published",
                    ),
                ),
            ),
            Output(
                "omniglot/official_one_shot_all_runs.zip",
                "copy_file",
                (
                    PublicFile(
                        f"{_OMNIGLOT}/one-shot-classification/all_runs.zip",
                        352_787,
                        "sha256:437c1eeab0af8484112e1b4cc0f3d541ec727f7c47b9b202da738af9dfd6c325",
                        "computed",
                    ),
                ),
            ),
            Output(
                "splits/omniglot",
                "omniglot_split",
                (
                    _vinyals("train", 133_244, "984522c194c30fb678ce53304a160a42faf5403ad4f9a67010f32dd3a35738e0"),
                    _vinyals("val", 21_312, "11f99e54faee3e26f53d3231c1cceac5bf7b8730e9be31cb6dab256551dc0c1a"),
                    _vinyals("test", 50_372, "845264cc5c156180828ccf17915668b17ee21424d0170df6e7d81676aa5d1204"),
                ),
            ),
        ),
    ),
    "cifar10": PublicDataset(
        "CIFAR-10: 60,000 images in 10 classes",
        "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        (
            Output(
                "cifar10",
                "unpack_cifar",
                (
                    PublicFile(
                        f"{_CIFAR}/cifar-10-binary.tar.gz",
                        170_052_171,
                        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                        "published",
                    ),
                ),
            ),
        ),
    ),
    "cifar100": PublicDataset(
        "CIFAR-100: 60,000 images in 100 classes, and the split CIFAR-FS",
        "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        (
            Output(
                "cifar100",
                "unpack_cifar",
                (
                    PublicFile(
                        f"{_CIFAR}/cifar-100-binary.tar.gz",
                        168_513_733,
                        "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                        "published",
                    ),
                ),
            ),
            Output("splits/cifar100/cifar-fs", "cifar_fs_split"),
        ),
    ),
    "fashion-mnist": PublicDataset(
        "Fashion-MNIST: 70,000 gray images in 10 classes",
        "MIT, Zalando SE",
        (
            Output(
                "fashion-mnist",
                "fashion_mnist",
                (
                    _fashion(
                        "train-images-idx3",
                        26_421_880,
                        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                        "published",
                    ),
                    _fashion(
                        "train-labels-idx1",
                        29_515,
                        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                        "computed",
                    ),
                    _fashion(
                        "t10k-images-idx3",
                        4_422_102,
                        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                        "published",
                    ),
                    _fashion(
                        "t10k-labels-idx1",
                        5_148,
                        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                        "computed",
                    ),
                ),
            ),
        ),
    ),
    "cub200": PublicDataset(
        "CUB-200-2011: 11,788 photos of 200 bird species at 84 pixels, and a split of the classes",
        "photos of Flickr users, for research and education only; cite Wah et al., CNS-TR-2011-001",
        (
            Output(
                "cub200/images_84px.zip",
                "resize_cub",
                (
                    PublicFile(
                        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                        1_150_585_339,
                        "sha256:0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
                        "published",
                    ),
                ),
            ),
            Output("splits/cub", "cub_split", uses=("cub200/images_84px.zip",)),
        ),
    ),
    "multi30k": PublicDataset(
        "Multi30k: 31,014 English image captions with German translations, and 145,000 English ones",
        "none stated in its repository; for research; cite Elliott et al., Multi30K, 2016",
        (
            Output(
                "multi30k",
                "copy_files",
                (
                    _multi30k("train.de", 637_044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
                    _multi30k("train.en", 568_929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
                    _multi30k("val.de", 24_681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
                    _multi30k("val.en", 21_650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
                    _multi30k(
                        "test_2016_flickr.de",
                        22_890,
                        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
                    ),
                    _multi30k(
                        "test_2016_flickr.en",
                        21_077,
                        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
                    ),
                ),
            ),
            Output(
                "multi30k/captions5_en_train.txt.gz",
                "concatenate",
                tuple(_multi30k(f"train.{i}.en", *content, task=2) for i, content in enumerate(_CAPTIONS, start=1)),
            ),
        ),
    ),
    "tatoeba": PublicDataset(
        "Tatoeba: the 50,000 shortest German-English sentence pairs of manythings.org",
        "CC BY 2.0 FR, the authors at tatoeba.org in the third column",
        (
            Output(
                "de_en.tsv",
                "shortest_pairs",
                (PublicFile("https://www.manythings.org/anki/deu-eng.zip", None, None, "unpinned"),),
            ),
        ),
    ),
    "flickr8k": PublicDataset(
        "Flickr8k: 8,091 photos with five English captions each",
        "photos of Flickr users, for research and education only; a copy that the authors do not host",
        (
            Output(
                "flickr8k",
                "unpack_flickr8k",
                (
                    PublicFile(
                        f"{_FLICKR8K}/Flickr8k_Dataset.zip", None, "md5:f18a1e2920de5bd84dae7cf08ec78978", "published"
                    ),
                    PublicFile(
                        f"{_FLICKR8K}/Flickr8k_text.zip", None, "md5:bf6c1abcb8e4a833b7f922104de18627", "published"
                    ),
                ),
            ),
        ),
    ),
    "ko_en": PublicDataset(
        "21,244 Korean-English sentence pairs of Tatoeba, KorSTS and the Korean parallel corpora of Park and others",
        "CC BY 2.0 FR (Tatoeba), CC BY-SA 4.0 (KorSTS), CC BY-SA 3.0 (Park, JHE)",
        instructions="write pairs of https://www.manythings.org/anki/kor-eng.zip, "
        "github.com/kakaobrain/kor-nlu-datasets and github.com/jungyeul/korean-parallel-corpora as lines "
        "'Korean<tab>English' to data/ko_en.tsv.gz",
        paths=("ko_en.tsv.gz",),
    ),
    "glyphs": PublicDataset(
        "printed characters and icons, rendered from fonts of Debian and icon sets of npm",
        "those of the fonts and icon sets, listed beside each file",
        instructions="run python -m benchmarks.printed_from_debian data/glyphs/printed.npz and "
        "python -m benchmarks.icons_from_npm data/glyphs/icons.npz",
        paths=("glyphs",),
    ),
    "domains": PublicDataset(
        "ten small image sets of different kinds, at most 60 classes of 40 images, 96 x 96 pixels",
        "those of the sets, named in the model card of photos",
        instructions="write one zip file of class folders each to data/domains/, of Caltech-101, "
        "clothing-dataset-small, kaa/coins-dataset, glyphs of @fontsource/*, Fruits-360, HiRISE landmarks, "
        "PlantVillage, Sign-Language-Digits-Dataset, free-spoken-digit-dataset as spectrograms, and icons of "
        "@iconify/json",
        paths=("domains",),
    ),
    "languages": PublicDataset(
        "English, German and Korean sentences of Tatoeba with their language",
        "CC BY 2.0 FR",
        instructions="run sightline fetch tatoeba, then "
        "python -m benchmarks.languages data/de_en.tsv data/ko_en.tsv.gz data/languages",
        paths=("languages",),
    ),
}
"""The data sets by name."""
DATA_FOLDER = "data"
"""The folder of the data in the configs."""


def fetch_hint(path: str | Path) -> str:
    """The end of an error message about a missing path: how to get it, if it belongs to a public data set."""
    parts = Path(path).parts
    for name, dataset in DATASETS.items():
        for output in (*(output.path for output in dataset.outputs), *dataset.paths):
            folder = PurePosixPath(output).parent if PurePosixPath(output).suffix else PurePosixPath(output)
            known = (DATA_FOLDER, *(folder if folder.parts else PurePosixPath(output)).parts)
            if any(parts[i : i + len(known)] == known for i in range(len(parts))):
                return f"; to get it: sightline fetch {name}"
    return ""
