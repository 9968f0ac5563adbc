"""Why two runs with equal settings have other bits: settings of the engine, versions, processors."""

from collections.abc import Mapping

from rayfed_ssl.engine.arithmetic import different
from rayfed_ssl.records.manifest import RunManifest

VERSIONS = ("torch", "numpy", "rayfed-ssl")
"""Packages whose versions decide bits."""


def other_versions(first: Mapping[str, str | None], second: Mapping[str, str | None]) -> str:
    """Name the versions that decide bits and differ: "torch 2.14.0 and 2.15.0"; "" if none does."""
    return ", ".join(
        f"{name} {first.get(name)} and {second.get(name)}" for name in VERSIONS if first.get(name) != second.get(name)
    )


def other_processor(first: Mapping[str, str], second: Mapping[str, str], bits: Mapping[str, str]) -> str:
    """Say that two fingerprints of runs with these settings differ, and what to do; "" if they do not."""
    if not (operations := ", ".join(different(first, second))):
        return ""
    if bits.get("device") == "cuda":
        return f"another kind of GPU, or other libraries of it, computes other bits ({operations}): see docs/gpu.md"
    remedy = (
        "in spite of engine.cpu=portable: it was not tried on this kind of processor, see docs/bits.md"
        if bits.get("cpu") == "portable"
        else "without engine.cpu=portable: run with it to compare"
    )
    return (
        f"another kind of processor, or other variables of its libraries, computes other bits ({operations}), {remedy}"
    )


def why_bits_differ(first: RunManifest, second: RunManifest) -> str | None:
    """Say what on record explains that two runs of the same settings have other digests; None where nothing does."""
    if names := [name for name in first.bits if first.bits[name] != second.bits.get(name)]:
        ours, theirs = (", ".join(f"engine.{name}={each.bits.get(name)}" for name in names) for each in (first, second))
        return f"{ours} and {theirs}"
    if versions := other_versions(first.versions, second.versions):
        return f"other versions: {versions}"
    if first.bits.get("deterministic") == "false":
        return "engine.deterministic=false takes kernels that may be others each time"
    if processor := other_processor(first.fingerprint, second.fingerprint, first.bits):
        return processor
    if any(warning.kind == "bits" for manifest in (first, second) for warning in manifest.warnings):
        return "a run was resumed on another processor or GPU, or with other versions"
    if any(entry.dropped for manifest in (first, second) for entry in manifest.rounds):
        return "clients were left out of rounds"
    return None
