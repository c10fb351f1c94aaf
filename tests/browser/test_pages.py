"""The explorer and the report in a real browser: `make test-browser`. QDHUAC_SHOTS names a folder for screenshots."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from qdhuac.store.run_folder import RunDir
from qdhuac.training.build import native_task
from qdhuac.view import explorer

CLI = [sys.executable, "-m", "qdhuac.cli"]
SLOW = 120_000  # milliseconds; the machine may be busy


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A small run of a robot, with HTML in its name."""
    path = tmp_path_factory.mktemp("runs") / "<b>run<b>"
    options = ["--algorithm", "dns", "--preset", "smoke", "--task", "walker2d", "--generations", "4"]
    subprocess.run([*CLI, "train", *options, "--run-dir", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def address(run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Tests that were started in the background ignore Ctrl-C, and what they start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*CLI, "view", str(run), "--no-browser", "--port", str(port)], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            line = server.stdout.readline()
            assert re.fullmatch(rf"open http://127\.0\.0\.1:{port}/\S+/ in a browser; Ctrl-C ends\n", line)
            yield line.split()[1]
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
        finally:
            server.kill()


@pytest.fixture
def page():
    """A page whose console must have no errors, and which fetches nothing from other sites."""
    troubles = []
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1300, "height": 950})
        page.set_default_timeout(SLOW)
        page.on("console", lambda m: troubles.append(m.text) if m.type == "error" else None)
        page.on("response", lambda r: troubles.append(r.url) if r.status >= 400 else None)
        page.on("pageerror", lambda e: troubles.append(str(e)))
        page.on("request", lambda r: None if _is_local(r.url) else troubles.append(r.url))
        yield page
        page.unroute_all(behavior="ignoreErrors")
        browser.close()
    assert troubles == []


def _is_local(url):
    return re.match(r"(http|ws)://127\.0\.0\.1:|file:|data:|blob:|about:", url) is not None


def shoot(page, name):
    if folder := os.environ.get("QDHUAC_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def points(page):
    return page.locator("#archive .scatterlayer .points path")


def test_the_explorer(page, address):
    page.goto(address)
    expect(page.locator("#name")).to_have_text("<b>run<b>", timeout=SLOW)  # as text: it is not bold
    expect(page.locator("#which")).to_have_text("generation 4", timeout=SLOW)
    expect(page.locator("#left .reward .scatterlayer")).to_be_visible(timeout=SLOW)
    expect(page.locator("#left .contacts .scatterlayer")).to_be_visible()
    canvas = page.locator("#scene canvas")
    expect(canvas).to_be_visible(timeout=SLOW)
    page.wait_for_timeout(3000)
    shoot(page, "explorer")
    many = points(page).count()
    assert many > 1

    # The robot walks: the picture of the scene changes.
    before = canvas.screenshot()
    page.wait_for_timeout(1500)
    assert canvas.screenshot() != before

    # A click on another individual shows that one, to the left or beside it.
    best = page.locator("#left b").inner_text()
    page.locator("input[name=side][value=right]").check()
    for n in range(many):
        box = points(page).nth(n).bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(page.locator("#right b")).to_be_visible(timeout=SLOW)
        if page.locator("#right b").inner_text() != best:
            break
    assert page.locator("#right b").inner_text() != best
    assert page.locator("#left b").inner_text() == best
    page.wait_for_timeout(2000)
    shoot(page, "explorer-two")
    with page.expect_download() as download:
        page.locator("#right a").click()
    assert download.value.suggested_filename == "policy.safetensors"

    page.locator("#right button").click()
    expect(page.locator("#right")).to_contain_text("click an individual to compare")

    # The slider goes back in time; the filter hides an operator.
    page.locator("#generation").fill("1")
    expect(page.locator("#which")).to_have_text("generation 1")
    expect(page.locator("#count")).not_to_have_text(re.compile(rf"^{many} of"))
    page.locator("#generation").fill("4")
    page.locator("#operators label", has_text="Iso+Line").locator("input").uncheck()
    expect(page.locator("#count")).to_have_text(re.compile(rf"^(?!{many} ).* of {many} individuals"))
    assert page.locator("#trouble").inner_text() == ""


def test_the_file_that_opens_the_browser_leads_to_the_page(page, run, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with explorer.Server(
        explorer.Explorer(RunDir.open(run), native_task(RunDir.open(run).read_config(), threads=1)), 0
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.open_browser()
        page.goto(opened[0])
        expect(page).to_have_url(server.address, timeout=SLOW)
        expect(page.locator("#which")).to_have_text("generation 4", timeout=SLOW)


def change(page, name, function):
    """Pass the server's answers to one request through a function."""

    def answer(route):
        content = route.fetch().json()
        function(content)
        route.fulfill(json=content)

    page.route(re.compile(rf"/{name}(\?|$)"), answer)


@pytest.mark.parametrize(("size", "maps"), [(1, 1), (4, 6)])
def test_one_descriptor_is_a_strip_and_four_are_pairs(page, address, size, maps):
    change(page, "run", lambda run: run.update(labels=["<i>foot"] * size, bounds=[[0.0] * size, [1.0] * size]))
    change(page, "archive", lambda a: a.update(descriptor=[(2 * d)[:size] for d in a["descriptor"]]))
    page.goto(address)
    expect(page.locator("#left .reward .scatterlayer")).to_be_visible(timeout=SLOW)
    assert page.locator("#archive .xtitle, #archive [class^=x][class$=title]").first.text_content() == "<i>foot"
    assert page.locator("#archive .cartesianlayer > .subplot").count() == maps
    assert points(page).count() % maps == 0
    shoot(page, f"descriptors-{size}")
    points(page).last.click(force=True)
    expect(page.locator("#left b")).to_be_visible(timeout=SLOW)


def test_it_plays_and_follows_a_run_that_is_still_training(page, address):
    goal = [2]
    change(page, "run", lambda run: run.update(last=goal[0]))
    page.goto(address)
    expect(page.locator("#which")).to_have_text("generation 2", timeout=SLOW)
    expect(page.locator("#count")).to_have_text(re.compile(r"\d+ of \d+"), timeout=SLOW)
    first = page.locator("#count").inner_text()
    goal[0] = 4
    expect(page.locator("#which")).to_have_text("generation 4", timeout=SLOW)
    expect(page.locator("#count")).not_to_have_text(first, timeout=SLOW)
    with page.expect_request(re.compile("archive.generation=3")):  # on its way from the first to the last
        page.locator("#play").click()
    expect(page.locator("#play")).to_have_text("play", timeout=SLOW)
    expect(page.locator("#which")).to_have_text("generation 4")


def test_the_report_opens_from_disk(page, run):
    page.goto((run / "report.html").as_uri())
    expect(page.locator("svg").first).to_be_visible()
    assert page.locator("figure img").evaluate("image => image.complete && image.naturalWidth") == 320
    shoot(page, "report")
