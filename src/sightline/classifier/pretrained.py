"""The model and embedder of a classifier to fit: those of a few-shot run, of an image encoder, or of a text encoder."""

from dataclasses import replace
from pathlib import Path

from .. import config
from ..errors import MissingDependencyError, SightlineError, check, one_of
from ..files import CONFIG
from ..models.embedders import EMBEDDERS, ExternalEmbedder, ImageEmbedder, load_embedder, make_embedder
from ..models.few_shot import FewShot, nearest_mean_model
from ..models.text_embedders import PACKAGES, TextEmbedder
from ..tasks.few_shot.predictor import FewShotPredictor
from .choice import AUTO
from .model_choice import few_shot_models


def load_run(
    folder: Path, name: str | Path, weights: str | Path | None, *, allow_download: bool
) -> tuple[FewShot, ImageEmbedder | None]:
    """The model of a few-shot run, without what only training needs, and its embedder."""
    task = config.read(folder / CONFIG).get("task", "few_shot")
    fix = "train one with sightline train task=few_shot"
    check(task == "few_shot", f"model must be a few-shot model, got {str(name)!r} of task {task!r}; {fix}")
    run = FewShotPredictor.load(folder)
    model, data = run.model, run.config.data
    model.classifier, model.config = None, replace(model.config, num_classes=0)
    weights = data.weights if weights is None else str(weights)
    return model, make_embedder(model, data.embedder, weights, allow_download=allow_download)


def load_image_encoder(name: str, weights: str | Path | None) -> tuple[FewShot, ExternalEmbedder]:
    """An image encoder by its name, with a nearest-mean model for its embeddings."""
    weights = None if weights is None else str(weights)
    try:
        encoder = load_embedder(name, weights=weights)
    except MissingDependencyError:
        raise
    except SightlineError as error:
        if name in EMBEDDERS:
            raise
        reason = f" ({error})" if "/" in name or Path(name).is_dir() else ""
        rule = "model must be the folder of a few-shot run or of a Hugging Face model, hub:owner/name, or"
        known = [AUTO, *few_shot_models(), *EMBEDDERS, *PACKAGES]
        raise SightlineError(f"{rule} {one_of(name, known)}{reason}") from error
    rule = "model must be an encoder without a feature map, or a model for its embeddings such as photos"
    check(not encoder.map_dim, f"{rule}, got {str(name)!r}")
    model = nearest_mean_model(encoder.embed_dim)
    embedder = ExternalEmbedder(name, model.config, weights)
    embedder.loaded = encoder
    return model, embedder


def load_text_encoder(name: str, weights: str | Path | None) -> tuple[FewShot, TextEmbedder]:
    """A text encoder by its name, with a nearest-mean model for its embeddings."""
    check(weights is None, "weights must be left out for a text encoder, got a file")
    embedder = TextEmbedder(name)
    return nearest_mean_model(embedder.encoder.embed_dim), embedder
