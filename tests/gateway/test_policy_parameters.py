"""Parameters of policies: what is given travels as it is, over both APIs, and the model card tells what there is."""

from pathlib import Path
from typing import Any

import pytest
from allroads.gateway.parameters import read_parameters
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.routing import routing_to_wire
from allroads.mesh.wire import gateway_pb2, model_pb2
from allroads.policies.policy import Parameter
from allroads.policies.registry import PolicyRegistry

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served

THREE = ("slm", "mlm", "llm")


def given(opened: model_pb2.OpenRequest) -> tuple[str, dict[str, list[float]]]:
    """Policy and parameters that came to the home."""
    return opened.routing.policy, {name: list(n.values) for name, n in opened.routing.parameters.items()}


@pytest.fixture
async def served(serve: Serve, tokenizer: TextTokenizer) -> Served:
    return await serve(Script(await tokenizer.encode_prompt("Aya")), tier_names=THREE)


CASES: list[tuple[dict[str, Any], dict[str, list[float]]]] = [
    ({}, {}),
    ({"policy": None, "threshold": None}, {}),
    ({"threshold": 1}, {"threshold": [1.0]}),
    ({"policy": "r2r", "threshold": [0.1]}, {"threshold": [0.1]}),
    ({"policy": "speculative", "draft_tokens": 6}, {"draft_tokens": [6.0]}),
    ({"policy": "speculative", "draft_tokens": 6.0, "patience": 1e300}, {"draft_tokens": [6.0], "patience": [1e300]}),
    ({"policy": "me", "weights": [0.5, 0, 0.2]}, {"weights": [0.5, 0.0, 0.2]}),
    ({"policy": "me"}, {}),
]


@pytest.mark.parametrize(("routing", "wanted"), CASES)
async def test_what_a_client_gives_travels_and_nothing_else(
    served: Served, routing: dict[str, Any], wanted: dict[str, list[float]]
) -> None:
    policy = routing.get("policy") or ""
    assert (await served.chat(routing={**routing, "report_tokens": True})).status_code == 200
    call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x", routing=routing_to_wire(policy, wanted)))
    await call.read()
    await call.code()
    assert [given(opened) for opened in served.home.opens] == [(policy, wanted)] * 2


@pytest.mark.parametrize("names", [("slm", "llm"), ("a", "b", "c", "d")])
async def test_a_policy_whose_defaults_do_not_fit_the_mesh_must_be_given_them(
    serve: Serve, tokenizer: TextTokenizer, names: tuple[str, ...]
) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya")), tier_names=names)
    refused = await served.chat(routing={"policy": "me"})
    assert refused.status_code == 400
    assert f"{len(names)} numbers from 0 to 1000, one for each tier" in refused.json()["error"]["message"]
    assert (await served.chat(routing={"policy": "me", "weights": [1] * len(names)})).status_code == 200
    (card,) = (await served.http.get("/v1/models")).json()["data"]
    policies = {policy["name"]: policy for policy in card["allroads"]["policies"]}
    assert policies["me"]["parameters"][0]["default"] is None


async def test_the_model_card_tells_tiers_policies_and_parameters(served: Served) -> None:
    (card,) = (await served.http.get("/v1/models")).json()["data"]
    assert card == (await served.http.get(f"/v1/models/{MODEL}")).json()
    block = card["allroads"]
    assert block["tiers"] == [
        {"name": name, "model": f"{name}-model", "num_parameters": 10**tier} for tier, name in enumerate(THREE)
    ]
    assert block["default_policy"] == "r2r"
    policies = {policy["name"]: policy for policy in block["policies"]}
    assert list(policies) == ["r2r", "random", "speculative", "me", "slm"]
    assert (policies["r2r"]["scorer"], policies["me"]["scorer"]) == ("r2r", None)
    assert policies["slm"]["parameters"] == []
    assert policies["random"]["parameters"][0]["default"] is None
    draft_tokens, patience = policies["speculative"]["parameters"]
    assert draft_tokens == {
        "name": "draft_tokens", "summary": "", "minimum": 1, "maximum": 16, "default": 8, "whole": True,
        "per_tier": False,
    }  # fmt: skip
    assert patience["maximum"] is None
    assert policies["me"]["parameters"][0]["default"] == [0.5, 0.3, 0.2]
    assert policies["me"]["parameters"][0]["per_tier"] is True


async def test_what_only_the_mesh_can_tell_is_null_before_it_is_there(serve: Serve) -> None:
    served = await serve(Script([5]), home_starts=False)
    (card,) = (await served.http.get("/v1/models")).json()["data"]
    assert (card["id"], card["max_model_len"], card["allroads"]) == (MODEL, None, None)


def test_as_many_parameters_and_numbers_as_are_allowed_are_read() -> None:
    content = {f"p{index}": [float(index)] * 64 for index in range(16)}
    assert read_parameters(content) == {name: tuple(values) for name, values in content.items()}


def documented(parameter: Parameter) -> str:
    """A parameter as docs/api.md has it."""
    kind = (", whole" if parameter.is_whole else "") + (" for each tier" if parameter.per_tier else "")
    if parameter.default is None:
        default = "required"
    elif isinstance(parameter.default, tuple):
        values = ", ".join(f"{value:g}" for value in parameter.default)
        default = f"default {values} in a mesh of {len(parameter.default)}"
    else:
        default = f"default {parameter.default:g}"
    return f"`{parameter.name}` ({parameter.minimum:g} to {parameter.maximum:g}{kind}; {default})"


def test_the_documentation_has_the_parameters_of_our_policies() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    documentation = {name.strip(" `"): row[1].strip() for row in rows for name in row[0].split(",")}
    for policy in PolicyRegistry.load().all():
        if policy.__module__.startswith("allroads."):
            wanted = ", ".join(documented(parameter) for parameter in policy.parameters) or "none"
            assert documentation.get(policy.name) == wanted
