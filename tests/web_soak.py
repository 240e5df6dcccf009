"""The long part of the fuzz tests, against a real server: `make soak`.

At least 2,000 generated requests and 500 damaged images and archives. No answer may be a 5xx, and the memory of the
server must not grow.
"""

import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import schemathesis

from web_client import WebServer
from web_fuzz import call_operations, send_broken_files

CASES, FILES, ROUNDS = 2000, 500, 5
MAX_GROWTH = 1.1
"""Memory at the end, relative to that after the first round."""


def main():
    with tempfile.TemporaryDirectory() as folder, WebServer(Path(folder), "de-en") as server:
        pid, client = server.command.process.pid, server.client
        schema = schemathesis.openapi.from_url(f"{client.base_url}openapi.json")
        cases, files, memory, start = 0, 0, [], time.monotonic()
        for i in range(ROUNDS):
            statuses = call_operations(schema, client, max_examples=25, seed=i)
            broken = send_broken_files(client, FILES // ROUNDS, seed=i)
            cases, files = cases + sum(statuses.values()), files + sum(broken.values())
            memory.append(resident_mib(pid))
            line = f"round {i + 1}: {cases} requests {dict(sorted(statuses.items()))}, {files} damaged files"
            sys.stdout.write(f"{line} {dict(sorted(broken.items()))}, {memory[-1]:.0f} MiB\n")
            sys.stdout.flush()
            assert not [status for status in (*statuses, *broken) if status >= 500]
        assert cases >= CASES, cases
        assert files >= FILES, files
        assert memory[-1] < MAX_GROWTH * memory[0], memory
        sys.stdout.write(f"no 5xx in {cases} requests and {files} damaged files, {time.monotonic() - start:.0f} s\n")


def resident_mib(pid):
    [kib] = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) / 1024


if __name__ == "__main__":
    main()
