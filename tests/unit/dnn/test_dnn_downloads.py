"""Downloads, from a server on this machine."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from support import DATA

import dnn
from dnn.data import known_sets
from dnn.errors import ConfigurationError, DataError

CONTENT = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8).tobytes()
NAMES = ("first.gz", "second.gz")


class Server(ThreadingHTTPServer):
    """Serves `CONTENT` under any name, in ways that may go wrong."""

    daemon_threads = True
    block_on_close = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.takes_ranges = True
        self.cut = None
        self.silent_after = None
        self.piece = 10_000
        self.pause_s = 0.0
        self.log = []
        self.stopping = threading.Event()

    def handle_error(self, request, client_address):
        pass  # a client that went away

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/sets"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        name, asked = self.path.rsplit("/", 1)[-1], self.headers.get("Range")
        server.log.append((name, asked))
        if name not in NAMES:
            self.send_error(404)
            return
        begin = 0
        if asked and server.takes_ranges:
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            whole = len(server.content)
            self.send_header("Content-Range", f"bytes {begin}-{whole - 1}/{whole}")
        else:
            self.send_response(200)
        body = server.content[begin:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, server.cut = server.cut, None
        end = len(body) if cut is None else cut
        for start in range(0, end, server.piece):
            if server.silent_after is not None and start >= server.silent_after:
                server.stopping.wait(5)
                return
            self.wfile.write(body[start : min(start + server.piece, end)])
            if server.pause_s:
                time.sleep(server.pause_s)

    def log_message(self, *given):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    digest = hashlib.sha256(CONTENT).hexdigest()
    files = tuple(known_sets._File(name, len(CONTENT), digest) for name in NAMES)
    source = known_sets._Source("http://127.0.0.1:9/", files)
    monkeypatch.setitem(known_sets.SOURCES, "made", source)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.stopping.set()
        server.shutdown()
        thread.join()


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_download_is_whole_and_done_once(server, tmp_path):
    folder, seen = tmp_path / "a" / "b", []

    def progress(*given):
        seen.append(given)

    assert dnn.download("made", folder, mirror=server.url, progress=progress) == folder
    assert files_in(folder) == dict.fromkeys(NAMES, CONTENT)
    assert seen[-1] == (NAMES[1], len(CONTENT), len(CONTENT))
    assert next(done for name, done, _ in seen if name == NAMES[0]) < len(CONTENT)
    assert len(server.log) == 2
    dnn.download("made", folder, mirror=server.url)
    assert len(server.log) == 2  # what is there and right stays
    (folder / NAMES[0]).write_bytes(b"something else")
    dnn.download("made", folder, mirror=f"{server.url}/")
    assert files_in(folder) == dict.fromkeys(NAMES, CONTENT)


@pytest.mark.parametrize("takes_ranges", [True, False])
def test_a_download_goes_on_where_it_stopped(server, tmp_path, takes_ranges):
    server.cut, server.takes_ranges = 150_000, takes_ranges
    with pytest.raises(
        DataError, match=r"lost after 150000 of 200000 bytes \(the next call goes on"
    ):
        dnn.download("made", tmp_path, mirror=server.url)
    assert files_in(tmp_path) == {f".{NAMES[0]}.part": CONTENT[:150_000]}
    dnn.download("made", tmp_path, mirror=server.url)
    assert server.log[1] == (NAMES[0], "bytes=150000-")
    assert files_in(tmp_path) == dict.fromkeys(NAMES, CONTENT)


def test_a_wrong_checksum_keeps_nothing(server, tmp_path):
    wrong = bytearray(CONTENT)
    wrong[77] ^= 1
    for content in (bytes(wrong), CONTENT + b"more"):
        server.content = content
        with pytest.raises(DataError, match=r"first\.gz: its SHA-256 is \w{64}, not \w{64}"):
            dnn.download("made", tmp_path, mirror=server.url)
        assert files_in(tmp_path) == {}
    server.content = CONTENT
    # A part of another file: found out at the end, and the next call begins anew.
    (tmp_path / f".{NAMES[0]}.part").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="SHA-256"):
        dnn.download("made", tmp_path, mirror=server.url)
    (tmp_path / f".{NAMES[0]}.part").write_bytes(b"x" * 300_000)
    dnn.download("made", tmp_path, mirror=server.url)
    assert files_in(tmp_path) == dict.fromkeys(NAMES, CONTENT)


def test_time_limits(server, tmp_path):
    server.silent_after = 50_000
    with pytest.raises(DataError, match=r"first\.gz: .*timed out"):
        dnn.download("made", tmp_path, mirror=server.url, timeout_s=0.2)
    server.silent_after, server.pause_s = None, 0.03
    with pytest.raises(DataError, match="time_limit_s is over"):
        dnn.download("made", tmp_path, mirror=server.url, time_limit_s=0.1)
    server.pause_s = 0.0
    dnn.download("made", tmp_path, mirror=server.url)
    assert files_in(tmp_path) == dict.fromkeys(NAMES, CONTENT)


def test_the_time_limit_is_kept_where_bytes_come_one_by_one(server, tmp_path):
    server.piece, server.pause_s = 100, 0.01  # a whole chunk takes more than 6 s
    with pytest.raises(DataError, match="time_limit_s is over"):
        dnn.download("made", tmp_path, mirror=server.url, time_limit_s=0.2)
    assert sum(map(len, files_in(tmp_path).values())) < known_sets._CHUNK_BYTES
    server.silent_after = 0
    with pytest.raises(DataError, match="time_limit_s is over"):
        dnn.download("made", tmp_path, mirror=server.url, time_limit_s=0.2)


def test_a_server_that_is_not_there_or_has_no_such_file(server, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/first\.gz: .*refused"):
        dnn.download("made", tmp_path / "set")
    files = (known_sets._File("third.gz", 1, "0" * 64),)
    monkeypatch.setitem(known_sets.SOURCES, "made", known_sets._Source(server.url + "/", files))
    with pytest.raises(DataError, match=r"third\.gz: the server answers 404"):
        dnn.download("made", tmp_path / "set")
    assert files_in(tmp_path / "set") == {}
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(DataError, match="file"):
        dnn.download("made", blocked)


def test_one_process_at_a_time(server, tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="there are no file locks")
    with (tmp_path / f".{NAMES[0]}.part").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is downloading this file"):
            dnn.download("made", tmp_path, mirror=server.url)
    dnn.download("made", tmp_path, mirror=server.url)


def test_what_is_wrong_with_a_call(tmp_path):
    with pytest.raises(ConfigurationError, match=r"unknown data set to download 'mnits'.*'mnist'"):
        dnn.download("mnits", tmp_path)
    with pytest.raises(ConfigurationError, match="timeout_s must be above 0"):
        dnn.download("mnist", tmp_path, timeout_s=0)
    for mirror in ("ftp://a/b", "/etc", "file:///etc"):
        with pytest.raises(ConfigurationError, match="the URL of a folder, http or https"):
            dnn.download("mnist", tmp_path, mirror=mirror)
    assert not [*tmp_path.iterdir()]


def test_the_checksums_of_mnist_are_those_of_its_files():
    folder = DATA / "mnist"
    if not folder.exists():
        pytest.skip("there is no mnist in the folder DIEL_DATA")
    for file in known_sets.SOURCES["mnist"].files:
        raw = (folder / file.name).read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (file.size_bytes, file.sha256)


def test_importing_dnn_data_imports_nothing_of_the_network():
    code = (
        "import sys, dnn.data; "
        "print([n for n in ('urllib.request', 'http.client', 'PIL', 'ssl') if n in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "[]"
