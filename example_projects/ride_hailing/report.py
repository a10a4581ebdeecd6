"""What the surge has measured: as a table, as a plot, and as a file with the date and the version."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import ratekit

BEGIN, END = "<!-- surge: begin -->\n", "<!-- surge: end -->"
# What has to hold, as (name, figure of a document, at least or at most).
Target = tuple[str, float, str, float]


def targets(found: dict[str, Any]) -> list[Target]:
    """Return what the surge shows, each with its target."""
    before, after = found["without"], found["with"]
    load = before["matching"]["matched_per_second"], after["matching"]["matched_per_second"]
    return [
        ("p99 of served requests, times lower", before["served"]["p99"] / after["served"]["p99"], "at least", 20),
        ("failures with limits, percent", after["failed_percent"], "at most", 0.5),
        ("load on the matching service, percent lower", 100 * (1 - load[1] / load[0]), "at least", 60),
        (
            "a 429, times cheaper than what is served",
            after["served"]["average"] / after["refused"]["average"],
            "at least",
            10,
        ),
        ("the rider served least, share of its fair rate", after["fair_share"]["least"], "at least", 0.7),
    ]


def is_reached(target: Target) -> bool:
    _, figure, sense, goal = target
    return figure >= goal if sense == "at least" else figure <= goal


def table(found: dict[str, Any]) -> str:
    """Return the figures before and after, and the targets, in Markdown."""
    before, after = found["without"], found["with"]
    rows = [("", "without limits", "with limits"), ("---", "---:", "---:")]
    rows += [("requests", f"{before['requests']:,}", f"{after['requests']:,}")]
    rows += [("served", f"{before['served']['requests']:,}", f"{after['served']['requests']:,}")]
    for name in ("average", "median", "p95", "p99"):
        rows.append((f"{name} of served, ms", f"{before['served'][name]:,.0f}", f"{after['served'][name]:,.0f}"))
    rows += [("failures", f"{before['failed_percent']:.1f} %", f"{after['failed_percent']:.1f} %")]
    rows += [("429s", "0", f"{after['refused']['requests']:,}")]
    rows += [(f"a 429, {name} ms", "", f"{after['refused'][name]:.1f}") for name in ("average", "p99")]
    for name, text in (("asked_per_second", "asked of matching, a second"), ("matched_per_second", "matched, a second")):
        rows.append((text, f"{before['matching'][name]:.1f}", f"{after['matching'][name]:.1f}"))
    in_use = [f"{side['matching']['utilisation_percent']:.0f} %" for side in (before, after)]
    rows.append(("connections to matching in use", *in_use))
    goals = [("", "measured", "target"), ("---", "---:", "---:")]
    goals += [(name, f"{figure:.3g}", f"{sense} {goal:g}") for name, figure, sense, goal in targets(found)]
    return _markdown(rows) + "\n\n" + _markdown(goals)


def short_table(found: dict[str, Any]) -> str:
    """Return the figures that matter most, in Markdown."""
    before, after = found["without"], found["with"]
    rows = [("165 riders, a service for 40 requests a second", "without limits", "with limits"), ("---", "---:", "---:")]
    rows.append(("p99 of served requests", f"{before['served']['p99']:,.0f} ms", f"{after['served']['p99']:,.0f} ms"))
    rows.append(("failures", f"{before['failed_percent']:.1f} %", f"{after['failed_percent']:.1f} %"))
    rows.append(("a 429, average", "", f"{after['refused']['average']:.1f} ms"))
    in_use = [f"{side['matching']['utilisation_percent']:.0f} %" for side in (before, after)]
    rows.append(("connections of the service in use", *in_use))
    return _markdown(rows).replace("165 riders", f"{found['plan']['riders']} riders")


def _markdown(rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def facts(found: dict[str, Any]) -> str:
    """Return what was measured, when and on what, in a sentence."""
    return (
        f"Measured on {found['date']} with ratekit {found['version']}: {found['plan']['riders']} riders, "
        f"{found['plan']['seconds']:.0f} s each, on {found['cores']} cores, CPython {found['python']}."
    )


def publish(found: dict[str, Any], folder: Path) -> None:
    """Write the result file, the plot and the table of the README."""
    found |= {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "version": ratekit.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    rounded = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 3))
    (folder / "results/surge.json").write_text(json.dumps(rounded, indent=1) + "\n")
    draw(rounded, folder / "results/surge.svg")
    for page, text in ((folder / "README.md", figures(rounded)), (folder.parents[1] / "README.md", short_table(rounded))):
        page.write_text(with_figures(page.read_text(), text))


def figures(found: dict[str, Any]) -> str:
    """Return what the example's page shows."""
    return f"{facts(found)}\n\n{table(found)}"


def with_figures(page: str, text: str) -> str:
    """Return a page with figures in their place."""
    figures = f"{BEGIN}{text}\n{END}"
    return re.sub(f"{BEGIN}.*?{END}", lambda _: figures, page, flags=re.DOTALL)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw how long served requests took, and how busy the matching service was."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "ratekit", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (waits, busy) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=[3, 1], layout="constrained")
        for name, colour in (("without", "#D55E00"), ("with", "#0072B2")):
            sample = found[name]["sample_ms"]
            shares = [100 * (index + 1) / len(sample) for index in range(len(sample))]
            waits.plot(sample, shares, color=colour, label=f"{name} limits")
            busy.bar([name], [found[name]["matching"]["utilisation_percent"]], color=colour)
        waits.set(
            xscale="log", xlabel="milliseconds", ylabel="percent of served requests", title="how long a served request took"
        )
        waits.legend(frameon=False)
        busy.set(ylim=(0, 105), ylabel="percent", title="connections in use")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
