"""The status page's files: what is served, with which headers, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest
import trio

import narwhal
from narwhal.app.ui_pages import UI_PAGES
from narwhal.net import Server
from narwhal.telemetry import Endpoint
from narwhal.telemetry.kinds import StatusClass
from narwhal.testing import open_fleet, run_seeded

Body = Callable[[httpx.AsyncClient, narwhal.Router], Awaitable[None]]
FILES = Path(narwhal.__file__).parent / "app/ui"
TYPES = {
    "/narwhal/ui": "text/html; charset=utf-8",
    "/narwhal/ui.js": "text/javascript; charset=utf-8",
    "/narwhal/ui-parts.js": "text/javascript; charset=utf-8",
    "/narwhal/ui-tools.js": "text/javascript; charset=utf-8",
    "/narwhal/ui.css": "text/css; charset=utf-8",
    "/narwhal/ui.svg": "image/svg+xml",
}


def play(body: Body) -> None:
    async def main() -> None:
        async with open_fleet() as fleet, fleet.open_router() as router:
            transport = httpx.ASGITransport(app=router.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
                await body(client, router)

    run_seeded(main)


@pytest.mark.parametrize("path", TYPES)
def test_each_file_as_it_lies_there(path: str) -> None:
    async def body(client: httpx.AsyncClient, router: narwhal.Router) -> None:
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, TYPES[path])
        name = path.rpartition("/")[2]
        file = FILES / ("ui.html" if name == "ui" else name)
        assert answer.content == file.read_bytes()
        assert answer.headers["content-length"] == str(len(answer.content))
        head = await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers == answer.headers
        for method in ("POST", "DELETE"):
            other = await client.request(method, path)
            assert (other.status_code, other.headers["allow"]) == (405, "GET")
        sent = router.telemetry.metrics.http_responses
        assert sent[Endpoint.UI, StatusClass.SUCCESS].value == 2

    play(body)


def test_a_browser_is_told_what_the_page_may_do() -> None:
    async def body(client: httpx.AsyncClient, router: narwhal.Router) -> None:
        for path in TYPES:
            headers = (await client.get(path)).headers
            policy = dict(
                part.split(" ", 1) for part in headers["content-security-policy"].split("; ")
            )
            assert policy == {
                "default-src": "'none'",
                **dict.fromkeys(("script-src", "style-src", "img-src", "connect-src"), "'self'"),
                **dict.fromkeys(("base-uri", "form-action", "frame-ancestors"), "'none'"),
            }
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"

    play(body)


@pytest.mark.parametrize("prefix", ["", "/behind/a/proxy"])
def test_a_slash_too_many_leads_to_the_page(prefix: str) -> None:
    async def body(client: httpx.AsyncClient, router: narwhal.Router) -> None:
        for method in ("GET", "HEAD"):
            answer = await client.request(method, "/narwhal/ui/")
            assert (answer.status_code, answer.content) == (307, b"")
            there = httpx.URL(f"http://router{prefix}/narwhal/ui/").join(answer.headers["location"])
            assert there.path == f"{prefix}/narwhal/ui"
        assert (await client.post("/narwhal/ui/")).headers["allow"] == "GET"
        assert (await client.get("/narwhal/ui/more")).status_code == 404
        found = await client.get("/narwhal/ui/", follow_redirects=True)
        assert found.content == (FILES / "ui.html").read_bytes()

    play(body)


def test_what_a_browser_has_is_not_sent_again() -> None:
    async def body(client: httpx.AsyncClient, router: narwhal.Router) -> None:
        tags = set()
        for path in TYPES:
            first = await client.get(path)
            tag = first.headers["etag"]
            tags.add(tag)
            assert first.headers["cache-control"] == "no-cache", "kept, and asked about"
            for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
                again = await client.get(path, headers={"if-none-match": known})
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == tag
                assert "content-length" not in again.headers
            assert (await client.get(path, headers={"if-none-match": '"x"'})).status_code == 200
        assert len(tags) == len(TYPES)

    play(body)


def test_the_router_s_own_server_goes_on_after_a_304() -> None:
    """A response without a body has to be framed as one, or the next is read as its body."""

    async def main() -> None:
        async with (
            open_fleet() as fleet,
            fleet.open_router() as router,
            trio.open_nursery() as nursery,
        ):
            server = Server(router.app)
            await nursery.start(server.serve, [fleet.network.listen("router", 8000)])
            stream = await fleet.network.connect("router", 8000)
            ask = b"GET /narwhal/ui.css HTTP/1.1\r\nhost: router\r\n%b\r\n"
            tag = UI_PAGES["/narwhal/ui.css"].tag
            await stream.send_all(ask % (b"if-none-match: %b\r\n" % tag) + ask % b"")
            found = b""
            while not found.endswith((FILES / "ui.css").read_bytes()):
                data = await stream.receive_some(65536)
                assert data, found
                found += data
            assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"304", b"200"]
            assert found.partition(b"\r\n\r\n")[2].startswith(b"HTTP/1.1 200")
            stream.close()
            nursery.cancel_scope.cancel(reason="seen enough")

    run_seeded(main)


# What is in them


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def page() -> list[tuple[str, dict[str, Any]]]:
    parser = _Page()
    parser.feed((FILES / "ui.html").read_text(encoding="utf-8"))
    return parser.tags


def scripts() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in FILES.glob("*.js"))


def test_the_scripts_have_from_each_other_what_they_ask_for() -> None:
    given: dict[str, set[str]] = {}
    asked: dict[str, set[str]] = {}
    for file in FILES.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        given[f"./{file.name}"] = set(re.findall(r"^export \w+ ([\w$]+)", text, re.MULTILINE))
        for names, source in re.findall(
            r'^import \{([^}]+)\} from "([^"]+)";$', text, re.MULTILINE
        ):
            asked.setdefault(source, set()).update(re.findall(r"[\w$]+", names))
    assert given == {"./ui.js": set()} | asked


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    tags = page()
    links = {tag.get(name) for _, tag in tags for name in ("src", "href") if name in tag}
    assert links == {"ui.svg", "ui.css", "ui.js", "state", "../metrics"}
    assert not [tag for name, tag in tags if name == "script" and "src" not in tag]
    assert not [tag for name, tag in tags if name == "style" or "style" in tag]
    assert not [key for _, tag in tags for key in tag if key.startswith("on")]
    for file in FILES.iterdir():
        addresses = re.findall(r"https?://[^\s\"'`)]+", file.read_text(encoding="utf-8"))
        assert {*addresses} <= {"http://www.w3.org/2000/svg"}, "a name, not an address"
    assert "url(" not in (FILES / "ui.css").read_text(encoding="utf-8")


def test_the_script_makes_no_markup_of_what_it_is_told() -> None:
    script = scripts()
    for hole in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert hole not in script
    for hole in ("Function(", 'setAttribute("href', "DOMParser", "srcdoc", ".href"):
        assert hole not in script


def test_everything_the_script_fills_is_on_the_page() -> None:
    script = scripts()
    ids = {tag["id"] for _, tag in page() if "id" in tag}
    used = set(re.findall(r'\$\("([\w-]+)"\)|fill\("([\w-]+)"', script))
    assert {a or b for a, b in used} <= ids
    assert len([tag for _, tag in page() if "id" in tag]) == len(ids)


def test_the_page_can_be_read_without_eyes_and_used_without_a_mouse() -> None:
    tags = page()
    assert tags[0] == ("html", {"lang": "en"})
    assert all(tag.get("scope") == "col" for name, tag in tags if name == "th")
    ids = {tag.get("id") for _, tag in tags}
    for _, tag in tags:
        if "aria-labelledby" in tag:
            assert tag["aria-labelledby"] in ids
    scrolled = [tag for _, tag in tags if "scroll" in (tag.get("class") or "").split()]
    tables = [tag for name, tag in tags if name == "table"]
    assert len(scrolled) == len(tables)
    for tag in scrolled:
        assert (tag["tabindex"], tag["role"]) == ("0", "region")
        assert "aria-label" in tag or "aria-labelledby" in tag
    live = [
        tag["id"]
        for _, tag in tags
        if {tag.get("role")} & {"status", "alert"} or "aria-live" in tag
    ]
    assert live == ["status", "trouble", "alerts"], (
        "a table that changes all the time is not read out"
    )
    assert ("label", {"for": "token"}) in tags


def test_the_keys_that_the_script_reads_are_in_the_state() -> None:
    async def body(client: httpx.AsyncClient, router: narwhal.Router) -> None:
        ask = {"model": "emulated", "prompt": "hello", "max_tokens": 3}
        assert (await client.post("/v1/completions", json=ask)).status_code == 200
        await trio.sleep(30)
        state = (await client.get("/narwhal/state")).json()
        script = scripts()
        for name in ("state", "engine", "each"):
            top = {"state": state, "engine": state["engines"][0], "each": state["recent"][0]}[name]
            for key in set(re.findall(rf"\b{name}\.(\w+)", script)):
                assert key in top or key in {**state, "loads": 0}, f"{name}.{key}"
        decision = state["roles"]["decision"]
        assert {"ago_s", "split", "loads", "reason"} <= decision.keys()
        assert {"elapsed_s", "arrivals", "closed"} <= state["roles"]["evidence"].keys()

    play(body)


def test_the_icon_is_a_picture() -> None:
    root = ET.fromstring((FILES / "ui.svg").read_text(encoding="utf-8"))  # noqa: S314 - our own
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert sum(len(page_.body) for page_ in UI_PAGES.values()) < 40_000
