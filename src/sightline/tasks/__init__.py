"""One folder per task: config, task, evaluate and predictor."""
