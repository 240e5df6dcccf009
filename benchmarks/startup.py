"""Startup time: `sightline --help`, and `import sightline` relative to `import torch`. Prints medians of 7 runs."""

import statistics
import subprocess
import sys
import time

MAX_HELP_SECONDS, MAX_IMPORT_SECONDS = 0.5, 0.3
COMMANDS = {
    "python": ["-c", "pass"],
    "sightline --help": ["-m", "sightline", "--help"],
    "import torch": ["-c", "import torch"],
    "import torch, sightline": ["-c", "import torch, sightline"],
    "import torch, sightline.attention": ["-c", "import torch, sightline.attention"],
}


def main():
    """Run the commands alternately and print the medians."""
    times = {name: [] for name in COMMANDS}
    for _ in range(7):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in median.items():
        print(f"{name:<34} {seconds:6.3f} s")
    print(f"--help takes {median['sightline --help']:.2f} s (limit {MAX_HELP_SECONDS} s)")
    for name in ("sightline", "sightline.attention"):
        added = median[f"import torch, {name}"] - median["import torch"]
        print(f"import {name} adds {added:.2f} s to torch (limit {MAX_IMPORT_SECONDS} s)")


if __name__ == "__main__":
    main()
