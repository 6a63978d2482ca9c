# SPDX-License-Identifier: Apache-2.0
"""A run as the last section of docs/internals/benchmarks.md."""

HEADING = "## The last run\n"


def lines_of(result):
    machine = result["machine"]
    yield (f"{machine['taken_at'][:10]}, commit {machine['commit']}: {machine['cpus']} CPUs ({machine['cpu']}), "
           f"{machine['memory_mib']} MiB, Linux {machine['kernel']}, {machine['distribution']}, cgroups "
           f"{machine['cgroup_mode']}. Load average {machine['load_before']} before, {machine['load_after']} after.")
    yield ""
    yield "| what | bar | p50 | p10 | |"
    yield "|---|---|---|---|---|"
    for bar in result["bars"]:
        yield f"| {bar['what']} | {bar['bar']} | {bar['value']} | {bar['undisturbed']} | {bar['verdict']} |"
    for remark in result["remarks"]:
        yield ""
        yield remark[0].upper() + remark[1:]
    yield ""
    yield "| | n | p10 ms | p50 ms | p99 ms |"
    yield "|---|--:|--:|--:|--:|"
    for series in result["series"].values():
        times = " | ".join(f"{series[key] / 1e3:.2f}" for key in ("p10_us", "p50_us", "p99_us"))
        yield f"| {series['name'].strip()} | {series['n']} | {times} |"
    yield ""
    for name, peer in result["peers"].items():
        if peer["status"] != "measured":
            yield f"* {name}: {peer['status']}"
        elif peer["version"]:
            yield f"* {name}: {peer['version']}"


def write(path, result):
    before, heading, _ = path.read_text().partition(HEADING)
    if not heading:
        raise ValueError(f"{path} has no section '{HEADING.strip()}'")
    path.write_text(before + heading + "\n" + "\n".join(lines_of(result)) + "\n")
