"""What a person needs once the mesh is up: where it is, and a first request to copy."""

import json

from ..config import MeshSettings
from .ports import join_address, reachable_host

EXAMPLE_QUESTION = "Aya has 37 apples. Aya buys 58 more apples. How many apples does Aya have now?"


def rest_url(settings: MeshSettings) -> str:
    """Base URL for OpenAI clients, reachable from this machine."""
    scheme = "http" if settings.gateway.tls is None else "https"
    return f"{scheme}://{join_address(reachable_host(settings.gateway.host), settings.gateway.port)}/v1"


def describe_endpoint(settings: MeshSettings, seconds: float) -> str:
    """Addresses, model and policy, and a request to try."""
    url = rest_url(settings)
    body = {"model": settings.model_name, "messages": [{"role": "user", "content": EXAMPLE_QUESTION}]}
    key = "" if settings.gateway.keys_path is None else '    -H "Authorization: Bearer $KEY" \\\n'
    quoted = json.dumps(body).replace("'", r"'\''")
    return f"""
allroads is ready after {seconds:.1f} s

  REST    {url}
  gRPC    {join_address(reachable_host(settings.gateway.host), settings.gateway.grpc_port)}
  model   {settings.model_name}
  policy  {settings.slm.policy}

  curl {url}/chat/completions \\
{key}    -H 'Content-Type: application/json' \\
    -d '{quoted}'

  allroads chat --url {url}

Ctrl-C stops it.
"""
