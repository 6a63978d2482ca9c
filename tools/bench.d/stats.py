# SPDX-License-Identifier: Apache-2.0
"""Numbers out of samples, and what a bar says about them. Pure functions."""

import math
from dataclasses import dataclass, field


def percentile(values, share):
    """The smallest value that at least `share` (0..1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@dataclass
class Series:
    """Times of one thing, in nanoseconds, kept by round."""

    name: str
    rounds: list = field(default_factory=list)

    def add(self, times):
        self.rounds.append(list(times))

    @property
    def values(self):
        return [t for times in self.rounds for t in times]

    @property
    def p50(self):
        return median(self.values)

    @property
    def p10(self):
        """Close to what an idle machine would say: the runs that nobody disturbed."""
        return percentile(self.values, 0.10)

    @property
    def p99(self):
        return percentile(self.values, 0.99)

    def summary(self):
        return {
            "n": len(self.values),
            "p10_us": round(self.p10 / 1e3, 1),
            "p50_us": round(self.p50 / 1e3, 1),
            "p99_us": round(self.p99 / 1e3, 1),
            "min_us": round(min(self.values) / 1e3, 1),
            "rounds_p50_us": [round(median(times) / 1e3, 1) for times in self.rounds],
        }


@dataclass
class Bar:
    """One promise: `measured` stays at or below `limit`, or at or above it when `at_least`."""

    what: str
    promise: str  # the bar in words
    measured: float = None  # None: could not be measured, `why` says why
    limit: float = None
    at_least: bool = False
    undisturbed: float = None  # the same ratio at p10, for comparison only
    unit: str = "×"
    why: str = ""
    broken: bool = False  # something failed that should have worked

    @property
    def ok(self):
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def verdict(self):
        if self.broken:
            return f"FAILED: {self.why}"
        if self.measured is None:
            return f"not measured: {self.why}"
        if self.ok:
            return "ok"
        share = abs(self.measured - self.limit) / self.limit * 100
        return f"MISSED by {share:.0f} %"

    @property
    def value(self):
        return "-" if self.measured is None else f"{self.measured:.2f}{self.unit}"

    @property
    def undisturbed_value(self):
        return "" if self.undisturbed is None else f"{self.undisturbed:.2f}{self.unit}"

    def summary(self):
        return {
            "what": self.what,
            "bar": self.promise,
            "limit": self.limit,
            "measured": None if self.measured is None else round(self.measured, 3),
            "measured_p10": None if self.undisturbed is None else round(self.undisturbed, 3),
            "unit": self.unit.strip(),
            "verdict": self.verdict,
            "ok": self.ok,
        }


def table(header, rows):
    """Lines of a table; the first column is left-aligned, the others fit their texts."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [header, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines
