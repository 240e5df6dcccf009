"""A file server on loopback that can break connections, ignore ranges and redirect."""

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sightline.data.fetching.catalog import PublicFile


class FileServer(ThreadingHTTPServer):
    """Serves `files` by name."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = {}, []
        self.redirects = {}
        self.breaks = []
        """Bytes after which the connections of the next requests end."""
        self.statuses = []
        """Statuses of the next requests, instead of the files."""
        self.has_ranges = True
        self.declares_length = True

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, name = self.server, self.path.rpartition("/")[2]
        requested = self.headers.get("Range")
        server.requests.append((name, requested))
        if server.statuses:
            return self.send_error(server.statuses.pop(0))
        if name in server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects[name])
            return self.end_headers()
        if name not in server.files:
            return self.send_error(404)
        data, start = server.files[name], 0
        if requested and server.has_ranges:
            start = int(requested.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if server.declares_length:
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        self.wfile.write(body[: server.breaks.pop(0)] if server.breaks else body)
        return None

    def log_message(self, *_):
        pass


def public_file(server, name, data, *, pinned=True):
    """An entry of the catalog for a file of the server."""
    server.files[name] = data
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}" if pinned else None
    evidence = "computed" if pinned else "unpinned"
    return PublicFile(f"{server.address}/{name}", len(data) if pinned else None, digest, evidence)
