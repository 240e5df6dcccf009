"""Limits on input from outside: files, archives, configs, models and arguments.

Each limit is enforced where the input enters. Code behind that point does not check it again. Access limits as
attributes (`limits.MAX_IMAGE_BYTES`), so that a changed limit takes effect everywhere.
"""

# Images

IMAGE_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "HEIF", "PPM")
"""Pillow readers that may open an image file. Some of the others start programs or follow links."""
MAX_IMAGE_BYTES = 1 << 27
"""Bytes of one encoded image file."""
MAX_IMAGE_PIXELS = 80_000_000
"""Pixels of one image before resizing."""
MAX_IMAGE_SIZE = 4096
"""Side length that images can be resized to."""
MAX_DECODING_PIXELS = 100_000_000
"""Pixels being decoded at the same time, over all threads of a process. At least `MAX_IMAGE_PIXELS`."""

# Image data sets

MAX_IMAGE_FILES = 5_000_000
"""Image files in a folder of class folders."""
MAX_FOLDER_DEPTH = 6
"""Nesting of folders in a data set."""
MAX_ARCHIVE_ENTRIES = 1_000_000
"""Entries of a zip file."""
MAX_ARCHIVE_BYTES = 1 << 34
"""Uncompressed bytes of a zip file."""
MAX_ARRAY_BYTES = 1 << 34
"""Bytes of one array of a data set."""
MAX_CLASS_INDEX = 65_535
"""Largest label of a data set without class names."""
MAX_CLASS_NAMES_BYTES = 1 << 22
"""Bytes of a text file of class names."""
MAX_JSON_BYTES = 1 << 26
"""Bytes of a JSON file that is part of a data set."""
MAX_CLASS_LIST_DEPTH = 8
"""Nesting of groups in a JSON list of classes."""
MAX_IMAGE_SET_BYTES = 1 << 33
"""Memory of the images of a few-shot data set."""
MAX_GLYPHS_BYTES = 1 << 31
"""Memory of a generated glyph data set."""
MAX_ONE_SHOT_RUNS = 1000
"""Runs in an archive of Omniglot one-shot runs."""
MAX_ONE_SHOT_IMAGES = 1000
"""Training images or test images of one Omniglot one-shot run."""

# Records

MAX_WINDOW_TOKENS = 4096
"""Tokens of a map whose windows are put in place, which makes it quadratic in them."""

# Downloads

MAX_DOWNLOAD_BYTES = 1 << 32
"""Bytes of one downloaded file whose size is not known."""
MAX_UNPACKED_BYTES = 1 << 32
"""Bytes of all files of a downloaded tar archive."""
MAX_TAR_HEADER_BYTES = 1 << 16
"""Bytes of an extended header of a tar archive."""

# Text

MAX_TEXT_BYTES = 1 << 30
"""Uncompressed bytes of one text file."""
MAX_TEXT_FILES = 10_000
"""Text files in one folder."""
MAX_CORPUS_CHARS = 1 << 31
"""Characters of all text files of one split."""
MAX_LINE_CHARS = 100_000
"""Characters of one line of text."""
MAX_TOKENIZER_VOCAB_SIZE = 100_000
"""Tokens in the vocabulary of a tokenizer."""

# Captions

MAX_CAPTIONED_IMAGES = 1_000_000
"""Images of one split of a data set with captions."""
MAX_CAPTIONS_BYTES = 1 << 29
"""Bytes of a JSON file of captions."""

# Configs and runs

MAX_CONFIG_BYTES = 1 << 16
"""Bytes of a YAML config."""
MAX_RUN_FILE_BYTES = 1 << 24
"""Bytes of a JSON or text file in a run folder."""
MAX_INT_BITS = 63
"""Bits of an integer in a config."""
MAX_EPOCHS = 10**9
"""Passes over the training data."""
MAX_IMAGE_BATCH_SIZE = 2**20
"""Images in a training batch."""
MAX_TOKEN_BATCH_SIZE = 2**24
"""Tokens in a training batch of text."""
MAX_SENTENCE_TOKENS = 2**13
"""Tokens of a sentence in training and prediction of a translator."""
MAX_EXPORTED_TOKENS = 1024
"""Positions that are reserved in an exported model with sinusoidal positions."""
MAX_EPISODES = 1_000_000
"""Few-shot episodes of one evaluation setting."""
MAX_AUGMENTED_COPIES = 100
"""Augmented copies of each image that a frozen embedder precomputes."""
MAX_EMBEDDINGS_BYTES = 1 << 34
"""Memory of precomputed embeddings."""

# Hyperparameter search

MAX_SEARCH_SETTINGS = 100
"""Settings of a search space."""
MAX_SEARCH_CHOICES = 1000
"""Choices of one setting."""
MAX_SEARCH_TRIALS = 100_000
"""Trials of a search, and combinations of a grid."""
MAX_SEARCH_WORKERS = 256
"""Worker processes of a search on one machine."""
MAX_SEARCH_FILE_BYTES = 1 << 28
"""Bytes of the results of a search."""

# Models

MAX_MODEL_DIM = 1 << 14
"""Width, depth, number of heads or number of positions of a model."""
MAX_MODEL_VOCAB_SIZE = 1 << 20
"""Rows of an embedding table."""
MAX_FEW_SHOT_IMAGE_SIZE = 512
"""Image side length of a few-shot model."""
MAX_EMBEDDER_IMAGE_SIZE = 1024
"""Image side length of a Hugging Face embedder."""
MAX_EMBEDDER_BYTES = 1 << 27
"""Bytes of a weight file of an external embedder."""
MAX_ZOO_MODEL_BYTES = 8_000_000
"""Bytes of all files of a pretrained model in the package, without a fine-tuned backbone."""
MAX_ZOO_BACKBONE_BYTES = 10_000_000
"""Bytes of the fine-tuned backbone of a pretrained model in the package."""

# Decoding

MAX_DECODED_TOKENS = 1 << 14
"""`max_tokens` of a decoding call."""
MAX_BEAMS = 100
"""Beams of a translator's config."""
MAX_DECODING_BEAMS = 1 << 10
"""Beams of a decoding call."""

# Few-shot classifier

MAX_CLASSES = 1000
"""Classes of a classifier."""
MAX_EXAMPLES = 20_000
"""Examples of a classifier, over all classes."""
MAX_CLASS_NAME_CHARS = 200
"""Characters of a class name."""
MAX_EXAMPLE_NAME_CHARS = 4096
"""Characters of the name of an example in a classifier file."""
MAX_STORED_IMAGE_BYTES = 1 << 26
"""Bytes of all images of a classifier; larger ones are stored at a lower resolution."""
MAX_EMBEDDING_VALUE = 1e15
"""Absolute value of a number in an embedding, so that squares are finite."""
MAX_TRANSDUCTIVE_IMAGES = 1000
"""Images of one transductive prediction."""
MAX_EXPLANATION_IMAGES = 16
"""Support images shown in an explanation."""
MAX_EXPLAINED_IMAGES = 1000
"""Images on one page of explanations."""
MAX_OCCLUSION_CELLS = 32
"""Cells along each side of an explanation's occlusion grid."""
MAX_CLASSIFIER_IMAGE_SIZE = 1024
"""Side length of the images stored in a classifier file."""
MAX_CLASSIFIER_TOKENS = 1 << 16
"""Tokens per image in a classifier file."""
MAX_CLASSIFIER_JSON_CHARS = 1 << 24
"""Characters of the JSON metadata of a classifier file."""

# Pages

MAX_EXAMPLES_PER_PAGE = 64
"""Examples shown on one HTML page."""

# Web app

MAX_WEB_JSON_BYTES = 1 << 18
"""Bytes of a request without files."""
MAX_WEB_UPLOAD_BYTES = 1 << 26
"""Bytes of a request with images or an archive."""
MAX_WEB_BYTES_IN_FLIGHT = 1 << 28
"""Bytes of all request bodies that one process reads at the same time."""
MAX_WEB_IMAGE_BYTES = 1 << 25
"""Bytes of one uploaded image. Its pixels are bounded by `MAX_IMAGE_PIXELS`."""
MAX_WEB_UPLOAD_PIXELS = 200_000_000
"""Pixels of all images of one request."""
MAX_WEB_IMAGE_SIDE = 512
"""Side length of the images that are stored; larger ones are downscaled."""
MAX_WEB_ARCHIVE_BYTES = 1 << 28
"""Uncompressed bytes of the images of an uploaded archive."""
MAX_WEB_HEADER_BYTES = 1 << 20
"""Of the header of an uploaded classifier file, which holds the names of its images."""
MAX_WEB_ARCHIVE_PIXELS = 600_000_000
"""Pixels of the images of an uploaded archive: at least those of the largest stored classifier."""
MAX_WEB_TEXT_CHARS = 2000
"""Characters of one text."""
MAX_WEB_INPUTS = 16
"""Texts or images of one prediction request."""
MAX_WEB_FILES = 64
"""Images that are added to a classifier in one request."""
MAX_WEB_TOP_K = 20
"""Classes, words or translations of one prediction."""
MAX_WEB_BEAMS = 10
"""Beams of one prediction."""
MAX_WEB_CLASSES = 100
"""Classes of a stored classifier."""
MAX_WEB_EXAMPLES = 2000
"""Images of a stored classifier."""
MAX_WEB_NAME_CHARS = 100
"""Characters of the name of a classifier or of one of its classes."""
MAX_WEB_CLASSIFIERS = 1000
"""Stored classifiers."""
MAX_WEB_CLASSIFIER_BYTES = 1 << 28
"""Bytes of the images of a stored classifier, with those that can be restored by undo."""
MAX_WEB_STORE_BYTES = 1 << 33
"""Bytes of the images of all stored classifiers."""
MAX_WEB_UNDO_STEPS = 50
"""Changes of a stored classifier that can be undone."""
MAX_WEB_WAITING = 256
"""Requests that wait for one model or one kind of work; further ones are refused."""
MAX_WEB_CONNECTIONS = 1000
"""Open connections of one process."""
MAX_WEB_SECONDS = 45
"""Seconds from the start of a request, with its body, to its answer; less than the 60 that proxies wait."""
MAX_WEB_WORKERS = 64
"""Processes of one server."""
MAX_WEB_FITS = 64
"""Fitted classifiers that one process keeps."""
MAX_WEB_EMBEDDINGS = 8192
"""Embedded images that one process keeps."""
MAX_WEB_CACHE_BYTES = 1 << 29
"""Bytes of the fitted classifiers that one process keeps, and of its embedded images; a single one may have more."""
