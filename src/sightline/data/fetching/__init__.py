"""Fetching public data sets: the catalog, downloads, and the files that the configs expect."""
