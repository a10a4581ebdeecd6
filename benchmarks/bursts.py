"""How each algorithm admits the same burst: figures for docs/algorithms.md, and the plot. `python -m benchmarks.bursts`.

The script decides, on a clock that stands still between requests, so every run gives the same figures.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ratekit import Limit, Policy, RateLimiter
from ratekit.stores.memory import shared
from ratekit.testing import VirtualClock

ROOT = Path(__file__).parents[1]
PAGE, IMAGE = ROOT / "docs/algorithms.md", ROOT / "docs/images/bursts.svg"
BEGIN, END = "<!-- bursts: begin -->\n", "<!-- bursts: end -->"
LIMITS = {
    "fixed_window": Limit(60, 60, algorithm="fixed_window"),
    "sliding_window_counter": Limit(60, 60, algorithm="sliding_window_counter"),
    "sliding_window_log": Limit(60, 60, algorithm="sliding_window_log"),
    "token_bucket, burst 60": Limit(60, 60, burst=60),
    "token_bucket, burst 10": Limit(60, 60, burst=10),
}
SECONDS = 180


def offered(second: int) -> int:
    """Return how many requests come in a second: one first, then a burst from 50 to 70, and two a second ever after."""
    return 20 if 50 <= second < 70 else 1 if second < 50 else 2


def admitted(limit: Limit) -> list[int]:
    """Return how many requests of each second pass."""
    clock, store = VirtualClock(), shared("bursts")
    store.clear()
    clock.install()
    try:
        limiter, policy = RateLimiter("memory://bursts"), Policy("burst", limit)
        passed = []
        for second in range(SECONDS):
            passed.append(sum(limiter.check(policy, "u").allowed for _ in range(offered(second))))
            clock.advance(1)
        return passed
    finally:
        clock.uninstall()


def most_in(seconds: int, passed: list[int]) -> int:
    """Return how many requests passed in the busiest so many seconds."""
    return max(sum(passed[at : at + seconds]) for at in range(len(passed) - seconds + 1))


def table(found: dict[str, list[int]]) -> str:
    """Return the figures in Markdown."""
    rows = [
        "| 60 a minute, as | admitted in all | in the busiest second | in the busiest 60 s |",
        "| --- | ---: | ---: | ---: |",
    ]
    rows += [f"| `{name}` | {sum(passed)} | {max(passed)} | {most_in(60, passed)} |" for name, passed in found.items()]
    return "\n".join(rows)


def with_figures(page: str, found: dict[str, list[int]]) -> str:
    """Return the page with the figures in their place."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}{table(found)}\n{END}", page, flags=re.DOTALL)


def draw(found: dict[str, list[int]], path: Path) -> None:
    """Draw how many requests have passed up to each second."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = ["#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7"]
    with plt.rc_context({"svg.hashsalt": "ratekit", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
        axes.axvspan(50, 70, color="#999999", alpha=0.15, label="burst: 20 a second")
        for (name, passed), colour in zip(found.items(), colours, strict=True):
            axes.plot(_summed(passed), color=colour, label=name)
        axes.set(
            xlabel="seconds", ylabel="requests admitted so far", title="60 a minute, and a burst around the end of a window"
        )
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _summed(passed: list[int]) -> list[int]:
    total, sums = 0, []
    for number in passed:
        total += number
        sums.append(total)
    return sums


def measure() -> dict[str, list[int]]:
    """Return what each algorithm admits of the burst."""
    return {name: admitted(limit) for name, limit in LIMITS.items()}


def main() -> Any:
    """Write the figures and the plot."""
    found = measure()
    PAGE.write_text(with_figures(PAGE.read_text(), found))
    draw(found, IMAGE)
    print(table(found))


if __name__ == "__main__":
    main()
