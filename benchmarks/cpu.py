"""Run the benchmarks on the CPU: python -m benchmarks.cpu [NAME ...] [--peer NAME=PYTHON] [--tiny]"""

from .suite import main

if __name__ == "__main__":
    main("cpu")
