"""JupyterLab on a free loopback port in a folder of its own, and a notebook in it driven by Chromium."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

SHOTS = Path(__file__).parent / "shots"
DEADLINE = 180  # seconds: only a hang takes longer, also on a busy machine
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
                      "--disable-component-update", "--disable-sync", "--no-first-run"]
SESSION = "jupyterapp.shell.currentWidget.sessionContext.session"
QUIET = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}


def chromium() -> str | None:
    """The Chromium or Chrome that is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGUMENTS)
        try:
            yield running
        finally:
            running.close()


@contextmanager
def lab(home: Path, **environment: str) -> Iterator[str]:
    """JupyterLab over `home`/notebooks, as a pattern of its pages: `http://127.0.0.1:port/{}?token=…`."""
    notebooks = home / "notebooks"
    notebooks.mkdir(exist_ok=True)
    for name, values in QUIET.items():
        file = home / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    token, port = secrets.token_hex(16), _free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUCOURSE_", "JPY_"))}
    env |= {"JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            "IPYTHONDIR": str(home / "ipython"), "GPUCOURSE_STATE": str(home / "state"), **environment}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
               "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
               f"--ServerApp.root_dir={notebooks}"]
    with (home / "lab.log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api?token={token}", server, home / "lab.log")
            yield f"http://127.0.0.1:{port}/{{}}?token={token}"
        finally:
            server.terminate()
            server.wait(DEADLINE)


class Notebook:
    """One notebook, open in a page of its own."""

    def __init__(self, page: Page, lab_url: str, path: str):
        self.page, self.lab_url, self.path = page, lab_url, path
        page.set_default_timeout(DEADLINE * 1000)
        self.open()

    def open(self) -> None:
        """Open, or reopen, the notebook and wait until its kernel is ready."""
        self.page.goto(self.lab_url.format(f"lab/tree/{self.path}") + "&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.context?.isReady")
        self.wait_idle()
        self.page.evaluate("jupyterapp.shell.collapseLeft()")

    def run_all(self) -> None:
        """Start running all cells; returns at once."""
        self.command("notebook:run-all-cells")

    def run_cell(self, index: int) -> None:
        """Start running one cell; returns at once."""
        self.page.evaluate("i => { jupyterapp.shell.currentWidget.content.activeCellIndex = i }", index)
        self.command("notebook:run-cell")

    def wait_idle(self, count: int = 0) -> None:
        """Wait until the kernel is idle and at least `count` cells have been executed."""
        self.page.wait_for_function(
            """count => {
              const panel = jupyterapp.shell.currentWidget;
              if (panel?.sessionContext?.session?.kernel?.status !== 'idle') return false;
              const cells = [...panel.content.widgets];
              return cells.filter(c => c.model.executionCount && c.model.executionState !== 'running').length >= count;
            }""", arg=count)

    def busy(self) -> bool:
        """Whether a cell is running. The kernel's own status also says idle when it has answered a widget meanwhile."""
        return self.page.locator(".jp-InputPrompt", has_text="[*]").count() > 0

    def save(self) -> None:
        self.page.evaluate("async () => { await jupyterapp.shell.currentWidget.context.save() }")

    def restart_kernel(self) -> None:
        """Restart the kernel, as the menu does, without its question."""
        self.page.evaluate(f"async () => {{ await {SESSION}.kernel.restart() }}")
        self.wait_idle()

    def command(self, name: str) -> None:
        """Execute one of JupyterLab's commands without waiting for what it starts."""
        self.page.evaluate("name => { void jupyterapp.commands.execute(name) }", name)

    def outputs(self, index: int):
        """The output area of one cell, as a Playwright locator."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-OutputArea-output")

    def screenshot(self, name: str) -> Path:
        SHOTS.mkdir(exist_ok=True)
        file = SHOTS / f"{name}.png"
        self.page.screenshot(path=file)
        return file


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
