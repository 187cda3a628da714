"""Debian's Chromium for the tests that need a browser: driven by selenium, nothing is downloaded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

AXE = Path(__file__).parent / "vendor" / "axe.js"
SHOTS = Path(os.environ.get("PETTINGLLMS_SHOTS", "build/screenshots"))
"""Where the tests leave a picture of each view."""
WAIT = 30


class Browser:
    """A browser with what the tests do in it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str, text: str = "") -> Any:
        """The first element with a text in it, as soon as there is one."""

        def found() -> Any:
            return next((element for element in self.all(selector) if text in element.text), None)

        return self.until(found, f"no {selector} with {text!r}")

    def until(self, condition: Callable[[], Any], why: str = "") -> Any:
        """The first true value of a condition."""
        wait = WebDriverWait(
            self.driver,
            WAIT,
            poll_frequency=0.05,
            ignored_exceptions=[StaleElementReferenceException],
        )
        return wait.until(lambda _: condition(), why)

    def click(self, selector: str, text: str = "") -> None:
        self.one(selector, text).click()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    @property
    def text(self) -> str:
        return str(self.one("main").text)

    def size(self, width: int, height: int) -> None:
        """The size of the page, as on a device of that width."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def offline(self, off: bool) -> None:
        """Takes the network away, or gives it back."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd(
            "Network.emulateNetworkConditions",
            {"offline": off, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1},
        )

    def shot(self, name: str) -> None:
        """Leaves a picture of the view."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(SHOTS / f"{name}.png"))

    def complaints(self) -> list[str]:
        """What the console has said since the last time: errors, warnings, violations of the policy."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last time."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def faults(self) -> list[str]:
        """Serious faults that axe-core finds: rule, and the first element."""
        self.run(AXE.read_text(encoding="utf-8"))
        violations = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run({resultTypes: ['violations']}).then((r) => done(r.violations));"
        )
        return [
            f"{violation['id']}: {violation['nodes'][0]['html'][:200]} {violation['nodes'][0]['failureSummary']}"
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser without a window; the test is skipped where there is none."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its driver here: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--force-color-profile=srgb", "--hide-scrollbars", f"--user-data-dir={folder}",
    ):  # fmt: skip
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
