"""Two services of two teams, each with a key parser and a document of limits of its own that changes while they run."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import waitress
from flask import Flask, request
from parsers import images_key, sentiment_key

from ratekit import RateLimitResult
from ratekit.core.errors import UnusableRequestError
from ratekit.rules import RateKit

FILES = Path(__file__).parent / "rules"
MONGODB = os.environ.get("RULES_MONGODB")  # mongodb://localhost/limits; without it, the documents are the files


def kit_of(service: str, by: Any) -> RateKit:
    """Follow the document of a service. Counts in RATE_LIMIT_STORE_URL, else in the process."""
    file = FILES / f"{service}.json"
    if MONGODB is None:
        return RateKit(service=service, rules=file, by=by)
    return RateKit(service=service, rules=MONGODB, by=by, default=file)  # if MongoDB is away, or has no document yet


kits = {"sentiment": kit_of("sentiment", sentiment_key), "images": kit_of("images", images_key)}
app = Flask(__name__)


def answer(result: RateLimitResult, **values: Any) -> tuple[dict[str, Any], int, dict[str, str]]:
    """Answer with what is left of each window, or refuse."""
    values = values if result.allowed else {"error": "too fast", "retry_after": result.retry_after}
    return values | {"remaining": result.remaining_by}, 200 if result.allowed else 429, result.to_headers()


@app.post("/sentiment")
def sentiment() -> Any:
    result = kits["sentiment"].check(request)  # the team's parser says by which key
    return answer(result, mood="glad" if "good" in request.get_data(as_text=True) else "sad")


@app.get("/images")
def images() -> Any:
    return answer(kits["images"].check(request), seen="a cat")


@app.post("/quota/<path:key>")
def quota(key: str) -> Any:
    """Spend for a key that the caller knows: nothing is read from the request."""
    return answer(kits["sentiment"].check_rate_limit("sentiment", key))


@app.get("/health")
def health() -> dict[str, Any]:
    """Say which rules are in force, since when and from where, and how the store of the counters is."""
    return {name: kit.status.as_dict() | {"store": asdict(kit.limiter.health())} for name, kit in kits.items()}


@app.errorhandler(UnusableRequestError)
def unusable(error: UnusableRequestError) -> tuple[dict[str, str], int]:
    return {"error": error.detail}, error.status


WHAT_TO_TRY = """\
Sentiment and images on {url}, limited by what requests say. The limits are those of {origin}.

  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' -H 'X-User-Id: 7' -X POST {url}/sentiment; done
  curl -i {json} '{{"tenant_id": "client-corp", "language": "en", "text": "good"}}' {url}/sentiment      # 8 a minute
  curl -i -H 'X-API-Key: premium-tier' -X POST {url}/sentiment      # 5000 a minute
  curl -i '{url}/images?model_version=v2&hd=true'      # 2 a minute for this model in this resolution

{change}
  curl {url}/health      # which rules are in force, and where they come from

Ctrl-C ends the server."""
JSON = "-H 'Content-Type: application/json' -d"  # older versions of curl have no --json
CHANGE_A_FILE = "Change rpm in rules/sentiment.json while it runs: the next second has it."
CHANGE_MONGODB = "Change rpm in rules/sentiment.json, and put it into MongoDB while it runs:\n  {push}"
PUSH = "ratekit rules push rules/sentiment.json '{mongodb}' --service sentiment"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the loopback to listen on (default 8000)")
    port = parser.parse_args().port
    change = CHANGE_MONGODB.format(push=PUSH.format(mongodb=MONGODB)) if MONGODB else CHANGE_A_FILE
    origin = kits["sentiment"].status.origin
    print(WHAT_TO_TRY.format(url=f"http://127.0.0.1:{port}", origin=origin, change=change, json=JSON), flush=True)
    try:
        waitress.serve(app, listen=f"127.0.0.1:{port}")
    except OSError as error:
        raise SystemExit(f"port {port}: {error}; give another by --port") from None


if __name__ == "__main__":
    main()
