"""Requests and answers of the API. They are checked where they enter, and documented by OpenAPI."""

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .. import limits
from ..names import printable


def _name(value: str) -> str:
    """Printable text with something to see in it, in the form in which equal names are equal."""
    value = unicodedata.normalize("NFC", value.strip())
    if not value or printable(value) != value or not any(char.isprintable() and not char.isspace() for char in value):
        raise ValueError("printable text with at least one character")
    return value


Name = Annotated[str, Field(min_length=1, max_length=limits.MAX_WEB_NAME_CHARS), AfterValidator(_name)]
Identifier = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
RowId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Head = Annotated[int, Field(ge=0, le=1000)]
Position = Annotated[int, Field(ge=0, le=limits.MAX_SENTENCE_TOKENS)]
LayerName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.]+$")]
Form = Literal["packed", "lists"]
TopK = Annotated[int, Field(ge=1, le=limits.MAX_WEB_TOP_K)]
Beams = Annotated[int, Field(ge=1, le=limits.MAX_WEB_BEAMS)]
Positions = Annotated[list[Position], Field(max_length=1000)]
Heads = Annotated[dict[LayerName, Annotated[list[Head], Field(max_length=100)]], Field(max_length=100)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PredictRequest(_Request):
    """Texts for a model, and how to predict."""

    texts: Annotated[
        list[Annotated[str, Field(max_length=limits.MAX_WEB_TEXT_CHARS)]],
        Field(min_length=1, max_length=limits.MAX_WEB_INPUTS, description="One or several texts."),
    ]
    top_k: Annotated[TopK | None, Field(description="Number of translations or words.")] = None
    num_beams: Annotated[Beams | None, Field(description="Beams of a translation or caption; 1 is greedy.")] = None
    attention: Annotated[Form | None, Field(description="Whether to return the attention, and in which form.")] = None
    remove_tokens: Annotated[Positions, Field(description="Positions of input_tokens to leave out.")] = []
    ablate_heads: Annotated[Heads, Field(description="Heads to switch off, by layer; an empty list means all.")] = {}


class ExampleIds(_Request):
    """Images of a classifier."""

    ids: Annotated[list[RowId], Field(min_length=1, max_length=limits.MAX_WEB_EXAMPLES)]


class NewClassifier(_Request):
    """A classifier without classes."""

    name: Name = "My classifier"
    model: Name = "auto"


class ClassifierChange(_Request):
    """New values of a classifier."""

    name: Name | None = None
    model: Name | None = None


class ClassName(_Request):
    """The name of a class."""

    name: Name


class ExampleChange(_Request):
    """The class that an image moves to."""

    class_id: RowId


class FailedFile(BaseModel):
    """A file that could not be used."""

    name: str
    error: str


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    error: str
    errors: Annotated[list[FailedFile] | None, Field(description="Of several files, why each was refused.")] = None


class Example(BaseModel):
    """An image of a class."""

    id: int
    name: str
    width: int
    height: int
    url: str


class ClassState(BaseModel):
    """A class with its images."""

    id: int
    name: str
    accuracy: float | None
    examples: list[Example]


class Estimate(BaseModel):
    """The accuracy on held-out images, with its 95% interval."""

    accuracy: float
    low: float
    high: float
    images: int


class FitState(BaseModel):
    """How a classifier was fitted."""

    model: str
    model_reason: str | None
    hint: str | None
    method: str
    seconds: float
    estimate: Estimate | None
    rejected_known: float | None
    accepted_unknown: float | None


class Suggestion(BaseModel):
    """The class that an image looks like."""

    class_id: int
    name: str
    probability: float


class WarningState(BaseModel):
    """Something about images that their owner should know."""

    kind: Literal["duplicate", "similar", "blank", "label"]
    text: str
    examples: list[int]
    suggestion: Suggestion | None


class ClassifierState(BaseModel):
    """A stored classifier: its classes and images, and how well it is fitted to them."""

    id: str
    name: str
    model: str
    version: int
    created: str
    updated: str
    classes: list[ClassState]
    num_examples: int
    bytes: int
    undo: str | None
    fitted: bool
    fitting: Annotated[bool, Field(description="Whether it is still being fitted: read it again later.")]
    reason: Annotated[str | None, Field(description="Why it is not fitted.")]
    fit: FitState | None
    warnings: list[WarningState]


class FitProgress(BaseModel):
    """How far a fit is. If several models are compared, an image counts once for each."""

    embedded: int
    images: int


class ClassifierStatus(BaseModel):
    """What changes of a stored classifier while it is open."""

    version: Annotated[int, Field(description="A higher one than before means that the classifier was changed.")]
    progress: Annotated[FitProgress | None, Field(description="None if the process that answers does not fit it.")]


class AddedExamples(ClassifierState):
    """A stored classifier after images were added."""

    added: list[int]
    errors: list[FailedFile]


class ClassifierSummary(BaseModel):
    """A stored classifier in a list."""

    id: str
    name: str
    model: str
    version: int
    created: str
    updated: str
    num_classes: int
    class_names: Annotated[list[str], Field(description="Of the first classes.")]
    num_examples: int
    bytes: int


class ClassifierList(BaseModel):
    """All stored classifiers, the last changed first."""

    classifiers: list[ClassifierSummary]


class FewShotAnswer(BaseModel):
    """The prediction for one image."""

    label: str | None = None
    closest: str | None = None
    known: bool | None = None
    confidence: float | None = None
    known_score: float | None = None
    none_score: float | None = None
    scores: dict[str, float] | None = None
    error: str | None = None


class FewShotAnswers(BaseModel):
    """Predictions of a stored classifier, and the version that made them."""

    version: int
    seconds: float
    predictions: list[FewShotAnswer]


class LeftOut(BaseModel):
    """The `none_score` of the images of the closest class, each left out: what that of an image is compared with."""

    label: str
    images: int
    mean: float | None
    highest: float | None


class ExplainedAnswer(BaseModel):
    """A prediction of a stored classifier and what speaks for it and against it."""

    version: int
    seconds: float
    prediction: FewShotAnswer
    left_out: LeftOut
    explanation: dict[str, Any]


class ModelAnswer(BaseModel):
    """The prediction for one input; further values depend on the task."""

    model_config = ConfigDict(extra="allow")
    error: str | None = None
    inspection: dict[str, Any] | None = None


class ModelAnswers(BaseModel):
    """Predictions of a served model."""

    model: str
    task: str
    seconds: float
    predictions: list[ModelAnswer]


class ModelInfo(BaseModel):
    """A served model."""

    name: str
    task: str
    input: Literal["text", "image"]
    title: str
    description: str
    options: list[str]
    examples: Annotated[list[str], Field(description="Inputs to try: texts, or images as data URLs.")]
    pens: Annotated[dict[str, str], Field(description="Colors of drawings that it knows, by name; none for photos.")]
    max_chars: int
    max_tokens: Annotated[int | None, Field(description="Tokens of a text; one is a word or a part of one.")]
    has_attention: bool
    mask: str | None
    classes: list[str] | None


class FewShotModel(BaseModel):
    """A model that classifiers can be fitted with."""

    name: str
    available: bool
    reason: str | None


class ModelList(BaseModel):
    """All served models, and bounds on requests."""

    models: list[ModelInfo]
    few_shot_models: list[FewShotModel]
    pretrained: Annotated[dict[str, list[str]], Field(description="The pretrained models of the package by task.")]
    missing: Annotated[
        dict[str, str], Field(description="Pretrained models that need a package, and how to install it.")
    ]
    limits: dict[str, int]
    command: Annotated[
        str | None, Field(description="What starts this server again; further models can be named after it.")
    ]


class Status(BaseModel):
    """The state of the server."""

    status: str
