"""The page of the API, in a browser."""

from playwright.sync_api import sync_playwright

from browser import TIMEOUT, launch
from web_client import WebServer


def test_the_page_lists_the_operations_and_sends_a_request(tmp_path):
    with WebServer(tmp_path, "de-en") as server, sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT)
        errors, hosts, home = [], set(), str(server.client.base_url)
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3]) + "/"))
        page.goto(f"{home}docs")
        operations = page.locator("details")
        operations.first.wait_for()
        assert operations.count() == sum(map(len, server.client.get("/openapi.json").json()["paths"].values()))
        predict = operations.filter(has_text="/api/models/{name}/predict").first
        predict.locator("summary").click()
        predict.get_by_label("name").fill("de-en")
        predict.get_by_label("body").fill('{"texts": ["Kannst du mir bitte helfen?"]}')
        predict.get_by_role("button", name="Send").click()
        predict.get_by_text("can you help me?").first.wait_for()
        page.screenshot(path=tmp_path / "docs.png")
        browser.close()
        assert not errors
        assert hosts == {home}
