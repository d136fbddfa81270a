"""The fused pass computes what transformers does for each family that it takes, and the others go without it."""

import copy
import logging
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.attention import ATTENTION_NAME, KvShape, Row
from allroads.engine.decoder import FusedDecoder, why_unsupported
from allroads.engine.device import CpuDevice, pick_device
from allroads.engine.projection import Projection
from allroads.engine.runner import Forward, ModelRunner, TransformersForward
from allroads.engine.self_check import pick_forward
from allroads.errors import StartupError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SMALL = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 120, "max_position_embeddings": 256,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-one-kv-head-each": ("llama", {"num_key_value_heads": 6}),
    "llama-bias": ("llama", {"attention_bias": False, "tie_word_embeddings": True}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}
PROMPTS = ([3, 9, 27, 81, 5, 15], [7, 14, 28, 56, 112, 11, 22, 44, 88], [1])


def _model(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SMALL, **changes})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation=ATTENTION_NAME, dtype=dtype
    ).eval()
    for name, parameter in model.named_parameters():
        # Norms and biases are ones and zeros at first, which would hide that one was forgotten.
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    return model


def _shape(model: PreTrainedModel) -> KvShape:
    config = model.config
    return KvShape(
        config.num_hidden_layers, config.num_key_value_heads, config.head_dim, 24, 4, config.num_attention_heads
    )


def _logits(forward: Forward, model: PreTrainedModel) -> Tensor:
    """Logits at all positions of all prompts: computed in uneven pieces, side by side."""
    backend = CpuDevice().attention(_shape(model), num_slots=3, max_blocks=8, dtype=model.dtype)
    for slot in range(3):
        backend.assign(slot, list(range(slot * 8, slot * 8 + 8)))
    runner = ModelRunner(forward, backend, 120, torch.device("cpu"))
    found: list[list[Tensor]] = [[] for _ in PROMPTS]
    done = [0] * len(PROMPTS)
    for size in (1, 3, 2, 1, 1, 1):
        rows = [
            Row(slot, done[slot], min(done[slot] + size, len(prompt)), min(size, len(prompt) - done[slot]))
            for slot, prompt in enumerate(PROMPTS)
            if done[slot] < len(prompt)
        ]
        output = runner.forward(rows, [token for row in rows for token in PROMPTS[row.slot][row.start : row.end]])
        begin = 0
        for row in rows:
            found[row.slot].append(output.logits[begin : begin + row.num_outputs])
            begin += row.num_outputs
            done[row.slot] = row.end
    return torch.cat([torch.cat(parts) for parts in found])


@torch.inference_mode()
def _plain(model: PreTrainedModel) -> Tensor:
    # A copy, since the way to attend is written into the configuration.
    config = copy.deepcopy(model.config)
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=model.dtype).eval()
    plain.load_state_dict(model.state_dict())
    return torch.cat([plain(torch.tensor([prompt]), use_cache=False).logits[0] for prompt in PROMPTS])


@pytest.mark.parametrize("family", FAMILIES)
def test_both_passes_equal_plain_transformers(family: str) -> None:
    kind, changes = FAMILIES[family]
    model = _model(kind, **changes)
    assert not why_unsupported(model)
    expected = _plain(model)
    assert torch.allclose(_logits(TransformersForward(model), model), expected, atol=1e-4)
    assert torch.allclose(_logits(FusedDecoder(model, 32), model), expected, atol=1e-4)
    # Its parameters are views of the joined ones now, and it still is what it was.
    assert torch.allclose(_plain(model), expected, atol=1e-6)


def test_half_precision_is_within_its_rounding() -> None:
    model = _model("qwen3", torch.bfloat16)
    expected = _plain(model).float()
    fused = _logits(FusedDecoder(model, 32), model).float()
    assert (fused - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gpt_neox", {}, "is none of"),
        ("llama", {"hidden_act": "gelu"}, "activation"),
        ("mistral", {"sliding_window": 16}, "window"),
        ("llama", {"mlp_bias": True}, "bias"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "RoPE"),
    ],
)
def test_what_it_cannot_run_is_told(kind: str, changes: dict[str, Any], reason: str) -> None:
    assert reason in why_unsupported(_model(kind, **changes))


@pytest.mark.parametrize("fault", [0.0, 0.3, float("nan")])
def test_a_pass_that_differs_is_not_used(
    fault: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = _model("qwen3")
    call = FusedDecoder.__call__

    def faulty(self: FusedDecoder, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        logits, hidden = call(self, *arguments)  # type: ignore[arg-type]
        return logits + fault * logits.abs().max(), hidden

    monkeypatch.setattr(FusedDecoder, "__call__", faulty)
    with caplog.at_level(logging.INFO):
        forward = pick_forward(model, CpuDevice(), _shape(model), 32)
    assert isinstance(forward, TransformersForward) == (fault != 0.0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "attention by sdpa" in line
    assert ("forward pass: transformers" in line) == (fault != 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(700, 500), (30, 20)])
def test_a_projection_multiplies(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """A large matrix, which is laid out anew, and a small one."""
    torch.manual_seed(1)
    weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype)
    rows, residual = torch.randn(5, shape[1]).to(dtype), torch.randn(5, shape[0]).to(dtype)
    expected = rows.float() @ weight.float().t()
    atol, rtol = (1e-3, 1e-4) if dtype is torch.float32 else (0.6, 0.02)
    product, total = Projection(weight, bias)(rows), Projection(weight).add_to(residual.clone(), rows)
    assert torch.allclose(product.float(), expected + bias.float(), atol=atol, rtol=rtol)
    assert torch.allclose(total.float(), residual.float() + expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize("name", ["mps", "no-such"])
def test_other_devices_are_refused_by_name(name: str) -> None:
    with pytest.raises(StartupError, match=name):
        pick_device(ModelSettings(path=Path("model"), device=name))


def test_the_cpu_tells_its_memory() -> None:
    assert CpuDevice().memory_bytes() == psutil.virtual_memory().total
