"""The figures and the verdict of a run."""

from ledger import Ledger


def table(ledger: Ledger, checked: dict[str, int], figures: dict[str, str]) -> str:
    """The outcomes of the operations, the measured times, the checks, and the violations."""
    lines = ["", "operation                       outcomes"]
    for name, counts in sorted(ledger.outcomes.items()):
        lines.append(f"  {name:30}" + ", ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items())))
    lines += ["", f"{'measured':64}{'n':>5}{'median':>9}{'max':>9}"]
    for name, values in sorted(ledger.samples.items()):
        ordered = sorted(values)
        lines.append(f"  {name:62}{len(ordered):5}{ordered[len(ordered) // 2]:9.2f}{ordered[-1]:9.2f}")
    lines += ["", "checked: " + ", ".join(f"{count} × {name}" for name, count in sorted(checked.items()))]
    lines += [f"{name}: {value}" for name, value in figures.items()]
    by_check: dict[str, list[str]] = {}
    for at, check, text in ledger.violations:
        by_check.setdefault(check, []).append(f"at {at:.1f} s: {text}")
    for check, texts in by_check.items():
        lines += ["", f"VIOLATED {len(texts)} times: {check}"] + [f"  {text}" for text in texts[:8]]
    lines += ["", "verdict: " + ("FAILED" if by_check else "passed")]
    return "\n".join(lines)
