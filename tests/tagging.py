"""A task on top of the public interfaces: tagging the words of a sentence."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from sightline import config, registry, seeds
from sightline.attention import record_attention
from sightline.errors import SightlineError
from sightline.files import CONFIG
from sightline.layers import Encoder, SinusoidalPositions
from sightline.predictor import Predictor
from sightline.results import MetricsEvaluation
from sightline.training.config import DataConfig, TaskConfig, TrainingConfig
from sightline.training.task import Task
from sightline.weights import read_weights

LINES = [("the cat sees a dog", "D N V D N"), ("the bird sings", "D N V"), ("cats run", "N V"), ("a cat runs", "D N V")]
WORDS = sorted({word for text, _ in LINES for word in text.split()})
TAGS = ["D", "N", "V"]


@dataclass(frozen=True, kw_only=True)
class TaggerConfig:
    embed_dim: int = 16
    depth: int = 1


@dataclass(frozen=True)
class TaggingData(DataConfig):
    source: str = "lines"


@dataclass(frozen=True, kw_only=True)
class TaggingTaskConfig(TaskConfig):
    task: Literal["tagging"] = "tagging"
    data: TaggingData = field(default_factory=TaggingData)
    model: TaggerConfig = field(default_factory=TaggerConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=60, batch_size=2, learning_rate=0.01, evaluate_every=20)
    )

    @classmethod
    def starter(cls):
        return cls()


class Tagger(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), config.embed_dim)
        self.positions = SinusoidalPositions(config.embed_dim)
        self.encoder = Encoder(config.embed_dim, 2, 2 * config.embed_dim, config.depth, norm="pre")
        self.output = nn.Linear(config.embed_dim, len(TAGS))

    def forward(self, ids):
        return self.output(self.encoder(self.positions(self.embedding(ids))))


def encode(text):
    unknown = [word for word in text.split() if word not in WORDS]
    if unknown or not text.split():
        raise SightlineError(f"text must hold known words, got {unknown or 'none'}")
    return torch.tensor([[WORDS.index(word) for word in text.split()]])


def targets(tags):
    return torch.tensor([TAGS.index(tag) for tag in tags.split()])


class TaggingTask(Task):
    monitor, higher_is_better = "accuracy", True

    def __init__(self, config, data, progress=None):
        self.config, self.data, self.model = config, data, Tagger(config.model)
        self.data_fingerprint = {"lines": len(data)}

    @staticmethod
    def load_data(config, progress=None):
        return LINES

    def steps_per_epoch(self, batch_size):
        return len(self.data) // batch_size

    def batches(self, first_step, batch_size, batch_slice):
        for step in itertools.count(first_step):
            chosen = seeds.make_generator(self.config.seed, seeds.ORDER, step).integers(len(self.data), size=batch_size)
            yield [[self.data[i] for i in chosen[indices]] for indices in batch_slice.indices(batch_size)]

    def loss(self, model, batch):
        losses = [F.cross_entropy(model(encode(text))[0], targets(tags)) for text, tags in batch]
        return torch.stack(losses).sum() / self.config.training.batch_size

    def evaluate(self, model, batch_slice):
        correct = [model(encode(text))[0].argmax(-1) == targets(tags) for text, tags in self.data]
        return {"correct": torch.cat(correct).sum().double(), "total": torch.tensor(sum(map(torch.numel, correct)))}

    def metrics(self, sums):
        return {"accuracy": float(sums["correct"] / sums["total"])}


@dataclass(frozen=True)
class Tags:
    tags: list[str]
    error: None = None

    def to_dict(self):
        return {"tags": self.tags}

    def summary(self, top=None):
        return " ".join(self.tags)


class TaggingPredictor(Predictor):
    def __init__(self, folder, config, model):
        self.folder, self.config, self.model = folder, config, model.eval()

    @classmethod
    def load(cls, path):
        task_config = config.build(TaggingTaskConfig, config.read(Path(path) / CONFIG))
        model = read_weights(Path(path), lambda: Tagger(task_config.model), depth=task_config.model.depth)
        return cls(Path(path), task_config, model)

    def parse_inputs(self, arguments):
        return list(arguments)

    def prepare(self, item):
        return encode(item)

    def predict_batch(self, prepared, *, top_k=None):
        return [Tags([TAGS[i] for i in self.model(ids)[0].argmax(-1)]) for ids in prepared]

    def explain_batch(self, prepared, inputs, *, progress=None, top_k=None):
        with record_attention(self.model) as record:
            predictions = self.predict_batch(prepared)
        return predictions, record[-self.config.model.depth :].view(inputs[-1].split())

    def evaluate(self, data=None, *, progress=None):
        task = TaggingTask(self.config, LINES)
        return MetricsEvaluation("test", task.metrics(task.evaluate(self.model, None)))


SPEC = registry.TaskSpec("tagging", TaggingTaskConfig, TaggingTask, TaggingPredictor)
