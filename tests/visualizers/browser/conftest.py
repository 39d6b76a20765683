"""Fixtures of the tests in a browser."""

import pytest
from lab import FLAGS
from playwright.sync_api import sync_playwright
from programs import need


@pytest.fixture(scope="module")
def browser(processes):
    """Yield a Chromium that the tests of a module share."""
    chromium = need("chromium", "PAGES ARE")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()
