"""Benchmarks of Sightline: see README.md in this folder."""
