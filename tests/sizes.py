"""Sizes as distinct primes, so that no dimension is mistaken for another.

B batch, H heads, Q queries, K keys, D head dimension.
"""

B, H, Q, K, D = 2, 3, 5, 7, 11
