"""Plots of a document: how fast and at what cost, and how each grows. SVG for pages, PNG for what shows no SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from benchmarks.contest.contestants import Colour, Role
from benchmarks.contest.plan import CONCURRENCY
from benchmarks.contest.standings import PERCENTILES, Standing, client_us, percentile, rate, server_us
from benchmarks.findings import AXES, Findings

# Okabe and Ito's colours, which all can tell apart; each peer has a marker of its own as well.
_BLUE, _ORANGE, _SKY, _AMBER, _GREY = "#0072B2", "#D55E00", "#56B4E9", "#E69F00", "#999999"
_STYLES = {
    "ratekit": (_BLUE, "o"),
    "limits": (_AMBER, "s"),
    "limits (redis-py)": (_AMBER, "s"),
    "limits (coredis)": (_AMBER, "P"),
    "limits, with figures": (_AMBER, "X"),
    "throttled-py": ("#009E73", "^"),
    "pyrate-limiter": ("#CC79A7", "D"),
    "fastapi-limiter": (_ORANGE, "v"),
    "slowapi": (_SKY, "<"),
    "django-ratelimit": (_ORANGE, "v"),
    "DRF throttle": (_SKY, "<"),
    "bare INCR": ("#000000", "."),
}
_DASHES = {"limits (coredis)": "--", "limits, with figures": "-.", "bare INCR": ":"}
_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.10g}")
_NAMES = {Colour.ASYNC: "async", Colour.THREADS: "threads"}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "ratekit",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(document: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all plots of a document into a folder."""
    findings = Findings.of(document)
    if not findings.standings:
        return []
    with plt.rc_context(_STYLE):
        figures = {"peers": _draw_peers(findings), "growth": _draw_growth(findings)}
        return [path for name, figure in figures.items() for path in _save(figure, folder / name)]


def _save(figure: Any, path: Path) -> list[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None}, bbox_inches="tight")
    figure.savefig(path.with_suffix(".png"), dpi=130, metadata={"Software": None}, bbox_inches="tight")
    plt.close(figure)
    return [path.with_suffix(".svg"), path.with_suffix(".png")]


def _draw_peers(findings: Findings) -> Any:
    """One row of panels for each colour: rate, processor time, latency, memory."""
    heights = [max(len(findings.ranking(colour)), 4) for colour in Colour]
    figure, axes = plt.subplots(2, 4, figsize=(15, 7), height_ratios=heights, sharey="row", layout="constrained")
    for colour, row in zip(Colour, axes, strict=True):
        standings = [one for one in findings.ranking(colour) if one.fault is None][::-1]
        if not standings:
            continue
        _draw_rates(row[0], standings, colour)
        _draw_costs(row[1], standings)
        _draw_latencies(row[2], standings)
        _draw_memory(row[3], standings, findings)
    figure.suptitle("One limit on one Redis: ratekit beside its peers (medians of interleaved rounds)", fontweight="bold")
    return figure


def _draw_rates(panel: Any, standings: Sequence[Standing], colour: Colour) -> None:
    rates = [one.median(rate) for one in standings]
    bars = panel.barh(range(len(standings)), rates, color=[_fill(one) for one in standings])
    low, high = zip(*(one.quartiles(rate) for one in standings), strict=True)
    panel.hlines(range(len(standings)), low, high, color="black", linewidth=1.5)
    ours = next((one.median(rate) for one in standings if one.contestant.name == "ratekit"), None)
    for bar, value, right in zip(bars, rates, high, strict=True):
        times = f"  ({value / ours:.2f} x)" if ours and value != ours else ""
        panel.text(max(value, right), bar.get_y() + bar.get_height() / 2, f" {value:,.0f}{times}", va="center")
    panel.set_yticks(range(len(standings)), [one.contestant.name for one in standings])
    for label, one in zip(panel.get_yticklabels(), standings, strict=True):
        label.set_fontweight("bold" if one.contestant.role is Role.OURS else "normal")
    panel.set_xlim(0, max(high) * 1.45)
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(_THOUSANDS)
    panel.set_title(f"{_NAMES[colour]}, {CONCURRENCY[colour]} at once")
    panel.set_xlabel("checks a second (times ratekit's): more is better")


def _draw_costs(panel: Any, standings: Sequence[Standing]) -> None:
    client, server = ([one.median(measure) for one in standings] for measure in (client_us, server_us))
    panel.barh(range(len(standings)), client, color=_BLUE, label="client")
    panel.barh(range(len(standings)), server, left=client, color=_AMBER, label="server")
    panel.set(title="processor time of a check", xlabel="microseconds: less is better")
    _legend_below(panel)


def _draw_latencies(panel: Any, standings: Sequence[Standing]) -> None:
    places = range(len(standings))
    values = {at: [one.median(percentile(at)) * 1000 for one in standings] for at in PERCENTILES}
    panel.hlines(places, values["p50"], values["p99"], color=_GREY, linewidth=1.5)
    for (at, points), (tint, marker) in zip(values.items(), ((_BLUE, "o"), (_AMBER, "s"), (_ORANGE, "^")), strict=True):
        panel.plot(points, places, marker, color=tint, label=at, zorder=3)
    panel.set(xscale="log", title="latency of a check", xlabel="milliseconds, log scale: less is better")
    panel.xaxis.set_major_formatter(_THOUSANDS)
    _legend_below(panel)


def _legend_below(panel: Any) -> None:
    panel.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def _draw_memory(panel: Any, standings: Sequence[Standing], findings: Findings) -> None:
    sizes = [findings.bytes_of(one) or 0 for one in standings]
    bars = panel.barh(range(len(standings)), sizes, color=[_fill(one) for one in standings])
    panel.bar_label(bars, [f" {size:.0f}" for size in sizes])
    panel.set_xlim(0, max(sizes, default=1) * 1.2)
    panel.set(title="memory of a subject in Redis", xlabel="bytes: less is better")


def _draw_growth(findings: Findings) -> Any:
    """One row of panels for each colour: concurrency, tiers, subjects."""
    figure, axes = plt.subplots(2, 3, figsize=(15, 8.5), layout="constrained", sharey="row")
    for colour, row in zip(Colour, axes, strict=True):
        for panel, axis in zip(row, AXES, strict=True):
            _draw_axis(panel, findings.growth(colour, axis), "linear" if axis == "tiers" else "log")
            panel.set(
                title=_growth_title(colour, axis), xlabel=AXES[axis] if axis == "tiers" else f"{AXES[axis]}, log scale"
            )
        row[0].set_ylabel("checks a second, log scale: more is better")
        handles, labels = row[0].get_legend_handles_labels()
        row[2].legend(handles, labels, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.suptitle("How checks a second grow or shrink (medians of interleaved rounds)", fontweight="bold")
    return figure


def _draw_axis(panel: Any, growth: dict[str, dict[int, Standing]], scale: str) -> None:
    for name, points in growth.items():
        good = {at: one.median(rate) for at, one in points.items() if one.fault is None}
        tint, marker = _STYLES.get(name, (_GREY, "x"))
        wide, order = (2.8, 3) if name == "ratekit" else (1.2, 2)
        dash = _DASHES.get(name, "-")
        panel.plot([*good], [*good.values()], dash, marker=marker, color=tint, linewidth=wide, label=name, zorder=order)
    panel.set(xscale=scale, yscale="log")
    ticks = sorted({at for points in growth.values() for at in points})
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.minorticks_off()
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(_THOUSANDS)
    panel.grid(axis="y", which="major", alpha=0.3)


def _growth_title(colour: Colour, axis: str) -> str:
    others = "" if axis == "concurrency" else f", {CONCURRENCY[colour]} at once"
    return f"{_NAMES[colour]}: {AXES[axis]}{others}"


def _fill(standing: Standing) -> str:
    return {Role.OURS: _BLUE, Role.PEER: _SKY, Role.BARE: _GREY}[standing.contestant.role]
