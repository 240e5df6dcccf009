"""Code written for speed. Each module holds the fast version beside a plain reference version with the same result."""
