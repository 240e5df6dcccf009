"""What it costs to begin: `sightline --help`, and `import sightline` beside `import torch`; medians."""

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python alone": ["-c", "pass"],
    "sightline --help": ["-m", "sightline", "--help"],
    "import torch": ["-c", "import torch"],
    "import torch, sightline": ["-c", "import torch, sightline"],
    "import torch, sightline.attention": ["-c", "import torch, sightline.attention"],
}


def main():
    """Print the medians."""
    times = {name: [] for name in COMMANDS}
    for _ in range(7):
        for name, command in COMMANDS.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - begun)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in median.items():
        print(f"{name:<34} {seconds:6.3f} s")
    print(f"help takes {median['sightline --help']:.2f} s (bar 0.5)")
    for name in ("sightline", "sightline.attention"):
        print(f"import {name} adds {median[f'import torch, {name}'] - median['import torch']:.2f} s to torch (bar 0.3)")


if __name__ == "__main__":
    main()
