"""A trained few-shot model: it is evaluated on new classes, and classifiers are fitted with it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import config, zoo
from ...data.images.class_splits import ClassSplits
from ...data.images.datasets import ImageSet
from ...data.images.formats.omniglot_runs import read_one_shot_runs
from ...data.images.statistics import sample_histogram
from ...data.sources import same_source
from ...errors import SightlineError, check
from ...files import CONFIG, LOG, digest, stored_fingerprint
from ...metrics import per_class_accuracy
from ...models.embedders import ExternalEmbedder, ImageEmbedder, make_embedder
from ...models.few_shot import FewShot
from ...predictor import Predictor, Progress
from ...view import figures
from ...weights import read_weights
from ..figures import FigureFiles, NoFigure, drawable_log, log_line, training_curves
from .config import ExtraSource, FewShotData, FewShotTaskConfig, Setting
from .evaluate import FewShotEvaluation, SettingMetrics, episode_classes, evaluate_episodes, select_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AUXILIARY_CLASSIFIER = "classifier."
"""Prefix of the weights that only training needs."""
PANELS = {"temperature": "temperature of each head", "entropy": "entropy of attention, bits"}


class FewShotPredictor(Predictor):
    """A trained few-shot model, which has no classes yet. `FewShotClassifier.pretrained(run)` is fitted to classes."""

    config: FewShotTaskConfig
    model: FewShot
    evaluate_options = frozenset({"settings", "episodes"})

    def __init__(self, folder: Path, config: FewShotTaskConfig, model: FewShot):
        self.folder, self.config, self.external_model = folder, config, config.data.embedder
        self.model, self.device = model.eval(), torch.device("cpu")

    @classmethod
    def load(cls, path: str | Path) -> "FewShotPredictor":
        folder = Path(path)
        task_config = config.build(FewShotTaskConfig, config.read(folder / CONFIG))
        model = read_weights(folder, lambda: FewShot(task_config.model), depth=task_config.model.depth)
        return cls(folder, task_config, model)

    def check_ready(self) -> None:
        """Raises SightlineError: images can be classified after a classifier is fitted."""
        rule, name = "a few-shot model must be fitted to images of the classes first", zoo.display_name(self.folder)
        raise SightlineError(f"{rule}, got images only; fit it with: sightline fit FOLDER --model {name}")

    def evaluate(
        self,
        data: str | Path | ClassSplits | None = None,
        *,
        progress: Progress | None = None,
        settings: Sequence[str] = (),
        episodes: int | None = None,
    ) -> FewShotEvaluation:
        """Metrics over seeded episodes of test classes, in every setting of the run's config or in `settings`.

        Settings for which other data has too few classes or images are skipped. If none of the config is left, all
        classes of the data are one episode.
        """
        images, split = self.evaluation_split(data, progress)
        config, classes = self.config.evaluation.changed(settings, episodes), episode_classes(images)
        options: dict[str, Any] = {"skip_infeasible": data is not None, "can_lower_way": not settings}
        names, query = select_settings(config, classes, **options)
        embeddings, done = self.embed(images.pixels, progress), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, len(names) * config.episodes)

        options = {"query": query, "episodes": config.episodes, "progress": advance}
        options["with_unknown"] = not self.config.model.transductive  # known queries would attend to unknown ones
        head, parsed = self.model.head, map(Setting.parse, names)
        results = [evaluate_episodes(head, embeddings, classes, setting, **options) for setting in parsed]
        has_runs = config.one_shot_runs is not None and data is None
        return FewShotEvaluation(
            split=split,
            classes=len(classes.names),
            episodes=config.episodes,
            settings=dict(zip(names, map(SettingMetrics.from_results, results), strict=True)),
            per_class=per_class_accuracy(results[0].sums, classes.names),
            one_shot_runs=self.one_shot_runs(config.one_shot_runs or "") if has_runs else None,
            query=None if query == config.query else query,
            skipped_settings=tuple(name for name in config.settings if name not in names),
        )

    def evaluation_split(
        self, data: str | Path | ClassSplits | None = None, progress: Progress | None = None
    ) -> tuple[ImageSet, str]:
        """The images to evaluate on, and the name of their split.

        For the run's data: its test classes, or its validation classes if it has none. For other data: its test
        classes, or all classes if it has none.
        """
        own, run = self.config.data, zoo.display_name(self.folder)
        source, trained_on = own.source if data is None else str(data), None
        if isinstance(data, ClassSplits):
            splits, source = data, "the loaded data"
            is_own = data.test is None and self._is_trained_on(data.train)
        else:
            self.check_data(source, data is not None or Path(source).expanduser().exists())
            is_own = same_source(source, own.source)
            extra_sources = () if is_own else own.extra_sources
            trained_on = next((extra for extra in extra_sources if same_source(source, extra.source)), None)
            splits = self._data_config(source, is_own, trained_on).load(self.config.seed, progress)
        if splits.test is not None:
            return splits.test, "test"
        rule = f"data must have test classes, because {run} was trained on it"
        check(trained_on is None, f"{rule}, got none in {source!r}; name other data")
        if not is_own:
            return splits.train, "full"
        if splits.validation is None:
            raise SightlineError(f"data must have test or validation classes, got neither in {source!r}")
        return splits.validation, "validation"

    def _is_trained_on(self, images: ImageSet) -> bool:
        """Whether these are the training images of the run, by the fingerprint in data.json."""
        levels = digest(sample_histogram(images, self.config.seed).numpy().tobytes())
        return bool(stored_fingerprint(self.folder, "train", "levels") == levels)

    def _data_config(self, source: str, is_own: bool, trained_on: ExtraSource | None) -> FewShotData:
        """The config to evaluate on a source: the run's own, one that it was also trained on, or another."""
        model, data = self.config.model, self.config.data
        changes: dict[str, Any] = {"image_size": model.image_size, "channels": model.channels}
        if not is_own:
            changes = {"image_size": self.embedder.image_size, "channels": self.embedder.channels}
            changes |= {"split": trained_on and trained_on.split, "validation_fraction": 0.0}
            changes["rotations"] = "none" if data.rotations == "train" else data.rotations
        return replace(data, source=source, extra_sources=(), **changes)

    @cached_property
    def embedder(self) -> ImageEmbedder:
        """The backbone of the model, or the external encoder of the run."""
        data, allow_download = self.config.data, self.allow_download
        embedder = make_embedder(self.model, data.embedder, data.weights, allow_download=allow_download)
        assert embedder is not None
        return embedder

    def embed(self, pixels: Tensor, progress: Progress | None = None) -> Tensor:
        """pixels uint8 (N, C, side, side) -> embeddings (N, T, M)"""
        if isinstance(self.embedder, ExternalEmbedder):
            return self.embedder.to(self.device).embed(pixels, progress=progress)
        return self.model.embed_pixels(pixels)

    @torch.no_grad()
    def one_shot_runs(self, path: str | Path) -> tuple[int, int]:
        """The number of correct predictions, and of all, of Omniglot's official one-shot runs."""
        correct = total = 0
        for run in read_one_shot_runs(path, size=self.config.model.image_size):
            way = len(run.support)
            support, query = (self.embed(pixels)[None] for pixels in (run.support, run.query))
            labels = torch.arange(way, device=self.device)[None]
            predicted = self.model.head(support, labels, query, way=way)[0].argmax(-1).cpu()
            correct, total = correct + int((predicted == run.labels).sum()), total + len(predicted)
        return correct, total

    def portable(self) -> tuple[FewShotTaskConfig, dict[str, Any]]:
        state = self.model.state_dict()
        weights = {name: tensor for name, tensor in state.items() if not name.startswith(AUXILIARY_CLASSIFIER)}
        model, data = replace(self.config.model, num_classes=0), replace(self.config.data, weights=None)
        return replace(self.config, out=None, model=model, data=data), weights

    def show(self, inputs: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png") -> FigureFiles:
        """Write figures of the training: accuracy, and the temperature and attention entropy of every head."""
        files = FigureFiles.create(self.folder, out, format)
        files.add("training", training_curves, self.folder, "accuracy")
        files.add("attention", attention_curves, self.folder)
        return files


def attention_curves(folder: Path) -> "Figure":
    """The temperature and the attention entropy of every head during training, from a run's log."""
    records = drawable_log(folder)
    names = dict.fromkeys(name for record in records for name in record.get("validation") or {})
    panels: dict[str, dict[str, figures.Line]] = {}
    for name in names:
        kind, slash, head = name.partition("/")
        line = log_line(records, "validation", name)
        if slash and kind in PANELS and line is not None:
            panels.setdefault(PANELS[kind], {})[head] = line
    if not panels:
        raise NoFigure(f"{zoo.display_name(folder)} has no {LOG} with temperatures")
    return figures.curves(dict(sorted(panels.items(), reverse=True)), title="Attention during training")
