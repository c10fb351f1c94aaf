"""Access to the explorer: which requests are answered. `qdhuac view` runs in a separate process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from qdhuac.cli import main
from qdhuac.view.explorer import Server

# A file outside of the page, in 20 ways to write the way to it; each is tried from two places.
CLIMBS = [
    r"../../../../../../../etc/passwd",
    r"..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
    r"%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    r"%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    r"..%252f..%252f..%252fetc%252fpasswd",
    r"/etc/passwd",
    r"//etc/passwd",
    r"%2fetc%2fpasswd",
    r"....//....//....//etc/passwd",
    r"..;/..;/..;/etc/passwd",
    r"..%5c..%5c..%5cetc%5cpasswd",
    r"..\..\..\etc\passwd",
    r"..%c0%af..%c0%af..%c0%afetc/passwd",
    r"..%00/../../etc/passwd",
    r"./../.././../etc/passwd",
    r"page.js/../../../../../../etc/passwd",
    r"three.js%00/../../etc/passwd",
    r"file:///etc/passwd",
    r"..%u2215..%u2215etc%u2215passwd",
    r"?/../../../etc/passwd",
]


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    """The address that `qdhuac view` prints, and its process."""
    path = tmp_path_factory.mktemp("runs") / "run"
    options = ["--algorithm", "dns", "--preset", "smoke", "--task", "hopper", "--generations", "2"]
    assert main(["train", *options, "--run-dir", str(path)]) == 0
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would hand on that it is ignored
    command = [sys.executable, "-m", "qdhuac.cli", "view", str(path), "--no-browser", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        yield re.search(r"http://\S+", line).group(), process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def ask(address, path, method="GET", host=None, **headers):
    """Status and content for a path exactly as it is written."""
    place = urlsplit(address)
    connection = HTTPConnection(place.hostname, place.port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": host or place.netloc, **headers}.items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def ports(process):
    """The TCP ports on which a process listens, by the kernel's own tables."""
    inodes = set()
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{process.pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{process.pid}/net/{table}") as file:
            rows = [line.split() for line in file][1:]
        found |= {int(r[1].rpartition(":")[2], 16) for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in inodes}
    return found


def memory_mb(process):
    """The most that a process has ever held."""
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def test_the_explorer_opens_one_port(explorer):
    address, process = explorer
    assert ports(process) == {urlsplit(address).port}


def test_no_request_path_reaches_a_file(explorer):
    address, _ = explorer
    token = urlsplit(address).path
    for climb in CLIMBS:
        for path in (f"/{climb}", f"{token}{climb}"):
            status, content = ask(address, path)
            assert b"root:" not in content, path
            assert status in (400, 403, 404) or path.startswith(f"{token}?"), path


def test_the_token_is_needed_for_everything(explorer):
    address, _ = explorer
    token = urlsplit(address).path.strip("/")
    assert len(token) >= 20
    assert ask(address, f"/{token}/run")[0] == 200
    wrong = ("", "x", token[:-1], token + "x", token.swapcase(), "%00", "%C3%A9")
    for name in (
        "",
        "run",
        "page.js",
        "three.js",
        "archive?generation=1",
        "individual?id=0",
        "policy?id=0",
        "poses?id=0",
    ):
        for guess in wrong:
            path = f"/{guess}/{name}"
            assert ask(address, path)[0] == 403, path
        assert ask(address, f"/{name}")[0] == 403, name
        assert ask(address, f"/{name}{'&' if '?' in name else '?'}token={token}")[0] == 403, name


def test_each_start_has_its_own_token():
    with Server(None, 0) as first, Server(None, 0) as second:
        assert first.token != second.token


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8080"},
        {"host": "127.0.0.1"},  # another port's page
        {"host": "127.0.0.1:1"},
        {"host": "localhost.evil.example:PORT"},
        {"host": "127.0.0.1:PORT.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:PORT"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_other_hosts_and_other_pages_are_refused_with_the_right_token(explorer, headers):
    address, _ = explorer
    place = urlsplit(address)
    headers = {name: value.replace("PORT", str(place.port)) for name, value in headers.items()}
    assert ask(address, f"{place.path}run", **headers)[0] == 403


@pytest.mark.parametrize("header", ["Host: evil.example", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"])
def test_a_repeated_header_is_refused(explorer, header):
    place = urlsplit(explorer[0])
    name = header.partition(":")[0]
    good = {"Host": place.netloc, "Origin": f"http://{place.netloc}", "Sec-Fetch-Site": "same-origin"}
    lines = [f"GET {place.path}run HTTP/1.1", f"Host: {place.netloc}", f"{name}: {good[name]}", header, "", ""]
    if name == "Host":
        del lines[1]
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert b" 403 " in connection.makefile("rb").readline()


def test_a_request_that_is_not_get_is_refused_without_echoing_it(explorer):
    address, _ = explorer
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD", "<b>"):
        status, content = ask(address, f"{urlsplit(address).path}run", method)
        assert (status, content) in ((501, b"not answered"), (501, b"")), method


def test_the_page_works_under_127_0_0_1_and_localhost(explorer):
    address, _ = explorer
    place = urlsplit(address)
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{place.port}"
        same = {"Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
        assert ask(address, f"{place.path}run", host=host, **same)[0] == 200


def test_a_link_to_the_page_can_be_followed_from_elsewhere(explorer):
    """From a terminal that is a web page itself, or from the file that opens the browser."""
    address, _ = explorer
    place = urlsplit(address)
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "document", "Sec_Fetch_Mode": "navigate"}
    assert ask(address, place.path, **followed)[0] == 200
    assert ask(address, "/guess/", **followed)[0] == 403


def test_the_command_line_of_the_browser_does_not_contain_the_token(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with Server(None, 0) as server:
        server.open_browser()
        page = Path(url2pathname(urlsplit(opened[0]).path))
        assert server.token not in opened[0]
        assert f"url={server.address}" in page.read_text()
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.parent.exists()


def test_web_sockets_and_cross_origin_sharing_are_refused(explorer):
    address, _ = explorer
    place = urlsplit(address)
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    upgrade["Sec_WebSocket_Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    for path in ("/", place.path, f"{place.path}scene/"):
        for origin in ({"Origin": "http://evil.example"}, {}):
            assert ask(address, path, **upgrade, **origin)[0] in (200, 403, 404), path
    for path in ("/share", f"{place.path}share", f"{place.path}request_share_url"):
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT"):
            assert ask(address, path, method)[0] in (403, 404, 501), (method, path)


def test_devices_are_not_read(explorer):
    address, process = explorer
    place = urlsplit(address)
    before = memory_mb(process)
    for path in ("/../dev/zero", f"{place.path}../../dev/zero", f"{place.path}..%2f..%2fdev%2fzero", "//dev/zero"):
        status, content = ask(address, path)
        assert status in (403, 404), path
        assert len(content) < 1000
    assert memory_mb(process) - before < 50


def test_the_page_forbids_frames_and_external_sources(explorer):
    address, _ = explorer
    place = urlsplit(address)
    connection = HTTPConnection(place.hostname, place.port)
    connection.request("GET", place.path)
    headers = connection.getresponse().headers
    connection.close()
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["frame-ancestors"] == policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert json.loads(ask(address, f"{place.path}run")[1])["title"] == "dns on hopper"
