"""One JupyterLab and one browser for all browser tests; skipped where there is no Chromium."""

import pytest
from lab import Notebook, browser, chromium, lab


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """JupyterLab's folder; the notebooks that a test opens go into its notebooks/."""
    if chromium() is None:
        pytest.skip("needs Chromium: no chromium or google-chrome on the path")
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    return folder


@pytest.fixture(scope="session")
def lab_url(home):
    with lab(home) as url:
        yield url


@pytest.fixture(scope="session")
def running_browser(home):
    with browser() as running:
        yield running


@pytest.fixture
def open_notebook(running_browser, lab_url):
    """open_notebook(path): a Notebook in a fresh page 1280 × 1000."""
    context = running_browser.new_context(viewport={"width": 1280, "height": 1000})
    yield lambda path: Notebook(context.new_page(), lab_url, path)
    context.close()
