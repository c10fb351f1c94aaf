"""Access to the explorer: which requests are answered, and what slow or many connections can do."""

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from qdhuac.errors import UserError
from qdhuac.view import explorer
from qdhuac.view.explorer import Server

PATIENCE = 1.0  # of a server in a hurry; the other one is never in one, however busy the machine is


class Answers:
    """In place of an explorer: counts what it is asked."""

    def __init__(self):
        self.asked = []

    def run(self):
        self.asked.append("run")
        time.sleep(0.001)
        return {"title": "dns on hopper"}

    def individual(self, id):
        self.asked.append(id)
        raise UserError(f"id {id}: was never in this archive")

    def poses(self, id):
        return bytes(32 << 20)


@contextlib.contextmanager
def serving(patience):
    """A server in a thread."""
    with Server(Answers(), 0, patience) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def door():
    with serving(60.0) as server:
        yield server


@pytest.fixture(scope="module")
def hasty():
    with serving(PATIENCE) as server:
        yield server


async def send(server, request):
    """All that a server sends in answer to these bytes; nothing if it only closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with contextlib.suppress(ConnectionError):
        writer.write(request)
        await writer.drain()
    answer = b""
    with contextlib.suppress(ConnectionError):
        while part := await asyncio.wait_for(reader.read(1 << 20), 20):
            answer += part
    writer.close()
    return answer


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer else 0


def filled(server, text):
    """The bytes of a request in which TOKEN and HOST stand for those of a server."""
    return (
        text.replace("SWAPPED", server.token.swapcase())
        .replace("TOKEN", server.token)
        .replace("HOST", f"127.0.0.1:{server.port}")
        .encode("latin-1")
    )


def get(target="/TOKEN/run", *headers, host="HOST", method="GET", version="HTTP/1.1"):
    """A request as a browser would send it."""
    hosts = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([f"{method} {target} {version}", *hosts, *headers, "", ""])


# A file outside of the page, in many ways to write the way to it; each is tried with and without the token.
CLIMBS = (
    *("../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "..%252f..%252fetc%252fpasswd"),
    *("/etc/passwd", "//etc/passwd", "%2fetc%2fpasswd", "....//....//etc/passwd", "..;/..;/etc/passwd"),
    *(r"..\..\etc\passwd", "..%5c..%5cetc%5cpasswd", "..%c0%af..%c0%afetc/passwd", "..%00/../etc/passwd"),
    *("page.js/../../../etc/passwd", "three.js%00/../../etc/passwd", "file:///etc/passwd", "..%u2215etc%u2215passwd"),
    *("../../dev/zero", "..%2f..%2fdev%2fzero", "page.html", "explorer.py", "__init__.py", "x" * 5000),
)  # fmt: skip
SITE, DEST = "Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: document"
LENGTH, CHUNKED = "Content-Length: 4", "Transfer-Encoding: chunked"
SOCKET = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHM=")
ATTACKS = [
    *((get(f"/{climb}"), 403) for climb in CLIMBS),
    *((get(f"/TOKEN/{climb}"), 404) for climb in CLIMBS),
    *((get(f"/TOKEN/{name}", method=m), 405) for m in ("HEAD", "OPTIONS", "TRACE", "PUT") for name in ("run", "")),
    *((get(method=m), 405) for m in ("POST", "DELETE", "PATCH", "CONNECT", "PRI", "GETT")),
    *((get(method=m), 400) for m in ("get", "G\0ET", "<b>", "", " GET", "GET\t", "GE T")),
    # The token: missing, shortened, changed, encoded, at another place
    *((get(f"/{t}/run"), 403) for t in ("", "x", "%00", "TOKEN%00", "TOKEN%2f", "TOKENx", "..", "SWAPPED", "%54OKEN")),
    *((get(t), 403) for t in ("/", "/run", "/run?token=TOKEN", "//TOKEN/run", "/./TOKEN/run", "/x/../TOKEN/run")),
    *((get(t), 403) for t in ("/?/TOKEN/run", "/x/TOKEN/run", "/#/TOKEN/run", "/%2fTOKEN/run", "/;TOKEN/run", "//[x")),
    (get("/run", "Cookie: token=TOKEN", "Authorization: Bearer TOKEN", "Referer: http://HOST/TOKEN/"), 403),
    (get("/run", "X-Original-URL: /TOKEN/run", "X-Rewrite-URL: /TOKEN/run", "X-Forwarded-Prefix: /TOKEN"), 403),
    # Targets that are no paths
    *((get(t), 400) for t in ("http://HOST/TOKEN/run", "http://evil.example/TOKEN/run", "*", "HOST", "", "TOKEN/run")),
    *((get(t), 400) for t in ("/TOKEN/run x", "/TOKEN/\0run", "/TOKEN/r\tun", "/TOKEN/rün", "/TOKEN/run\r", "\\TOKEN")),
    # Other names of this machine, as in DNS rebinding
    *((get(host=h), 403) for h in ("evil.example", "evil.example:8080", "127.0.0.1", "127.0.0.1:1", "localhost", "")),
    *((get(host=h), 403) for h in ("HOST.evil.example", "x@HOST", "HOST@x", "HOST, x", "HOST/", "[::1]", "0.0.0.0")),
    *((get(host=h), 403) for h in ("127.1", "HOST\x01", "HOST#", "HOST:80", "\xa0HOST", "2130706433", "HOST.")),
    (get(host=None), 403),
    (get("/TOKEN/run", "X-Forwarded-Host: HOST", host="evil.example"), 403),
    (get("/TOKEN/run", "Host: HOST"), 403),
    (get("/TOKEN/run", "host: evil.example"), 403),
    (get(host=None, version="HTTP/1.0"), 403),
    # Other pages
    *((get("/TOKEN/run", f"Origin: {o}"), 403) for o in ("http://evil.example", "null", "https://HOST", "http://HOST.x")),
    *((get("/TOKEN/run", f"Origin: {o}"), 403) for o in ("HOST", "http://127.0.0.1", "http://HOST/", "file://", "http://localhost:1")),
    (get("/TOKEN/run", "Origin: http://HOST", "Origin: http://HOST"), 403),
    (get("/TOKEN/run", "Origin: http://HOST", "Origin: http://evil.example"), 403),
    *((get("/TOKEN/run", f"Sec-Fetch-Site: {s}", DEST), 403) for s in ("cross-site", "same-site", "x", "none, none")),
    *((get("/TOKEN/", SITE, f"Sec-Fetch-Dest: {d}"), 403) for d in ("iframe", "script", "object", "document, x")),
    *((get(t, SITE, DEST), 403) for t in ("/TOKEN/policy?id=0", "/TOKEN/page.js", "/guess/")),
    (get("/TOKEN/run", SITE, "Sec-Fetch-Site: same-origin"), 403),
    (get("/TOKEN/", SITE, DEST, "Sec-Fetch-Dest: iframe"), 403),
    (get("/TOKEN/", SITE, "Sec-Fetch-Site: same-origin", DEST), 403),
    # Questions
    *((get(f"/TOKEN/{q}"), 404) for q in ("individual", "poses?", "individual?id=", "policy?id=-1", "poses?id=1e3")),
    *((get(f"/TOKEN/{q}"), 404) for q in ("individual?id=1&id=2", "policy?id=1&x=2", "individual?x=1", "poses?id=%31")),
    *((get(f"/TOKEN/{q}"), 404) for q in ("policy?id=" + "9" * 5000, "poses?id=1;id=2", "poses?ID=1", "run?x", "?x=1")),
    *((get(f"/TOKEN/{q}"), 404) for q in ("asked", "__init__", "refresh", "run/", "run%20", "poses/1", "RUN")),
    # Requests within requests, and broken ones
    *((get("/TOKEN/run", *h) + "a", 400) for h in ((LENGTH,), (CHUNKED,), (LENGTH, CHUNKED))),
    *((get("/TOKEN/run", f"Content-Length: {n}"), 400) for n in ("-1", "+0", "0x0", "9" * 99, "", "0, 0")),
    *((get("/TOKEN/run", h), 400) for h in ("Host : x", " folded", "no", ": x", "X: \r", "X: \0", "X: a\nY: b", "É:")),
    *((get(version=v), 400) for v in ("HTTP/0.9", "HTTP/2", "HTTP/2.0", "HTTP/1.1 ", "HTTP/1.11", "http/1.1", "")),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("\r\n\r\n" + get(), 400),
    ("\0" * 100 + "\r\n\r\n", 400),
    (get("/" + "x" * 70_000), 400),
    (get("/TOKEN/run", "X: " + "x" * 70_000), 400),
    (get("/TOKEN/run", *["X: x"] * 20_000), 400),
]  # fmt: skip
SILENT = ("", "GET /TOKEN/run\r\n", "GET /TOKEN/run HTTP/1.1\nHost: HOST\n\n", "\x16\x03", get()[:-2])


def test_attacks_are_refused_without_asking_the_explorer_or_repeating_them(door):
    async def attack():
        return await asyncio.gather(*(send(door, filled(door, text)) for text, _ in ATTACKS))

    assert len(ATTACKS) > 200
    door.explorer.asked.clear()
    answers = asyncio.run(attack())
    wrong = [
        (text[:120], status(a), wanted)
        for (text, wanted), a in zip(ATTACKS, answers, strict=True)
        if status(a) != wanted
    ]
    assert wrong == []
    assert door.explorer.asked == []
    contents = {answer.partition(b"\r\n\r\n")[2] for answer in answers}
    assert len(contents) == 5  # fixed sentences
    assert not any(door.token.encode() in answer for answer in answers)


ALLOWED = [
    (get(), 200),
    (get(version="HTTP/1.0"), 200),
    (get("/TOKEN/"), 200),
    (get("/TOKEN/page.js", "Range: bytes=0-1", "If-None-Match: *", "Accept-Encoding: gzip"), 200),
    (get("/TOKEN"), 307),
    (get("/TOKEN/individual?id=7"), 409),
    (get("/TOKEN/run", "Origin: http://HOST", "Sec-Fetch-Site: same-origin", "Cookie: a=\xe9"), 200),
    (get("/TOKEN/run", "Content-Length: 0", "Connection: keep-alive", "Expect: 100-continue"), 200),
    # Followed from a terminal that is a web page itself, or from the file that opens the browser
    (get("/TOKEN/", SITE, DEST, "Sec-Fetch-Mode: navigate"), 200),
    (get("/TOKEN", SITE, DEST, "Sec-Fetch-Mode: navigate"), 307),
    # Answered once and without what is asked for besides
    (get("/TOKEN/", *SOCKET), 200),
    (get("/TOKEN/run", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"), 200),
    (get() + get("/TOKEN/individual?id=8"), 200),
    (get() + "GET /TOKEN/individual?id=8 HTTP/1.1\r\n", 200),
]  # fmt: skip


def test_the_page_gets_one_answer_for_each_request(door):
    door.explorer.asked.clear()
    for text, wanted in ALLOWED:
        answer = asyncio.run(send(door, filled(door, text)))
        assert (status(answer), answer.count(b"HTTP/1.1 ")) == (wanted, 1), text
        head = answer.partition(b"\r\n\r\n")[0].decode()
        assert "Connection: close" in head
        assert not {"Upgrade", "Access-Control-Allow-Origin", "Server"} & {
            line.split(":")[0] for line in head.split("\r\n")
        }
    assert set(door.explorer.asked) == {"run", 7}  # not 8: nothing after the first request is read


def test_the_page_works_under_its_other_name_and_on_the_port_that_browsers_leave_out(door):
    assert status(asyncio.run(send(door, filled(door, get(host=f"localhost:{door.port}"))))) == 200
    try:
        server = Server(None, 80)
    except UserError:
        pytest.skip("port 80 cannot be used here")
    with server:
        assert server.address.startswith("http://127.0.0.1/")


def test_answers_forbid_frames_and_external_sources(door):
    for text in (get("/TOKEN/"), get(), get("/guess/"), get("/TOKEN/nothing"), "\r\n\r\n"):
        lines = asyncio.run(send(door, filled(door, text))).partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines)
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["frame-ancestors"] == policy["default-src"] == policy["form-action"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"


def test_each_start_has_its_own_token_and_one_port():
    before = listening()
    with Server(None, 0) as first, Server(None, 0) as second:
        assert first.token != second.token
        assert min(len(first.token), len(second.token)) >= 20
        assert listening() - before == {first.port, second.port}


def listening():
    """The TCP ports on which this process listens, by the kernel's own tables."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(f"/proc/self/fd/{name}"))
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{table}").read_text().splitlines()
    ]
    return {int(r[1].rpartition(":")[2], 16) for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in inodes}


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


def test_all_of_200_requests_at_once_are_answered(door):
    async def ask():
        return await asyncio.gather(*(send(door, filled(door, get())) for _ in range(200)))

    assert [status(answer) for answer in asyncio.run(ask())] == [200] * 200


def test_what_is_not_a_whole_request_gets_no_answer(hasty):
    async def ask():
        return await asyncio.gather(*(send(hasty, filled(hasty, text)) for text in SILENT))

    assert asyncio.run(ask()) == [b""] * len(SILENT)
    assert hasty.explorer.asked == []


def test_slow_connections_neither_last_nor_need_threads(hasty):
    """300 connections, each of which sends a letter before it would count as silent."""

    async def drip():
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port)
        end = asyncio.create_task(reader.read())
        while not end.done():
            writer.write(b"G")
            await asyncio.wait([end], timeout=PATIENCE / 4)
        await asyncio.gather(end, return_exceptions=True)
        writer.close()
        return time.monotonic() - begun

    async def many():
        slow = [asyncio.create_task(drip()) for _ in range(300)]
        await asyncio.sleep(PATIENCE / 2)
        threads = threading.active_count()
        return threads, await asyncio.gather(*slow)

    before = threading.active_count()
    threads, lasted = asyncio.run(many())
    assert threads == before
    assert max(lasted) < 20 * PATIENCE


def test_of_too_many_connections_without_a_request_the_oldest_are_closed(door, monkeypatch):
    monkeypatch.setattr(explorer, "MOST_SILENT", 3)

    async def connect():
        opened = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(8)]
        assert status(await send(door, filled(door, get()))) == 200
        for reader, _ in opened[:5]:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(opened[-1][0].read(), 0.05)
        for _, writer in opened:
            writer.close()

    asyncio.run(connect())


def test_an_answer_that_is_not_taken_is_given_up(hasty):
    async def ask():
        reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port, limit=1)
        writer.write(filled(hasty, get("/TOKEN/poses?id=1")))
        await asyncio.sleep(3 * PATIENCE)
        taken = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                taken += len(part)
        writer.close()
        return taken

    assert asyncio.run(ask()) < 32 << 20  # what fits into the kernel's buffers
