"""The status page in a real browser: what it shows, what it asks for, and what it says when alone.

Skipped where there is no Chromium with its driver, or no selenium: `tox -e browser` has the latter.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest

from narwhal.app.ui_pages import UI_PAGES

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.sockets,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver"),
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
EVIL = "<img src=x onerror=alert(1)><script>document.title='owned'</script>"
ENGINE = {
    "iid": "p0",
    "role": "prefill",
    "pin": True,
    "state": "serving",
    "state_s": None,
    "reason": "",
    "suspicion": "trusted",
    "seat_limit": {"prefill": 4, "decode": 0},
    "residents": {"prefill": 3, "decode": 0},
    "reserved_tokens": 2048,
    "backlog_s": 1.5,
    "pace": {"prefill": 1.25},
}
STATE: dict[str, Any] = {
    "version": "9.9",
    "model": "tiny",
    "slo": {"ttft_s": 2.0, "ttft_scope": "prefill", "tpot_s": 0.1},
    "uptime_s": 4000.0,
    "ready": True,
    "draining": False,
    "alerts": [],
    "requests": {
        "received": 5000,
        "in_flight": 5,
        "waiting": 1,
        "retained": 6,
        "terminals": {"completed": 4900, "failed": 95},
    },
    "admission": {"rejections": {"queue_full": 7, "projected_ttft": 12}},
    "limits_fired": {"read_gap": 3, "queue": 0},
    "attempts": {"total": 50, "retries": 2, "retry_credits": 7.5},
    "tokens": {"prompt": 1000, "completion": 500},
    "pools": {"prefill": ["p0"], "decode": ["d0", "d1"]},
    "roles": {
        "advisory": False,
        "decision": {
            "ago_s": 2.0,
            "split": "1P2D",
            "loads": {"prefill": 1.25, "decode": None},
            "reason": "1P2D: none; held by cooldown",
        },
        "evidence": {"elapsed_s": 61.0, "arrivals": 30, "closed": True},
        "flips": [
            {"ago_s": 30, "iid": "d1", "to": "decode", "rule": "toward_decode", "split": "1P2D"},
            {"ago_s": 90, "iid": "d0", "to": "decode", "rule": "toward_decode", "split": "2P1D"},
        ],
    },
    "engines": [
        ENGINE,
        ENGINE
        | {"iid": EVIL, "role": "decode", "state": "ejected", "state_s": 12.0, "pin": False}
        | {"reason": EVIL, "suspicion": "avoided for decode", "residents": {"decode": 9}},
    ],
    "recent": [
        {
            "ts": 1.7e9,
            "terminal": "completed",
            "code": None,
            "attempts": 1,
            "queue_s": None,
            "prefill": "p0",
            "decode": EVIL,
            "request_id": EVIL,
            "request_s": 1.5,
            "prefill_ttft_s": 2.5,
            "first_token_ttft_s": 2.6,
            "tpot_s": 0.05,
        },
    ],
}


@attrs.define
class Router:
    """Serves the page as the router does, and a state that is made up."""

    state: Any = attrs.field(factory=lambda: dict(STATE))
    token: str | None = None
    up: bool = True
    down: tuple[int, bytes] = (502, b"")
    asked: list[str] = attrs.field(factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        if request.path == "/narwhal/state":
            self._state(request)
            return
        static = UI_PAGES.get(request.path)
        status, body, headers = static.answer([]) if static else (404, b"", [])
        request.send_response(status)
        for name, value in headers:
            request.send_header(name.decode(), value.decode())
        self._body(request, body)

    def _state(self, request: BaseHTTPRequestHandler) -> None:
        given = request.headers["authorization"]
        if self.token is not None and given != f"Bearer {self.token}":
            request.send_response(401)
            self._body(request, b"{}")
            return
        if not self.up:
            request.send_response(self.down[0])
            self._body(request, self.down[1])
            return
        # Half a second and ten requests for each time it is asked.
        self.state["uptime_s"] += 0.5
        self.state["requests"] = dict(self.state["requests"])
        self.state["requests"]["received"] += 10
        request.send_response(200)
        request.send_header("content-type", "application/json")
        self._body(request, json.dumps(self.state).encode())

    def _body(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@pytest.fixture
def router() -> Iterator[Router]:
    made = Router()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield made
        server.shutdown()
        thread.join()


class Browser:
    """Chromium, without a window and with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(executable_path=DRIVER)
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(60)

    def open(self, router: Router) -> None:
        self.driver.get(f"{router.url}/narwhal/ui")

    def until(self, true: Callable[[], object]) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 60, poll_frequency=0.05).until(lambda _: true())

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0]).innerText", selector))

    def shown(self, selector: str) -> bool:
        return bool(
            self.js("return document.querySelector(arguments[0]).offsetParent !== null", selector)
        )

    def table(self, name: str) -> list[list[str]]:
        found: list[list[str]] = self.js(
            "return [...document.querySelectorAll(arguments[0])].map("
            "row => [...row.cells].map(cell => cell.innerText.trim().replace(/\\s+/g, ' ')))",
            f"#{name} tbody tr",
        )
        return found

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> set[str]:
        """What the page asked for, and from whom; a new tab's own page is not ours."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return {e["request"]["url"] for e in sent if not e["documentURL"].startswith("chrome:")}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.driver.quit()


def test_the_page_shows_the_state_and_nothing_else_happens(
    router: Router, browser: Browser
) -> None:
    browser.open(router)
    browser.until(lambda: browser.text("#status") == "ready")
    assert browser.text("#model") == "tiny"
    assert browser.table("engines") == [
        ["p0", "prefill (pinned)", "serving", "3 / 4", "0", "2,048", "1.5 s", "1.25 / -", ""],
        [
            *(EVIL, "decode", "ejected 12 s", "0 / 4", "9", "2,048", "1.5 s", "1.25 / -"),
            f"{EVIL}; avoided for decode",
        ],
    ]
    assert browser.table("codes") == [["projected_ttft", "12"], ["queue_full", "7"]]
    assert browser.table("limits") == [["read_gap", "3"]]
    assert browser.table("moves") == [
        ["30 s", "d1", "decode", "toward_decode", "1P2D"],
        ["1 min", "d0", "decode", "toward_decode", "2P1D"],
    ]
    (recent,) = browser.table("recent")
    assert recent[1:] == [
        *("completed", "-", f"p0 → {EVIL}", "1", "-", "2.5 s", "2.6 s", "50 ms", "1.5 s", EVIL),
    ]
    tiles = browser.text("#tiles").split("\n")
    assert tiles[tiles.index("TTFT, median") + 1] == "2.5 s"
    assert browser.js("return document.querySelectorAll('#tiles .over').length") == 1
    assert browser.js("return document.querySelectorAll('#split path').length") == 2
    # The second look makes a rate of it: ten requests in half a second.
    browser.until(lambda: "20" in browser.text("#tiles").split("\n")[1])
    assert browser.js("return document.images.length") == 1, "no name became a picture"
    assert not browser.shown("#alerts-box")
    assert browser.errors() == []
    files = {f"{router.url}{path}" for path in (*UI_PAGES, "/narwhal/state")}
    assert browser.requests() == files
    assert set(router.asked) == {*UI_PAGES, "/narwhal/state"}


def test_what_is_wrong_is_said_and_said_once(router: Router, browser: Browser) -> None:
    router.state |= {"ready": False, "alerts": [f"d0 is ejected for 12 s: {EVIL}"]}
    browser.open(router)
    browser.until(lambda: browser.text("#status") == "not ready")
    assert browser.text("#alerts") == f"d0 is ejected for 12 s: {EVIL}"
    browser.js("document.querySelector('#alerts li').dataset.same = 'yes'")
    asked = len(router.asked)
    router.state |= {"alerts": [f"d0 is ejected for 14 s: {EVIL}"]}
    browser.until(lambda: len(router.asked) > asked + 1)
    assert browser.js("return document.querySelector('#alerts li').dataset.same") == "yes"
    router.state |= {"ready": True, "draining": True, "alerts": []}
    browser.until(lambda: browser.text("#status") == "draining")
    assert not browser.shown("#alerts-box")


def test_it_outlives_the_router(router: Router, browser: Browser) -> None:
    browser.open(router)
    browser.until(lambda: browser.text("#status") == "ready")
    router.up = False
    browser.until(lambda: browser.text("#status") == "unreachable")
    assert "cannot be reached since" in browser.text("#trouble")
    assert "(the router answered 502)" in browser.text("#trouble")
    assert browser.table("limits") == [["read_gap", "3"]], "the last that is known stays"
    router.down = 403, json.dumps({"error": {"message": f"not from here {EVIL}"}}).encode()
    browser.until(lambda: f"(403: not from here {EVIL})" in browser.text("#trouble"))
    router.up = True
    router.state |= {"uptime_s": 1.0, "version": "10.0"}
    browser.until(lambda: browser.text("#status") == "ready")
    assert "narwhal-trio 10.0, up 2 s" in browser.text("#about")
    assert not browser.shown("#trouble")


def test_a_token_is_asked_for_and_kept_for_the_tab(router: Router, browser: Browser) -> None:
    router.token = "open sesame"
    browser.open(router)
    browser.until(lambda: browser.shown("#login"))
    assert browser.text("#status") == "locked"
    assert not browser.shown("#all")
    focused = browser.driver.switch_to.active_element
    assert focused.get_attribute("id") == "token", "one need not look for it"
    focused.send_keys("wrong\n")
    browser.until(lambda: "does not accept" in browser.text("#trouble"))
    browser.driver.switch_to.active_element.send_keys("open sesame\n")
    browser.until(lambda: browser.text("#status") == "ready")
    assert not browser.shown("#login")
    browser.driver.refresh()
    browser.until(lambda: browser.text("#status") == "ready")


def test_it_can_be_paused_from_the_keyboard(router: Router, browser: Browser) -> None:
    browser.open(router)
    browser.until(lambda: browser.text("#status") == "ready")
    browser.driver.switch_to.active_element.send_keys("\ue004")  # Tab
    button = browser.driver.switch_to.active_element
    assert button.get_attribute("id") == "pause"
    button.send_keys(" ")
    assert button.get_attribute("aria-pressed") == "true"
    browser.until(lambda: browser.text("#updated").startswith("paused"))
    button.send_keys(" ")
    asked = len(router.asked)
    browser.until(lambda: len(router.asked) > asked)
    assert button.get_attribute("aria-pressed") == "false"


def test_it_fits_every_width_in_light_and_dark(
    router: Router, browser: Browser, tmp_path: Path
) -> None:
    browser.open(router)
    browser.until(lambda: browser.text("#status") == "ready")
    colours = set()
    for width in (320, 640, 1280, 2200):
        for dark in (False, True):
            browser.size(width, 900, dark=dark)
            browser.until(lambda: True)
            overflow = browser.js(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert overflow <= 0, f"{width} px is too narrow for something"
            colours.add(browser.js("return getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
    picture = tmp_path / "page.png"
    browser.driver.save_screenshot(str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
