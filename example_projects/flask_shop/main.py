"""A shop in Flask: limits on views, a blueprint and by rules, its own page for a 429, a login that cannot be guessed."""

from __future__ import annotations

import argparse
import hmac
from typing import Any

import waitress
from flask import Blueprint, Flask, abort, g, jsonify, render_template_string, request
from flask.views import MethodView

from ratekit.flask import RateLimitExceeded, RateLimits, apply_element_rate_limit, rate_limit

limits = RateLimits(rules={"health": "100/s"}, default="1000/min")  # for what is not limited otherwise, each address
shop = Blueprint("shop", __name__)
rate_limit(limits="60/min", by="ip")(shop)  # every route of the shop, each by itself

BUSY = """<!doctype html><title>Too fast</title><h1>One moment, please</h1>
<p>{{ limit }} requests are possible here. Try again in {{ seconds }} seconds.</p>"""
PASSWORD = "correct horse"  # noqa: S105 - of an example


@shop.get("/search")
@rate_limit(limits="5/10s", by="ip")
def search() -> dict[str, Any]:
    return {"found": request.args.get("q", ""), "left": [result.remaining for result in g.ratekit.results]}


@shop.post("/login")
@rate_limit(limits="3/15min", by="form:email")  # all spellings of an address are one
@rate_limit(limits="20/15min", by="ip", endpoint="login by address")
def login() -> tuple[dict[str, bool], int]:
    welcome = hmac.compare_digest(request.form["password"], PASSWORD)
    return {"welcome": welcome}, 200 if welcome else 401


class Cart(MethodView):
    decorators = (rate_limit(limits="30/min", by="ip"),)

    def get(self) -> dict[str, list[str]]:
        return {"cart": []}

    async def post(self) -> dict[str, int]:
        """Put things into the cart. Each counts, whatever the number of requests."""
        items = request.get_json()
        if not isinstance(items, list):
            abort(400, "send a list of things")
        apply_element_rate_limit(max_requests=100, expiry=60, increment_amount=len(items), by="ip")
        return {"added": len(items)}


shop.add_url_rule("/cart", view_func=Cart.as_view("cart"))


def too_fast(error: RateLimitExceeded) -> Any:
    """Answer browsers with a page, and the rest with JSON. ratekit writes the headers on either."""
    if request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html":
        page = render_template_string(BUSY, limit=error.result.max_requests, seconds=error.retry_after)
        return page, 429
    return jsonify(error="too fast", retry_after=error.retry_after), 429


def create_app() -> Flask:
    app = Flask(__name__)
    limits.init_app(app)
    app.register_blueprint(shop)
    app.register_error_handler(429, too_fast)
    app.get("/health", endpoint="health")(lambda: {"well": True})
    return app


WHAT_TO_TRY = """\
A shop on {url}: five searches in ten seconds, three logins in a quarter of an hour for each address of e-mail.

  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' {url}/search; done
  curl -i -d 'email=ann@example.org&password=x' {url}/login
  flask --app main:create_app ratekit limits        # every limit of the shop

Ctrl-C ends the server."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the loopback to listen on (default 8000)")
    port = parser.parse_args().port
    print(WHAT_TO_TRY.format(url=f"http://127.0.0.1:{port}"), flush=True)
    try:
        waitress.serve(create_app(), listen=f"127.0.0.1:{port}")
    except OSError as error:
        raise SystemExit(f"port {port}: {error}; give another by --port") from None


if __name__ == "__main__":
    main()
