"""Make the screenshots of the page that the README shows: ``python docs/screenshots.py``.

Needs the extras ``gui``, ``browser`` and ``data``, and a Chromium; ``CHROMIUM`` may name it. It
starts a sweep in a temporary folder, takes its picture while it goes on, and ends it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DOCS = Path(__file__).resolve().parent
LARGEST_BYTES = 200_000
VIEW = {"width": 1240, "height": 860}

STUDY = """\
import time


def prepare(ctx):
    print("512 rows, of which 3 lack a value")
    for step in range(10):
        ctx.progress(step + 1, 10)
        time.sleep(0.1)


def conclude(ctx):
    pass
"""
WORKFLOW = """\
# Learning rates and shapes of a network for handwritten digits.
[workflow]
name = "digits-study"

[[module]]
name = "prepare"
function = "./study.py:prepare"

[[module]]
name = "master"
function = "modules.master:run"

[module.options]
objective = "accuracy"
strategy = "random"
trials = 2000
seed = 1

[module.options.space]
learning_rate = { from = 0.001, to = 1.0, scale = "log" }
batch_size = { from = 16, to = 64, step = 16 }
hidden = [[32], [64], [64, 32], [128, 64]]
activation = ["relu", "tanh"]
epochs = 5

[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = "fill"
threads = 1
options = { dataset = "digits" }

[[module]]
name = "conclude"
function = "./study.py:conclude"

[[group]]
name = "prepare"
modules = ["prepare"]

[[group]]
name = "search"
modules = ["master", "trainer"]
depends = ["prepare"]

[[group]]
name = "conclude"
modules = ["conclude"]
depends = ["search"]
"""


def main() -> None:
    """Make all of them, or those that are named: ``compose``, ``watch``."""
    wanted = sys.argv[1:] or ["compose", "watch"]
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary, "study")
        folder.mkdir()
        (folder / "study.py").write_text(STUDY)
        (folder / "study.toml").write_text(WORKFLOW)
        diel = [sys.executable, "-m", "diel"]
        server = subprocess.Popen(
            [*diel, "gui", ".", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        run = subprocess.Popen(
            [*diel, "run", "study.toml", "-n", "6"], cwd=folder, stdout=subprocess.DEVNULL
        )
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "the server has said no address"
            port = urlsplit(found[0]).port
            page = browser.new_page(viewport=VIEW)
            page.goto(found[0])
            place = f"http://127.0.0.1:{port}"
            if "compose" in wanted:
                page.goto(f"{place}/compose?file=study.toml")
                page.locator('.module[data-module="master"]').click()
                page.get_by_text("No problem found.").wait_for(timeout=120_000)
                time.sleep(1)
                take(page, "page-compose.png")
            if "watch" not in wanted:
                return
            page.goto(place)
            page.get_by_role("link", name="digits-study").click(timeout=60_000)
            page.locator('.diel-graph [data-group="search"].running').wait_for()
            page.locator("[data-part=bars]").get_by_text("best accuracy").wait_for(timeout=120_000)
            page.wait_for_function(
                "document.querySelector('[data-part=bars] progress').value >= 300", timeout=120_000
            )
            time.sleep(1)
            take(page, "page-watch.png")
        finally:
            browser.close()
            for process in (run, server):
                process.send_signal(2)
            for process in (run, server):
                process.wait(60)


def take(page: Any, name: str) -> None:
    """Write a picture of what the window shows."""
    file = DOCS / name
    page.screenshot(path=file)
    size_bytes = file.stat().st_size
    print(f"{file}: {size_bytes:,} bytes")
    assert size_bytes < LARGEST_BYTES, f"more than {LARGEST_BYTES:,} bytes"


if __name__ == "__main__":
    main()
