"""Image data sets: reading, formats, splits, augmentation, statistics."""
