"""Run the benchmarks on a GPU, in bfloat16: python -m benchmarks.gpu [NAME ...] [--peer NAME=PYTHON] [--tiny]"""

from .suite import main

if __name__ == "__main__":
    main("cuda")
