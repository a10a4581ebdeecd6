"""A FastAPI app with one limited route: five requests in ten seconds for each client address, counted in the process."""

from __future__ import annotations

import argparse

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

from ratekit_fastapi import PathRateLimiter, install

app = FastAPI(title="ratekit quickstart")
install(app)  # counts in RATE_LIMIT_STORE_URL, else in the process

PAGE = """<!doctype html><title>ratekit quickstart</title>
<style>body{font:16px system-ui;max-width:40em;margin:3em auto}b{display:inline-block;width:3em;padding:.3em;margin:.1em;
text-align:center;color:#fff;background:#2a7}b.no{background:#c33}</style>
<h1>ratekit quickstart</h1><p><code>/search</code> lets five requests pass in ten seconds.</p>
<button onclick="fire()">Send ten requests</button><p id=out></p><pre id=head></pre><script>
async function fire(){for(let i=0;i<10;i++){const r=await fetch('/search');
out.innerHTML+=`<b class="${r.status==200?'':'no'}">${r.status}</b>`;
head.textContent=[...r.headers].filter(([k])=>/ratelimit|retry/.test(k)).map(h=>h.join(': ')).join('\\n')}
out.innerHTML+='<br>'}
</script>"""

WHAT_TO_TRY = """\
ratekit demo on {url}: /search lets five requests pass in ten seconds, for each address.

Try in another terminal. It shows 200 five times, then 429 twice:
  for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{{http_code}}\\n' {url}/search; done

One answer with its headers: RateLimit-Remaining and RateLimit-Reset, and Retry-After on a 429:
  curl -i {url}/search

Or open {url} and press the button. Ctrl-C ends the demo."""


@app.get("/", response_class=HTMLResponse)
async def home() -> str:
    return PAGE


@app.get("/search", dependencies=[Depends(PathRateLimiter(max_requests=5, expiry=10, by="ip"))])
async def search() -> dict[str, str]:
    return {"found": "something"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the loopback to listen on (default 8000)")
    port = parser.parse_args().port
    print(WHAT_TO_TRY.format(url=f"http://127.0.0.1:{port}"), flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
