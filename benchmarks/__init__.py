"""Measures ratekit beside its peers, in ratios that hold on a noisy machine: `python -m benchmarks`."""
