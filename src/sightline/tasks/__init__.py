"""One file = one task: its data, its batches, its loss, its metrics."""
