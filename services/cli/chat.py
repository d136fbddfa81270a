"""`allroads chat`: talk to a running mesh."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import stderr, stdout


def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="One question. Without it: a conversation.", show_default=False)
    ] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="The mesh, with or without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(show_default="the one served", help="Model to ask for.")] = None,
    policy: Annotated[str | None, typer.Option(show_default="the mesh's", help="Routing policy.")] = None,
    threshold: Annotated[float | None, typer.Option(show_default="the policy's", help="Its threshold.")] = None,
    share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of LLM tokens for the policy `random`.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Length of an answer at most.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ALLROADS_API_KEY", help="Key, where the mesh wants one. Options are seen by other users."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates to trust, in place of the system's.")
    ] = None,
) -> None:
    """Ask a running mesh, and see which model wrote what.

    Answers stream; what the SLM did not write is in another colour for each model, or in [brackets] where
    NO_COLOR is set. Ctrl-C ends an answer.
    """
    # Late, so that no other command pays for an HTTP client.
    from .chat_client import ChatClient  # noqa: PLC0415
    from .chat_loop import ask, converse  # noqa: PLC0415
    from .chat_view import ChatView  # noqa: PLC0415

    routing = {"policy": policy, "threshold": threshold, "share": share}
    options: dict[str, Any] = {
        "temperature": temperature,
        "routing": {"report_tokens": True} | {key: value for key, value in routing.items() if value is not None},
    }
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    client = ChatClient(url, options, model, api_key=api_key, ca=ca)
    view = ChatView(stdout(), stderr())
    try:
        if prompt is None:
            converse(client, view, stderr(), is_terminal=sys.stdin.isatty())
        else:
            ask(client, view, [{"role": "user", "content": prompt}])
    finally:
        client.close()
