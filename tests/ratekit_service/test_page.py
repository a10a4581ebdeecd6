"""The page in a real browser: bursts, algorithms, keys, overrides; light and dark, desktop and phone."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageChops, ImageStat
from playwright.sync_api import Browser, Locator, Page, expect

from ratekit_service.demo import seed
from ratekit_service.page.trials import LONGEST_SECONDS
from support.browser import browser, picture
from support.servers import free_port, serving

FILES = Path(__file__).parents[2] / "ratekit_service" / "page" / "files"
TOKEN = "a-token-for-the-page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PICTURE = {"width": 1000, "height": 980}
# A browser reports every refused request as an error: these are what the tests are about.
REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (401|422|429)")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo, as `ratekit serve --demo` runs it."""
    port = free_port()
    command = [sys.executable, "-m", "ratekit.cli", "serve", "--demo", "--port", str(port)]
    settings = {"RATEKIT_ADMIN_TOKEN": TOKEN, "RATE_LIMIT_STORE_URL": "memory://"}
    with serving(command, port, tmp_path_factory.mktemp("demo"), **settings) as url:
        yield url


@pytest.fixture
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def page(demo: str, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page of the demo, opened; nothing is wrong on its console but refused requests."""
    with chromium.new_context(viewport=DESKTOP, **getattr(request, "param", {})) as context:
        opened = context.new_page()
        errors: list[str] = []
        opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.on("dialog", lambda dialog: dialog.accept())
        opened.goto(demo)
        expect(opened.locator("html[data-ready=yes]")).to_be_attached()
        yield opened
    assert [error for error in errors if not REFUSED.match(error)] == []


def burst(page: Page, name: str) -> Locator:
    return page.locator(".lane", has=page.get_by_role("heading", name=name))


def send(page: Page, name: str, count: int, subject: str) -> Locator:
    """Send one burst at once, and return where it is shown when it is over."""
    shown = burst(page, name)
    page.get_by_label("Requests", exact=True).fill(str(count))
    page.get_by_label("Milliseconds between").fill("0")
    page.locator("#burst-form").get_by_label("Subject").fill(subject)
    shown.get_by_role("button", name=f"Send {name} alone").click()
    expect(shown.get_by_role("status")).to_contain_text(f"{name} is over")
    return shown


def choose(page: Page, name: str, limited_by: str | re.Pattern[str], **numbers: float) -> None:
    shown = burst(page, name)
    if isinstance(limited_by, str):
        shown.get_by_label("Limit by").select_option(label=limited_by)
    else:
        option = shown.get_by_role("option", name=limited_by)
        shown.get_by_label("Limit by").select_option(value=option.get_attribute("value"))
    for field, value in numbers.items():
        shown.locator(f".numbers [name={field}]").fill(str(value))


def expect_counts(shown: Locator, allowed: int, refused: int) -> None:
    expect(shown.get_by_role("status")).to_contain_text(f"{allowed} allowed, {refused} refused.")
    expect(shown.locator(".answers li", has_text="✓ 200")).to_have_count(allowed)
    expect(shown.locator(".answers li", has_text="✕ 429")).to_have_count(refused)


def type_token(page: Page, token: str) -> Locator:
    page.get_by_label("Admin token").fill(token)
    page.get_by_role("button", name="Open").click()
    return page.locator("#console")


def open_administration(page: Page) -> Locator:
    """Open administration, at the demo's tenant."""
    console = type_token(page, TOKEN)
    console.get_by_role("combobox", name="Tenant", exact=True).select_option(label="demo")
    plans = console.get_by_role("table", name="Plans")
    expect(plans.get_by_role("cell", name="token_bucket", exact=True)).to_be_visible()
    return console


def test_burst_shows_what_passes_and_what_is_refused_and_how_to_repeat_it(page, demo):
    choose(page, "Burst A", "fixed window", limit=5, window_seconds=300)
    shown = send(page, "Burst A", 8, "ann")
    expect_counts(shown, 5, 3)
    assert shown.locator("circle.passed").count() == 5
    assert shown.locator("path.stopped").count() == 3
    expect(shown.get_by_role("img")).to_have_attribute("aria-label", "Remaining over time: 0 of 5 now.")
    expect(shown.locator(".headers")).to_contain_text("HTTP 429")
    expect(shown.locator(".headers")).to_contain_text("x-ratelimit-limit: 5")
    expect(shown.locator(".headers")).to_contain_text("retry-after: ")
    expect(shown.locator(".json")).to_contain_text('"allowed": false')
    expect(shown.locator(".curl")).to_contain_text(f"curl -i '{demo}/v1/demo/check'")
    expect(shown.locator(".curl")).to_contain_text('"algorithm":"fixed_window","limit":5,"window_seconds":300')


@pytest.mark.parametrize(
    ("algorithm", "numbers", "allowed"),
    [
        ("token bucket", {"bucket_capacity": 4, "refill_rate_per_sec": 0.1}, 4),
        ("sliding window (log)", {"limit": 3, "window_seconds": 300}, 3),
        ("sliding window counter", {"limit": 2, "window_seconds": 300}, 2),
        ("concurrency", {"limit": 1, "stale_after_seconds": 300}, 1),
    ],
)
def test_algorithm_is_switched(page, algorithm, numbers, allowed):
    choose(page, "Burst A", algorithm, **numbers)
    expect_counts(send(page, "Burst A", 6, f"switched {algorithm}"), allowed, 6 - allowed)


def test_two_bursts_side_by_side_differ(page):
    page.locator("#burst-form").get_by_label("Subject").fill("both")
    choose(page, "Burst A", "fixed window", limit=10, window_seconds=300)
    choose(page, "Burst B", "token bucket", bucket_capacity=10, refill_rate_per_sec=4)
    page.get_by_label("Requests", exact=True).fill("40")
    page.get_by_label("Milliseconds between").fill("50")
    page.get_by_role("button", name="Send both bursts").click()
    for name in ("Burst A", "Burst B"):
        expect(burst(page, name).get_by_role("status")).to_contain_text("is over", timeout=20_000)
    expect_counts(burst(page, "Burst A"), 10, 30)
    assert int(burst(page, "Burst B").locator(".allowed b").inner_text()) > 12  # two seconds at four tokens a second
    expect(burst(page, "Burst B").locator(".remaining")).to_have_text("10 of 10 remain", timeout=10_000)  # looked at live
    picture(page, "service-page-bursts")


def test_numbers_that_make_no_sense_are_refused_with_the_reason(page):
    choose(page, "Burst A", "token bucket", bucket_capacity=900, refill_rate_per_sec=0.1)
    page.get_by_label("Requests", exact=True).fill("1")
    burst(page, "Burst A").get_by_role("button", name="Send Burst A alone").click()
    expect(burst(page, "Burst A").get_by_role("status")).to_contain_text("1 failed: 422: these numbers take 9000 s")


def test_burst_is_sent_by_the_keyboard_alone(page):
    choose(page, "Burst A", "fixed window", limit=2, window_seconds=300)
    page.locator("#burst-form").get_by_label("Subject").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("keyboard")
    page.keyboard.press("Tab")
    page.keyboard.type("3")
    expect(page.get_by_label("Requests", exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("0")
    page.keyboard.press("Enter")
    expect_counts(burst(page, "Burst A"), 2, 1)


def test_key_is_created_used_and_revoked(page):
    console = open_administration(page)
    console.get_by_label("Name of a new key").fill("from the page")
    console.get_by_role("combobox", name="Plan", exact=True).select_option(label="fixed_window")
    console.get_by_role("button", name="Create key").click()
    secret = console.locator("#secret-key")
    expect(secret).to_have_text(re.compile("^rk_live_"))
    key = secret.inner_text()
    picture(page, "service-page-key")
    console.get_by_role("button", name="Use it for bursts").click()
    expect(page.get_by_label("API key")).to_have_value(key)
    choose(page, "Burst A", re.compile("^fixed_window"))
    expect_counts(send(page, "Burst A", 3, "key"), 3, 0)
    console.get_by_role("button", name="Revoke key from the page").click()
    expect(page.get_by_text("Key from the page is revoked.")).to_be_visible()
    shown = send(page, "Burst A", 2, "key")
    expect(shown.get_by_role("status")).to_contain_text("0 allowed, 0 refused, 2 failed: 401: x-api-key is missing")
    page.reload()
    expect(page.locator("#console")).to_be_hidden()
    assert key not in page.content()


def test_override_bites_and_its_subject_is_seen_to_be_limited(page):
    console = open_administration(page)
    choose(page, "Burst A", re.compile("^sliding_window "))
    expect_counts(send(page, "Burst A", 3, "olga"), 3, 0)
    overrides = console.locator(".panel", has=page.get_by_role("heading", name="Overrides"))
    overrides.get_by_label("Subject").fill("olga")
    overrides.get_by_label("Maximum (0 blocks)").fill("4")
    overrides.get_by_label("Reason").fill("ticket 77")
    overrides.get_by_role("button", name="Set override").click()
    expect(page.get_by_text("The override of olga on GET:/orders is in force.")).to_be_visible()
    expect(overrides.get_by_role("cell", name="ticket 77")).to_be_visible()
    shown = send(page, "Burst A", 3, "olga")
    expect_counts(shown, 1, 2)
    expect(shown.locator(".headers")).to_contain_text("x-ratelimit-limit: 4")
    limited = console.get_by_role("table", name="Limited now").get_by_role("row", name=re.compile("olga"))
    expect(limited).to_contain_text("GET:/orders", timeout=10_000)
    picture(page, "service-page-administration")
    overrides.get_by_role("button", name="End the override of olga on GET:/orders").click()
    expect(page.get_by_text("The override of olga on GET:/orders is ended.")).to_be_visible()
    expect(overrides.get_by_role("cell", name="ticket 77")).to_have_count(0)


def test_tenant_gets_a_plan_and_a_key_and_its_limit_bites(page):
    console = open_administration(page)
    console.get_by_label("Name of a new tenant").fill("<b>acme</b>")
    console.get_by_role("button", name="Create tenant").click()
    expect(console.get_by_role("table", name="Tenants").get_by_role("cell", name="<b>acme</b>")).to_be_visible()
    console.get_by_label("Name of a new plan").fill("small")
    console.get_by_label("Limit", exact=True).fill("2")
    console.get_by_label("Window in seconds").fill("3600")
    console.get_by_role("button", name="Create plan").click()
    expect(console.get_by_role("table", name="Plans").get_by_role("cell", name="small", exact=True)).to_be_visible()
    console.get_by_label("Name of a new key").fill("app")
    console.get_by_role("button", name="Create key").click()
    console.get_by_role("button", name="Use it for bursts").click()
    choose(page, "Burst A", re.compile("^small "))
    expect_counts(send(page, "Burst A", 3, "ann"), 2, 1)
    console.get_by_role("button", name="Change plan small").click()
    changed = console.locator("#plan-change")
    expect(changed.get_by_label("Window in seconds")).to_have_value("3600")
    changed.get_by_label("Limit", exact=True).fill("4")
    changed.get_by_role("button", name="Change small").click()
    expect(page.get_by_text("Plan small is changed: 4/h.")).to_be_visible()
    expect_counts(send(page, "Burst A", 3, "ann"), 2, 1)


def test_burst_of_a_plan_with_units_costs_so_many_of_each(page, demo):
    with httpx2.Client(base_url=f"{demo}/v1/admin", headers={"authorization": f"Bearer {TOKEN}"}) as client:
        tenant = client.post("/tenants", json={"name": "writers"}).json()["id"]
        limits = ["60/h", "1000 tokens/h", "500000 pages/month Europe/Berlin"]
        plan = client.post("/plans", json={"tenant_id": tenant, "name": "llm", "limits": limits}).json()["id"]
        made = client.post("/keys", json={"tenant_id": tenant, "name": "app", "plan_id": plan}).json()["key"]
    page.get_by_label("API key").fill(made)
    page.get_by_label("API key").blur()
    choose(page, "Burst A", re.compile("^llm "))
    page.get_by_label("Cost of each").fill("300")
    shown = send(page, "Burst A", 5, "ann")
    expect_counts(shown, 3, 2)
    expect(shown.locator(".curl")).to_contain_text('"cost":{"tokens":300,"pages":300}')


def test_picture_in_the_documentation_is_of_this_page(page):
    """`make pictures` puts the picture that this test takes into docs/images."""
    page.set_viewport_size(PICTURE)
    page.locator("#burst-form").get_by_label("Subject").fill("user:42")
    page.get_by_role("button", name="Send both bursts").click()
    for name in ("Burst A", "Burst B"):
        expect(burst(page, name).get_by_role("status")).to_contain_text(f"{name} is over", timeout=30_000)
    expect(burst(page, "Burst B")).to_contain_text(re.compile("[789] of 10 remain"), timeout=20_000)  # the bucket fills
    page.get_by_label("API key").evaluate("field => { field.value = 'rk_test_…' }")
    taken = picture(page, "service-page", full_page=False)
    assert difference(taken, Path(__file__).parents[2] / "docs/images/service-page.png") < 0.02


def difference(one: Path, other: Path) -> float:
    """How different two pictures are: 0 for the same, 1 for black and white; smaller than a letter, nothing counts."""
    with Image.open(one) as first, Image.open(other) as second:
        assert first.size == second.size
        small = [picture.convert("L").resize((100, 100)) for picture in (first, second)]
    return ImageStat.Stat(ImageChops.difference(*small)).mean[0] / 255


def test_pictures_of_two_pages_differ(page, tmp_path):
    one = picture(page, "service-page-before-a-burst", full_page=False)
    page.evaluate("() => { document.body.style.paddingTop = '200px' }")
    other = tmp_path / "other.png"
    page.screenshot(path=other)
    assert difference(one, one) == 0
    assert difference(one, other) > 0.02


def test_wrong_token_opens_nothing(page):
    console = type_token(page, "a-token-that-is-wrong")
    expect(page.get_by_role("alert").filter(has_text="401: the bearer token")).to_be_visible()
    expect(console).to_be_hidden()


def test_token_that_no_header_can_carry_is_told_so(page):
    console = type_token(page, "токен 😀")
    expect(
        page.get_by_role("alert").filter(has_text="401: keys and tokens have letters, digits and signs of ASCII")
    ).to_be_visible()
    expect(console).to_be_hidden()


def test_service_that_stops_is_told_and_what_is_shown_stays(chromium, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "ratekit.cli", "serve", "--demo", "--port", str(port)]
    settings = {"RATEKIT_ADMIN_TOKEN": TOKEN, "RATE_LIMIT_STORE_URL": "memory://"}
    with chromium.new_context(viewport=DESKTOP) as context:
        page = context.new_page()
        with serving(command, port, tmp_path, **settings) as url:
            page.goto(url)
            console = open_administration(page)
        stale = page.get_by_role("alert").filter(
            has_text="Not up to date: the service does not answer. Shown is what there was at"
        )
        expect(stale).to_be_visible(timeout=10_000)
        expect(console.get_by_role("cell", name="token_bucket", exact=True)).to_be_visible()
        with serving(command, port, tmp_path, **settings | {"RATEKIT_ADMIN_TOKEN": "another-token-for-it"}):
            expect(page.get_by_role("alert").filter(has_text="401: the bearer token")).to_be_visible(timeout=10_000)
            expect(console).to_be_hidden()


def test_plan_among_many_is_found_and_given_to_a_key(page, demo):
    with httpx2.Client(base_url=f"{demo}/v1/admin", headers={"authorization": f"Bearer {TOKEN}"}) as client:
        tenant = client.post("/tenants", json={"name": "many"}).json()["id"]
        for number in range(203):
            plan = {"tenant_id": tenant, "name": f"plan {number:03}", "limits": [f"{number + 1}/h"]}
            assert client.post("/plans", json=plan).status_code == 201
    console = open_administration(page)
    expect(console.get_by_label("Find plans by a part of their name")).to_be_hidden()
    console.get_by_role("combobox", name="Tenant", exact=True).select_option(label="many")
    for wanted in ("plan 000", "plan 101", "plan 202"):
        console.get_by_label("Find plans by a part of their name").fill(wanted[-3:])
        plans = console.locator("select[name=plan_id]")
        expect(plans.get_by_role("option")).to_have_text(["the tenant's default", wanted])
        plans.select_option(label=wanted)
        console.get_by_label("Name of a new key").fill(f"app {wanted}")
        console.get_by_role("button", name="Create key").click()
        row = console.get_by_role("table", name="Keys").get_by_role("row", name=f"app {wanted}")
        expect(row.get_by_role("cell", name=wanted, exact=True)).to_be_visible()


def test_override_of_a_bucket_has_its_capacity_alone(page):
    console = open_administration(page)
    overrides = console.locator(".panel", has=page.get_by_role("heading", name="Overrides"))
    overrides.get_by_label("Subject").fill("berta")
    overrides.get_by_role("button", name="Set override").click()
    expect(page.get_by_role("alert").filter(has_text="the override has no numbers")).to_be_visible()
    overrides.get_by_label("Capacity of a bucket").fill("4")
    overrides.get_by_role("button", name="Set override").click()
    expect(page.get_by_text("The override of berta on GET:/orders is in force.")).to_be_visible()
    choose(page, "Burst A", re.compile("^token_bucket "))
    expect_counts(send(page, "Burst A", 7, "berta"), 4, 3)


def test_long_names_leave_the_buttons_of_a_phone_in_sight(page, demo):
    with httpx2.Client(base_url=f"{demo}/v1/admin", headers={"authorization": f"Bearer {TOKEN}"}) as client:
        tenant = client.post("/tenants", json={"name": "t" * 256}).json()["id"]
        client.post(
            "/plans",
            json={"tenant_id": tenant, "name": "p" * 256, "algorithm": "fixed_window", "limit": 5, "window_seconds": 60},
        )
        client.post("/keys", json={"tenant_id": tenant, "name": "k" * 256})
    page.set_viewport_size(PHONE)
    console = open_administration(page)
    console.get_by_role("combobox", name="Tenant", exact=True).select_option(label="t" * 256)
    for name in ("Change plan p", "Revoke key k"):
        button = console.get_by_role("button", name=name)
        button.scroll_into_view_if_needed()
        box = button.bounding_box()
        assert box["x"] + box["width"] <= PHONE["width"]
    expect(console.get_by_role("cell", name="fixed window: 5 in 60 s")).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]


def test_token_is_kept_in_memory_only(page):
    expect(open_administration(page)).to_be_visible()
    kept = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert kept == '[{},{},""]'
    assert TOKEN not in page.content()
    expect(page.get_by_label("Admin token")).to_have_value("")
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#console")).to_be_hidden()
    expect(page.get_by_label("Admin token")).to_be_visible()


@pytest.mark.parametrize("screen", ["desktop", "phone"])
@pytest.mark.parametrize(
    "page",
    [pytest.param({"color_scheme": scheme}, id=scheme) for scheme in ("light", "dark")],
    indirect=True,
)
def test_page_is_accessible_and_fits(page, screen):
    page.set_viewport_size({"desktop": DESKTOP, "phone": PHONE}[screen])
    scheme = "dark" if page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches") else "light"
    choose(page, "Burst A", "fixed window", limit=3, window_seconds=300)
    expect_counts(send(page, "Burst A", 6, f"axe {screen} {scheme}"), 3, 3)
    open_administration(page)
    found = Axe().run(page)
    picture(page, f"service-page-{screen}-{scheme}")
    assert found.response["violations"] == [], found.generate_report()
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= page.viewport_size["width"]


def test_files_come_under_a_strict_policy(demo):
    for path in ("/", "/docs", *(f"/page/{file.name}" for file in FILES.iterdir())):
        answer = httpx2.get(demo + path)
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'; style-src 'self';"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = httpx2.get(demo + path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert httpx2.head(demo + path).status_code == 200


@pytest.mark.parametrize("name", ["..%2froutes.py", "%2e%2e/routes.py", "none.js", "../routes.py", "a%00b"])
def test_nothing_but_the_files_is_served(demo, name):
    answer = httpx2.get(f"{demo}/page/{name}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_page_asks_nobody_else(demo):
    for file in FILES.iterdir():
        addresses = set(re.findall(r"https?://[^\s\"'`]+", file.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file.name


def test_no_page_of_the_service_refers_to_another_origin(demo):
    pages = {path: httpx2.get(demo + path) for path in ("/", "/docs", "/redoc", "/docs/oauth2-redirect", "/openapi.json")}
    assert {path: answer.status_code for path, answer in pages.items()} == {
        "/": 200, "/docs": 200, "/redoc": 404, "/docs/oauth2-redirect": 404, "/openapi.json": 200,
    }  # fmt: skip
    for path, answer in pages.items():
        assert not re.search(r"(?:https?:|[\"'(])//\w", answer.text), path


def test_reference_shows_every_operation_and_asks_nobody_else(demo, chromium):
    document = httpx2.get(f"{demo}/openapi.json").json()
    operations = {f"{method.upper()} {path}" for path, found in document["paths"].items() for method in found}
    asked: list[str] = []
    with chromium.new_context(viewport=PHONE) as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.goto(f"{demo}/docs")
        expect(page.locator("html[data-ready=yes]")).to_be_attached()
        assert set(page.locator("summary").all_inner_texts()) == operations
        page.locator("summary", has_text=re.compile(r"^POST /v1/check$")).click()
        check = page.locator("details[open]")
        expect(check).to_contain_text("Needs the header x-api-key.")
        expect(check.get_by_role("cell", name="subject", exact=True).first).to_be_visible()
        expect(check.get_by_role("row", name=re.compile("429"))).to_contain_text("Retry-After")
        found = Axe().run(page)
        assert found.response["violations"] == [], found.generate_report()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    assert all(url.startswith(demo) for url in asked)
    assert errors == []


def test_page_is_told_the_demo_key_and_never_the_token(demo):
    answer = httpx2.get(f"{demo}/page/settings.json")
    told = answer.json()
    assert told["demo"] is told["administration"] is True
    assert told["api_key"].startswith("rk_test_")
    assert answer.headers["cache-control"] == "no-store"
    assert TOKEN not in answer.text


TRIAL = {"resource": "r", "subject": "s", "plan": {"algorithm": "fixed_window", "limit": 2, "window_seconds": 60}}


def trial(demo: str, **changes: Any) -> httpx2.Response:
    key = httpx2.get(f"{demo}/page/settings.json").json()["api_key"]
    return httpx2.post(f"{demo}/v1/demo/check", json=TRIAL | changes, headers={"x-api-key": key})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"plan": {"algorithm": "fixed_window", "limit": 2, "window_seconds": LONGEST_SECONDS + 1}}, "plan"),
        ({"plan": {"algorithm": "fixed_window", "limit": 2}}, "plan.window_seconds"),
        ({"plan": {"algorithm": "concurrency", "limit": 2, "stale_after_seconds": 5}, "cost": 2}, "cost"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_trial_that_makes_no_sense_names_the_field(demo, changes, field):
    answer = trial(demo, **changes)
    assert answer.status_code == 422
    assert answer.json()["field"] == field


def test_trials_need_a_key_of_the_demo(demo):
    assert httpx2.post(f"{demo}/v1/demo/check", json=TRIAL).status_code == 401
    admin = {"authorization": f"Bearer {TOKEN}"}
    tenant = httpx2.post(f"{demo}/v1/admin/tenants", json={"name": "other"}, headers=admin).json()["id"]
    body = {"tenant_id": tenant, "name": "other"}
    key = httpx2.post(f"{demo}/v1/admin/keys", json=body, headers=admin).json()["key"]
    assert httpx2.post(f"{demo}/v1/demo/check", json=TRIAL, headers={"x-api-key": key}).status_code == 403


async def test_demo_tenant_is_bounded(embedded):
    key = await seed(embedded.service)
    checks = {"checks": [{"resource": "r", "subject": f"s{number}"} for number in range(200)]}
    answers = [await embedded.client.post("/v1/check/batch", json=checks, headers={"x-api-key": key}) for _ in range(12)]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5  # a burst of 1000
    (refused, *_) = [answer for answer in answers if answer.status_code != 200]
    assert refused.status_code == 429
    assert refused.json()["detail"] == "this tenant asks too much of the service"


async def test_service_that_is_no_demo_has_no_trials_and_tells_no_key(embedded):
    caller = await embedded.caller()
    assert (await caller.post("/v1/demo/check", TRIAL)).status_code == 404
    told = (await embedded.client.get("/page/settings.json")).json()
    assert (told["demo"], told["api_key"]) == (False, "")
    assert (await embedded.client.get("/")).status_code == 200
