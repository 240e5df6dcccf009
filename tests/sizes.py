"""Distinct primes, so that no two sizes can be mistaken for one another."""

B, H, Q, K, D = 2, 3, 5, 7, 11
