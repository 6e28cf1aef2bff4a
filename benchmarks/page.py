"""A run of 1,000 ranks and 10,000 trials on the page: from a change to its picture, and frames.

    benchmarks/page.py [--quick] [--json PATH]

Needs the extras `gui` and `browser` and a Chromium; ``CHROMIUM`` may name it. Server, browser and
the made-up run share the machine.
"""

from __future__ import annotations

import argparse
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

import harness

SCROLL = "document.querySelector('[data-part=ranks] .diel-scroller').scrollBy(0, 400)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sys.path[:0] = [str(harness.REPOSITORY), str(harness.REPOSITORY / "tests")]
    changes, seconds = (8, 5.0) if options.quick else (40, 30.0)
    with tempfile.TemporaryDirectory() as folder:
        shown_s, longest_ms, opening_ms, sweep_ms = measure(Path(folder), changes, seconds)
    print(f"{len(shown_s)} changes: longest {max(shown_s):.3f} s until shown")
    harness.report(
        [
            harness.compare("page_change_to_picture", shown_s, None, "", "s"),
            harness.compare("page_longest_frame", [longest_ms], None, "", "CPU ms"),
            harness.compare("page_sweep_opening_longest_task", [opening_ms], None, "", "CPU ms"),
            harness.compare("page_sweep_longest_frame", [sweep_ms], None, "", "CPU ms"),
        ],
        options.json,
    )


def measure(folder: Path, changes: int, seconds: float) -> tuple[list[float], float, float, float]:
    """Return the seconds until each change was shown, and the longest tasks of the browser in ms.

    Of the page of the run; of that of its sweep while it is opened, and then.
    """
    from made_up_run import MadeUpRun, longest_task_ms, seconds_until_shown
    from playwright.sync_api import sync_playwright

    run = MadeUpRun(folder)
    command = [sys.executable, "-m", "diel", "gui", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found, "the server has said no address"
        port, token = urlsplit(found[0]).port, found[0].rpartition("token=")[2]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            path = run.directory.path.name
            page.goto(f"http://127.0.0.1:{port}/run?path={path}&token={token}")
            page.locator("[data-part=bars] progress").first.wait_for()
            time.sleep(3)  # the page has come to rest
            shown_s = [seconds_until_shown(page, run) for _ in range(changes)]

            def watch() -> None:
                until_s = time.monotonic() + seconds
                while time.monotonic() < until_s:
                    run.step(1)
                    page.evaluate(SCROLL)
                    page.wait_for_timeout(200)

            longest_ms = longest_task_ms(browser, page, watch)
            place = f"http://127.0.0.1:{port}/sweep?path={path}"
            opening_ms, sweep_ms = longest_of_sweep_ms(browser, page, run, place, seconds)
            browser.close()
    finally:
        run.end()
        server.send_signal(2)
        server.wait(20)
    return shown_s, longest_ms, opening_ms, sweep_ms


def longest_of_sweep_ms(
    browser: Any, page: Any, run: Any, place: str, seconds: float
) -> tuple[float, float]:
    """Return the longest task of a sweep's page, in ms: at its opening, and while it goes on.

    Until all figures are drawn; then it is scrolled, and grows.
    """
    from made_up_run import longest_task_ms

    ledger = run.write_ledger()

    def open_it() -> None:
        page.goto(place)
        page.locator(".drawn svg").first.wait_for(timeout=60_000)
        for top in range(0, 3000, 300):
            page.evaluate("top => scrollTo(0, top)", top)
            page.wait_for_timeout(600)

    opening_ms = longest_task_ms(browser, page, open_it)

    def watch() -> None:
        until_s, trial = time.monotonic() + seconds, run.trials
        while time.monotonic() < until_s:
            with ledger.open("a") as file:
                file.write(run.record(trial))
            trial += 1
            page.evaluate("place => scrollTo(0, place)", trial * 150 % 2400)
            page.wait_for_timeout(500)

    return opening_ms, longest_task_ms(browser, page, watch)


if __name__ == "__main__":
    main()
