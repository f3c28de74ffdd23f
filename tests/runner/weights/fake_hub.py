"""A Hugging Face Hub on this machine: as much of its protocol as fetching a model takes."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves one repository, `repo`, at revision "main"; `gated` lets its files be listed and not fetched.

    `refuses_with` is an HTTP status that is all it answers.
    """

    daemon_threads = True

    def __init__(self, repo: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo = repo
        self.folder = folder
        self.gated = False
        self.refuses_with: int | None = None
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self):
        thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, with_body: bool) -> None:
        api, path = f"/api/models/{self.server.repo}", self.path.split("?")[0]
        files = [file for file in self.server.folder.rglob("*") if file.is_file()]
        names = {file.relative_to(self.server.folder).as_posix(): file for file in files}
        resolve = f"/{self.server.repo}/resolve/{COMMIT}/"
        if self.server.refuses_with is not None:
            wrong_token = "Invalid credentials in Authorization header"
            self._send_error(self.server.refuses_with, "", wrong_token if self.server.refuses_with == 401 else "No")
        elif path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in names]
            self._send_json({"id": self.server.repo, "sha": COMMIT, "siblings": siblings})
        elif path.startswith(f"{api}/revision/"):
            self._send_error(404, "RevisionNotFound")
        elif path == f"{api}/tree/{COMMIT}":
            self._send_json(
                [
                    {"type": "file", "path": name, "size": file.stat().st_size, "oid": sha1(name.encode()).hexdigest()}
                    for name, file in names.items()
                ]
            )
        elif path.startswith(resolve) and self.server.gated:
            self._send_error(403, "GatedRepo")
        elif path.startswith(resolve):
            name = path.removeprefix(resolve)
            if with_body:
                self.server.fetched.append(name)
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{sha1(name.encode()).hexdigest()}"'}
            self._send(names[name].read_bytes(), with_body, headers)
        else:
            self._send_error(404, "RepoNotFound")

    def _send_json(self, value: object) -> None:
        self._send(json.dumps(value).encode(), True, {"Content-Type": "application/json"})

    def _send_error(self, status: int, code: str, message: str | None = None) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code if message is None else message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
