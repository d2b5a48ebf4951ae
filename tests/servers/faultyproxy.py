"""A proxy before a real server that fails when it is told to: an HTTP server of threads, one a connection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

FAULT = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


@dataclass
class Proxy:
    """What it does with each request: `fail` says how many of the next ones get `status`.

    With `after` the server is asked first and its answer is lost. `hold` picks requests that wait until `released`.
    """

    target: str
    endpoint: str = ""
    status: int = 500
    fail: int = 0
    after: bool = False
    breaks: str | None = None  # every request whose path holds this fails
    hold: Callable[[str, str], bool] = lambda _method, _path: False
    held: Event = field(default_factory=Event)
    released: Event = field(default_factory=Event)
    seen: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def takes(self, method: str, path: str) -> bool:
        """Note a request; tell whether it is one that fails."""
        if self.hold(method, path):
            self.held.set()
            self.released.wait(60)
        with self._lock:
            self.seen.append(f"{method} {path}")
            self.fail -= 1
            return self.fail >= 0 or bool(self.breaks and self.breaks in path)


@contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    proxy = Proxy(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fails = proxy.takes(self.command, self.path)
            if not fails or proxy.after:
                status, headers, data = self.forward(body)
            if fails:
                status, headers, data = proxy.status, {}, FAULT
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815  the names that http.server calls

        def forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = HTTPConnection(urlsplit(proxy.target).netloc, timeout=30)
            try:
                connection.request(self.command, self.path, body=body, headers=dict(self.headers))
                answer = connection.getresponse()
                hop = {"transfer-encoding", "connection", "date", "server"}
                headers = {name: value for name, value in answer.getheaders() if name.lower() not in hop}
                return answer.status, headers, answer.read()
            finally:
                connection.close()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that is gone is what the tests mean."""

    server = Server(("127.0.0.1", 0), Handler)
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
