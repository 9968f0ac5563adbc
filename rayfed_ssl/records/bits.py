"""Why two runs with equal settings have other bits: settings of the engine, versions, processors."""

from collections.abc import Mapping

from rayfed_ssl.engine.fingerprint import different
from rayfed_ssl.records.manifest import RunManifest

VERSIONS = ("torch", "numpy", "rayfed-ssl")
"""Packages whose versions decide bits."""


def other_versions(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> str:
    """Name the versions that decide bits and differ: "torch 2.14.0 and 2.15.0"; "" if none does."""
    return ", ".join(
        f"{name} {one.get(name)} and {other.get(name)}" for name in VERSIONS if one.get(name) != other.get(name)
    )


def other_processor(one: Mapping[str, str], other: Mapping[str, str], bits: Mapping[str, str]) -> str:
    """Say that two fingerprints of runs with these settings differ, and what to do; "" if they do not."""
    if not (operations := ", ".join(different(one, other))):
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


def why_bits_differ(one: RunManifest, other: RunManifest) -> str | None:
    """Say what on record explains that two runs of the same settings have other digests; None where nothing does."""
    if names := [name for name in one.bits if one.bits[name] != other.bits.get(name)]:
        ours, theirs = (", ".join(f"engine.{name}={each.bits.get(name)}" for name in names) for each in (one, other))
        return f"{ours} and {theirs}"
    if versions := other_versions(one.versions, other.versions):
        return f"other versions: {versions}"
    if one.bits.get("deterministic") == "false":
        return "engine.deterministic=false takes kernels that may be others each time"
    if processor := other_processor(one.fingerprint, other.fingerprint, one.bits):
        return processor
    if any(warning.kind == "bits" for manifest in (one, other) for warning in manifest.warnings):
        return "a run was resumed on another processor or GPU, or with other versions"
    if any(entry.dropped for manifest in (one, other) for entry in manifest.rounds):
        return "clients were left out of rounds"
    return None
