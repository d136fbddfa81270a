"""Published `.pt` routers: scored as their definition says, read without running anything, refused by name."""

import json
import logging
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from allroads.cli.model_files import check_router
from allroads.config import HomeSettings, MeshSettings, RouterSettings, TierSettings, load_settings
from allroads.errors import CheckpointError
from allroads.mesh.wire import router_pb2 as pb
from allroads.mesh.wire import router_pb2_grpc
from allroads.policies.r2r import R2R
from allroads.router.checkpoint import load_router
from allroads.router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from allroads.router.r2r_scorer import R2RScorer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .test_checkpoint import Touch
from .test_service import answer_of, open_stream, request, served

CONFIGS = sorted(
    path for path in (Path(__file__).parents[2] / "configs").glob("*.yaml") if not path.stem.startswith("embedded-")
)
ROWS, HIDDEN, EMBEDDING, TOP = 472, 16, 10, 8
SMALL: dict[str, Any] = {
    "hidden_states_size": HIDDEN, "logits_size": TOP, "hidden_dims": [12, 12, 8], "expansion_factor": 3,
}  # fmt: skip
PUBLISHED: dict[str, Any] = {"logits_size": 100, "hidden_dims": [1024] * 6, "dropout_rate": 0.1}
WEIGHT = "backbone.blocks.1.dim_change.weight"


class Block(nn.Module):
    def __init__(self, width: int, output: int, expansion: int, dropout: float) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        grown = expansion * width
        self.mlp = nn.Sequential(
            nn.Linear(width, grown), nn.GELU(), nn.Dropout(dropout), nn.Linear(grown, output), nn.Dropout(dropout)
        )
        self.dim_change = nn.Identity() if width == output else nn.Linear(width, output)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.dim_change(x) + self.mlp(self.layer_norm(x))
        return result


class Backbone(nn.Module):
    def __init__(self, dims: list[int], expansion: int, dropout: float) -> None:
        super().__init__()
        self.input_projection = nn.Linear(dims[0], dims[0])
        outputs = [*dims[1:], dims[-1]]
        self.blocks = nn.Sequential(*(Block(*d, expansion, dropout) for d in zip(dims, outputs, strict=True)))
        self.output_layer = nn.Sequential(nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output_layer(self.blocks(self.input_projection(x)))
        return result


class Reference(nn.Module):
    """The published class as facts/r2r.md, section 1, defines it, with the constructor's defaults."""

    def __init__(
        self,
        embedding: Tensor,
        *,
        hidden_states_size: int = 1536,
        logits_size: int = 100,
        hidden_dims: list[int] | None = None,
        expansion_factor: int = 4,
        dropout_rate: float = 0.3,
        normalize_input: bool = False,
    ) -> None:
        super().__init__()
        dims, size = hidden_dims or [256, 512, 256], embedding.shape[1]
        self.normalize_input = normalize_input
        if normalize_input:
            self.layer_norm_hidden_states = nn.LayerNorm(hidden_states_size)
            self.layer_norm_token = nn.LayerNorm(size)
        self.token_embeddings = nn.Embedding.from_pretrained(embedding)
        self.logits_projection = nn.Linear(logits_size, hidden_states_size)
        self.combined_projection = nn.Linear(2 * hidden_states_size + size, dims[0])
        self.backbone = Backbone(dims, expansion_factor, dropout_rate)

    def forward(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        embedded = self.token_embeddings(token_ids)
        if self.normalize_input:
            hidden_states = self.layer_norm_hidden_states(hidden_states)
            embedded = self.layer_norm_token(embedded)
            top_logits = torch.softmax(top_logits, dim=-1)
        features = torch.cat([hidden_states, embedded, self.logits_projection(top_logits)], dim=-1)
        logit: Tensor = self.backbone(self.combined_projection(features))
        return torch.sigmoid(logit[:, 0])


def reference_of(embedding: Tensor, arguments: dict[str, Any]) -> Reference:
    """With random weights, and scores far enough apart to tell one formula from another."""
    torch.manual_seed(0)
    reference = Reference(embedding, **arguments).eval().requires_grad_(False)
    for name, parameter in reference.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.1)
        elif name != "token_embeddings.weight":
            nn.init.normal_(parameter, std=1.5 / parameter.shape[1] ** 0.5)
    return reference


def contents(reference: Reference, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a published file holds."""
    state = reference.state_dict()
    del state["token_embeddings.weight"]
    return {
        "model_type": "HiddenStatesTokenLMHeadLogitsClassifier",
        "init_args": arguments,
        "common_args": {"threshold": 0.42, "input_type": ["hidden_states", "token", "logits"]},
        "model_specific_args": {},
        "state_dict": state,
    }


def features(hidden: int = HIDDEN, top: int = TOP, rows: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """As the small model's service sends them: raw logits sorted, hidden states, proposals."""
    generator = torch.Generator().manual_seed(1)
    top_logits = (5 * torch.randn(rows, top, generator=generator)).sort(descending=True).values
    return top_logits, torch.randn(rows, hidden, generator=generator), torch.arange(rows) * 50


def write_slm(models: Path, hidden: int, embedding: Tensor) -> Path:
    """A small model as far as a router knows it."""
    slm = models / "slm"
    config = json.loads((slm / "config.json").read_text())
    (slm / "config.json").write_text(json.dumps(config | {"hidden_size": hidden}))
    save_file({"model.embed_tokens.weight": embedding}, slm / "model.safetensors")
    return slm


@pytest.fixture
def slm(models: Path) -> Path:
    """A small model whose embedding is narrower than its hidden states, and as small as real ones are."""
    return write_slm(models, HIDDEN, 0.02 * torch.randn(ROWS, EMBEDDING, generator=torch.Generator().manual_seed(7)))


@pytest.fixture
def reference(slm: Path) -> Reference:
    return reference_of(load_file(slm / "model.safetensors")["model.embed_tokens.weight"], SMALL)


@pytest.fixture
def content(reference: Reference) -> dict[str, Any]:
    return contents(reference, dict(SMALL))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where the router lies; it may be large, so it does not stay."""
    path = tmp_path / "default_router.pt"
    yield path
    path.unlink(missing_ok=True)


def assert_scores(path: Path, slm: Path, reference: Reference) -> R2RScorer:
    scorer = R2RScorer(load_router(path, slm))
    batch = features(scorer.facts.hidden_size, scorer.facts.num_top_logits)
    scorer.check(*batch)
    wanted = reference(*batch)
    assert wanted.std() > 0.01
    torch.testing.assert_close(scorer.score(*batch), wanted, rtol=0, atol=1e-5)
    return scorer


def test_a_file_of_the_published_shape(models: Path, path: Path) -> None:
    embedding = torch.randn(ROWS, 1024, generator=torch.Generator().manual_seed(3))
    slm = write_slm(models, 1024, embedding.bfloat16())
    arguments = PUBLISHED | {"hidden_states_size": 1024}
    reference = reference_of(embedding.bfloat16().float(), arguments)
    content = contents(reference, arguments)
    assert len(content["state_dict"]) == 46
    torch.save(content, path)
    scorer = assert_scores(path, slm, reference)
    assert scorer.facts.num_parameters == 54_677_505
    assert (scorer.facts.threshold, scorer.facts.name) == (0.42, "r2r")


@pytest.mark.parametrize(("hidden", "count"), [(1536, 56_302_081), (2048, 57_926_657), (2560, 59_551_233)])
def test_the_other_published_shapes(hidden: int, count: int) -> None:
    arguments = PUBLISHED | {"hidden_states_size": hidden}
    with torch.device("meta"):
        reference = Reference(torch.empty(10, hidden), **arguments)
        ours = HiddenStatesTokenLMHeadLogitsClassifier(
            ClassifierArguments.model_validate(arguments | {"hidden_dims": (1024,) * 6}), hidden
        )
    shapes = {name: tensor.shape for name, tensor in contents(reference, arguments)["state_dict"].items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == shapes
    assert ours.num_parameters == count


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dims", [[12], [12, 12], [8, 20, 20, 8, 5]])
def test_scores_equal_the_definition(slm: Path, path: Path, dims: list[int], normalize: bool) -> None:
    arguments = SMALL | {"hidden_dims": dims, "normalize_input": normalize}
    reference = reference_of(load_file(slm / "model.safetensors")["model.embed_tokens.weight"], arguments)
    torch.save(contents(reference, arguments), path)
    assert_scores(path, slm, reference)


def test_arguments_that_are_not_named_are_the_constructors(slm: Path, path: Path) -> None:
    arguments = {"hidden_states_size": HIDDEN}
    reference = reference_of(load_file(slm / "model.safetensors")["model.embed_tokens.weight"], arguments)
    torch.save(contents(reference, arguments), path)
    assert_scores(path, slm, reference)
    assert load_router(path, slm).manifest.init_args == ClassifierArguments(hidden_states_size=HIDDEN)


def test_arguments_without_effect_are_dropped(
    slm: Path, path: Path, content: dict[str, Any], reference: Reference
) -> None:
    content["init_args"] |= {
        "dtype": torch.bfloat16,
        "pretrained_model_name": "/home/somebody/models/secret",
        "freeze_lm_head": True,
        "use_position_embedding": False,
        "max_position_embeddings": 1024,
        "topk": None,
    }
    torch.save(content, path)
    assert_scores(path, slm, reference)


def test_a_copy_of_the_embedding_is_left_aside(
    slm: Path, path: Path, content: dict[str, Any], reference: Reference
) -> None:
    content["state_dict"]["token_embeddings.weight"] = torch.zeros(ROWS, EMBEDDING)
    torch.save(content, path)
    assert_scores(path, slm, reference)
    content["state_dict"]["token_embeddings.weight"] = torch.zeros(ROWS + 1, EMBEDDING)
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"another small model .* token_embeddings.weight is \(473, 10\)"):
        load_router(path, slm)


def test_half_precision_is_read_as_float32(
    slm: Path, path: Path, content: dict[str, Any], reference: Reference
) -> None:
    content["state_dict"] = {name: tensor.bfloat16() for name, tensor in content["state_dict"].items()}
    torch.save(content, path)
    reference.load_state_dict(content["state_dict"], strict=False)
    assert_scores(path, slm, reference)


def test_what_cannot_be_checked_is_said_once(
    slm: Path, path: Path, content: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    torch.save(content, path)
    with caplog.at_level(logging.WARNING):
        loaded = load_router(path, slm)
    (record,) = caplog.records
    assert "does not tell what it was made for" in record.getMessage()
    assert loaded.manifest.slm.model_id in record.getMessage()
    assert (loaded.manifest.threshold, loaded.manifest.llm.model_id) == (0.42, "")


def test_without_a_threshold_the_policy_has_one(
    slm: Path, path: Path, content: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    content["common_args"]["threshold"] = None
    torch.save(content, path)
    with caplog.at_level(logging.WARNING):
        assert load_router(path, slm).manifest.threshold == R2R.parameters[0].default == 0.5
    assert "holds no threshold" in caplog.text


async def test_it_is_served_and_names_no_large_model(
    models: Path, slm: Path, path: Path, content: dict[str, Any], reference: Reference
) -> None:
    torch.save(content, path)
    settings = MeshSettings(
        slm=HomeSettings(path=slm),
        llm=TierSettings(path=models / "llm"),
        router=RouterSettings(path=path, address=f"unix:{models.parent}/r.sock"),
        grace_s=1,
    )
    async with served(settings) as channel:
        described = await router_pb2_grpc.RouterServiceStub(channel).DescribeRouter(pb.DescribeRouterRequest())
        call = open_stream(channel)
        await call.write(request(1, features()))
        scores = (await answer_of(call)).scores
        await call.done_writing()
    (scorer,) = described.scorers
    assert (scorer.name, scorer.llm_id, scorer.hidden_size, scorer.num_top_logits) == ("r2r", "", HIDDEN, TOP)
    assert scorer.threshold == pytest.approx(0.42)
    torch.testing.assert_close(torch.tensor(scores), reference(*features()), rtol=0, atol=1e-5)


def test_a_file_that_would_run_code_is_refused_and_runs_nothing(
    slm: Path, path: Path, content: dict[str, Any], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    content["model_specific_args"] = {"x": Touch(marker)}
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"holds more than weights and settings .* refused"):
        load_router(path, slm)
    path.write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(CheckpointError, match=r"not written by torch.save"):
        load_router(path, slm)
    assert not marker.exists()
    torch.save(content, path)
    torch.load(path, weights_only=False)
    assert marker.exists(), "the file was harmless, and this test worth nothing"


def test_a_training_file_is_called_one(slm: Path, path: Path, content: dict[str, Any]) -> None:
    torch.save({"epoch": 3, "best_val_loss": np.float64(0.1), "model_state_dict": content["state_dict"]}, path)
    with pytest.raises(CheckpointError, match=r"is a training file.*numpy.*default_router\.pt"):
        load_router(path, slm)
    torch.save({"epoch": 3, "model_state_dict": content["state_dict"]}, path)
    with pytest.raises(CheckpointError, match=r"it lacks model_type, .*after an epoch.*default_router\.pt"):
        load_router(path, slm)
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match="it holds no dict"):
        load_router(path, slm)


@pytest.mark.parametrize("keep", [0, 4, 5000, -1])
def test_a_truncated_file_is_refused(slm: Path, path: Path, content: dict[str, Any], keep: int) -> None:
    torch.save(content, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"default_router\.pt is damaged"):
        load_router(path, slm)
    with pytest.raises(CheckpointError, match=r"router\.path: .* is damaged"):
        check_router(path, "router.path")


def test_a_damaged_file_is_refused(slm: Path, path: Path, content: dict[str, Any]) -> None:
    torch.save(content, path)
    damaged = path.read_bytes().replace(b"hidden_states_size", b"\xff" * 18)
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"default_router\.pt is damaged: torch cannot read it"):
        load_router(path, slm)


def test_a_missing_file_is_refused(slm: Path, path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*default_router\.pt.*router\.path must be"):
        load_router(path, slm)


@pytest.mark.parametrize("key", ["model_type", "init_args", "common_args", "model_specific_args", "state_dict"])
def test_a_missing_key_is_named(slm: Path, path: Path, content: dict[str, Any], key: str) -> None:
    del content[key]
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=f"it lacks {key}\\."):
        load_router(path, slm)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("init_args", {"use_position_embedding": True}, "init_args.use_position_embedding"),
        ("init_args", {"secret": 1}, "init_args.secret"),
        ("init_args", {"hidden_dims": []}, "init_args.hidden_dims"),
        ("init_args", {"hidden_dims": [2**62]}, "init_args.hidden_dims.0"),
        ("init_args", {"logits_size": "8"}, "init_args.logits_size"),
        ("init_args", {"hidden_states_size": 1024}, "another small.*hidden_states_size is 1024, not 16"),
        ("init_args", {"logits_size": 7}, r"logits_projection.weight is torch.float32 \[16, 8\], not .*\[16, 7\]"),
        ("init_args", {"logits_size": 500}, "init_args.logits_size is 500, .* only 472 logits"),
        ("init_args", {"normalize_input": True}, "layer_norm_hidden_states.bias is missing"),
        ("common_args", {"threshold": 1.5}, "common_args.threshold"),
        ("common_args", {"threshold": float("nan")}, "common_args.threshold"),
        ("common_args", {"threshold": "0.5"}, "common_args.threshold"),
        ("common_args", {"input_type": ["logits"]}, "common_args.input_type is"),
        ("common_args", {"input_type": None}, "common_args.input_type"),
        ("state_dict", {WEIGHT: torch.zeros(8, 11)}, rf"{WEIGHT} is torch.float32 \[8, 11\], not .* \[8, 12\]"),
        ("state_dict", {WEIGHT: torch.zeros(8, 12, dtype=torch.int64)}, f"{WEIGHT} in state_dict is no plain tensor"),
        ("state_dict", {WEIGHT: torch.zeros(8, 12, device="meta")}, f"{WEIGHT} in state_dict is no plain tensor"),
        ("state_dict", {WEIGHT: 1.0}, f"{WEIGHT} in state_dict is no plain tensor"),
        ("state_dict", {"lm_head.weight": torch.zeros(2)}, "lm_head.weight is not part of this router"),
        ("state_dict", {"combined_projection.weight": torch.zeros(12, 48)}, "embedding size by combined.*16, not 10"),
        ("state_dict", {"backbone.output_layer.1.weight": torch.zeros(3, 8)}, "output_layer.1.weight has 3 outputs"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    slm: Path, path: Path, content: dict[str, Any], part: str, change: dict[str, Any], message: str
) -> None:
    content[part] |= change
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=message):
        load_router(path, slm)


@pytest.mark.parametrize("name", [WEIGHT, "combined_projection.weight", "backbone.output_layer.1.weight"])
def test_a_missing_tensor_is_named(slm: Path, path: Path, content: dict[str, Any], name: str) -> None:
    del content["state_dict"][name]
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=f"the tensor {name} is missing"):
        load_router(path, slm)


@pytest.mark.parametrize("key", ["model_type", "init_args", "common_args", "state_dict"])
def test_a_value_of_another_kind_is_named(slm: Path, path: Path, content: dict[str, Any], key: str) -> None:
    content[key] = "LogitsClassifier"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=key):
        load_router(path, slm)


def test_the_preflight_takes_it_without_torch(path: Path, content: dict[str, Any]) -> None:
    torch.save(content, path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom allroads.cli.model_files import check_router\n"
        f"check_router(Path({str(path)!r}), 'router.path')\nsys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_preflight_refuses_what_is_no_router(path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"router.path: no file .*default_router\.pt"):
        check_router(path, "router.path")
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match=r"router.path: .* was not written by torch\.save"):
        check_router(path, "router.path")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "no weights")
    with pytest.raises(CheckpointError, match=r"router.path: .*no data\.pkl"):
        check_router(path, "router.path")
    torch.save(content, path)
    other = path.rename(path.with_suffix(".bin"))
    with pytest.raises(CheckpointError, match=r"router.path: no directory .* published router's \.pt file"):
        check_router(other, "router.path")


def test_there_is_a_configuration_for_every_published_pair() -> None:
    assert {path.stem for path in CONFIGS} == {
        "qwen3-0.6b-8b", "qwen3-0.6b-30b-a3b", "qwen3-0.6b-32b", "qwen3-0.6b-32b-two-gpus", "qwen3-1.7b-8b",
        "qwen3-4b-8b", "r1-distill-qwen-1.5b-32b",
    }  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_configurations_load(config: Path) -> None:
    settings = load_settings(config)
    assert settings.model_name == f"r2r-{config.stem}"
    for model in (settings.slm, settings.llm):
        assert model.path.parent == Path("models-hub")
        assert (model.dtype, model.device, model.num_kv_tokens) == ("bfloat16", "cuda:0", "auto")
    assert settings.router.path.parts[0] == "models-hub"
    assert settings.router.path.name == "default_router.pt"
