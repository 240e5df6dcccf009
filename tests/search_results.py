"""Results of a search that was not run: the accuracy is a known function of the settings."""

import math

import numpy as np

from sightline.search.results import Results

SPACE = [
    {"key": "training.learning_rate", "min": 1e-4, "max": 1e-2, "step": None, "log": True, "integer": False, "if": {}},
    {"key": "model.depth", "min": 1, "max": 6, "step": None, "log": False, "integer": True, "if": {}},
    {"key": "model.score", "choices": ["dot", "cosine"], "if": {}},
    {"key": "model.attention_bias", "choices": [False, True], "if": {}},
    {"key": "model.head_dim", "choices": [8, 16, 32], "if": {"model.score": ["cosine"]}},
]


def make_results(count, *, name="made", noise=0.01, maximize=True, **definition):
    """The metric rises with the depth, and cosine is better than dot. Every fifth trial was pruned, one failed."""
    random = np.random.default_rng(0)
    trials = []
    for i in range(count):
        settings = {
            "training.learning_rate": float(10 ** random.uniform(-4, -2)),
            "model.depth": int(random.integers(1, 7)),
            "model.score": ["dot", "cosine"][random.integers(2)],
            "model.attention_bias": bool(random.integers(2)),
        }
        if settings["model.score"] == "cosine":
            settings["model.head_dim"] = int(random.choice([8, 16, 32]))
        value = 0.5 + 0.04 * settings["model.depth"] + 0.1 * (settings["model.score"] == "cosine")
        value += noise * float(random.normal())
        value = value if maximize else 1 - value
        state = "failed" if i == 3 else "pruned" if i % 5 == 4 else "complete"
        evaluations = {"complete": 4, "pruned": 1, "failed": 0}[state]
        curve = [[7 * k, 0.5 * k, value * (1 - math.exp(-k))] for k in range(1, evaluations + 1)]
        trials.append(
            {
                "trial": i,
                "state": state,
                "values": {"accuracy": value if state == "complete" else curve[-1][2] if curve else None},
                "settings": settings,
                "parameters": 1000 * settings["model.depth"],
                "seconds": 0.5 * evaluations,
                "latency": None,
                "curve": curve,
                "failure": "diverged" if state == "failed" else None,
                "message": "loss must be finite" if state == "failed" else None,
            }
        )
    direction = "maximize" if maximize else "minimize"
    definition = {"objectives": [["accuracy", direction]], "space": SPACE, "sampler": "random", **definition}
    return Results(name, definition, trials)
