import pytest
import torch

from rayfed_ssl.models import build_model, precision
from rayfed_ssl.models.precision import Precision, autocast, choose_precision, prepare


def pretend(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(flags))


@pytest.mark.parametrize(
    ("flag", "dtype", "reason"),
    [
        ("avx512_bf16", "bf16", "CPU has avx512_bf16"),
        ("amx_bf16", "bf16", "CPU has amx_bf16"),
        ("avx512f", "fp32", "CPU multiplies no bfloat16"),
    ],
)
def test_auto_takes_bf16_on_cpus_that_multiply_it(monkeypatch, flag: str, dtype, reason: str) -> None:
    pretend(monkeypatch, "avx2", flag)
    assert choose_precision("cpu") == Precision(dtype, True, False, f"auto: {reason}")


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_takes_bf16_on_gpus_from_ampere_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    chosen = choose_precision("cuda:0")
    assert (chosen.dtype, chosen.channels_last) == (dtype, dtype == "bf16")


def test_a_requested_precision_is_granted_and_emulation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "amx_bf16")
    assert choose_precision("cpu", "fp32").dtype == "fp32"
    assert choose_precision("cpu", "bf16").reason == "asked for"
    pretend(monkeypatch)
    assert choose_precision("cpu", "bf16").dtype == "bf16"
    assert choose_precision("cpu", "bf16").reason == "asked for, emulated: CPU multiplies no bfloat16"


def test_autocast_sets_the_number_format_and_fp32_switches_it_off() -> None:
    a = torch.randn(2, 3)
    with autocast(Precision("bf16"), "cpu"):
        assert (a @ a.T).dtype == torch.bfloat16
        with autocast(Precision("fp32"), "cpu"):
            assert (a @ a.T).dtype == torch.float32
    assert (a @ a.T).dtype == torch.float32


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_prepare_changes_no_key_and_no_weight(compile: bool) -> None:
    model = build_model("cnn", channels=3, size=32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert prepare(model, Precision("bf16", True, compile), "cpu") is model
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_layout_changes_features_by_rounding_only_and_bf16_by_its_own() -> None:
    torch.manual_seed(0)
    model = build_model("cnn", channels=3, size=32).eval()
    images = torch.randn(4, 3, 32, 32)
    exact, _ = model(images)
    last, _ = prepare(model, Precision("fp32", True), "cpu")(images)
    torch.testing.assert_close(last, exact, rtol=1e-4, atol=1e-6)  # sums of 1,152 products in another order
    with autocast(Precision("bf16", True), "cpu"):
        rounded, _ = model(images)
    # 8 bits of mantissa are 0.4 % an operation; four layers on.
    assert torch.nn.functional.cosine_similarity(rounded, exact).min() > 0.999
    assert (rounded - exact).abs().max() > 1e-4 * exact.abs().max()  # the layout alone changes the seventh digit
