"""The clients that the REST API must please: what to install for each, and how to ask it."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = "passed"
_TIMEOUT_S = 400.0
_TOKENIZER = ROOT / "models" / "slm"
_TASKS = ROOT / "bench" / "lm_eval_task"
_LEAST_RIGHT = 0.5
_QUESTION = "Aya has 37 apples. Aya buys 58 more apples. How many apples does Aya have now?"

Outcomes = Mapping[str, str]
"""By feature: `PASSED`, or why not."""


@dataclass(frozen=True)
class Place:
    """Where a client is, and whom it asks."""

    folder: Path
    """Its environment, and a place for what it writes."""
    url: str

    @property
    def bin(self) -> Path:
        """Its commands."""
        return self.folder / "bin"

    async def run(self, *command: str | Path) -> tuple[int, str, str]:
        """Exit code, output and errors of a command in the repository's root; it knows no hub and reports to nobody."""
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=ROOT,
            env=os.environ
            | {
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(self.folder / "hub"),
                "OPENAI_API_KEY": "unused",
                "DO_NOT_TRACK": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "PYTHONWARNINGS": "ignore",
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return -1, "", f"no end within {_TIMEOUT_S:g} s"
        return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


@dataclass(frozen=True)
class Kind:
    """A client."""

    name: str
    packages: tuple[str, ...]
    """What pip is told to install; the first one's version is stated."""
    ask: Callable[[Place], Awaitable[Outcomes]]


def _script(name: str) -> Callable[[Place], Awaitable[Outcomes]]:
    async def ask(place: Place) -> Outcomes:
        code, out, err = await place.run(place.bin / "python", "-m", f"bench.client_scripts.{name}", place.url)
        if code:
            return {"start": last_words(err)}
        outcomes: dict[str, str] = json.loads(out.strip().splitlines()[-1])
        return outcomes

    return ask


async def _lm_eval(place: Place) -> Outcomes:
    completions = f"base_url={place.url}/v1/completions,tokenizer={_TOKENIZER},tokenizer_backend=huggingface"
    runs = {
        "generate by completions": ("local-completions", f"{completions},tokenized_requests=True", "allroads_apples"),
        "log-probabilities of prompts": ("local-completions", completions, "allroads_apples_choice"),
        "generate by chat": (
            "local-chat-completions",
            f"base_url={place.url}/v1/chat/completions,tokenizer_backend=None,tokenized_requests=False",
            "allroads_apples",
        ),
    }
    outcomes = {}
    for feature, (model, options, task) in runs.items():
        code, out, err = await place.run(
            place.bin / "lm_eval", "--model", model, "--model_args", f"model=allroads,max_retries=1,{options}",
            "--tasks", task, "--include_path", _TASKS, "--output_path", place.folder / "results",
            # The pair knows problems in its chat template only.
            *(["--apply_chat_template"] if task == "allroads_apples" else []),
        )  # fmt: skip
        outcomes[feature] = _scored(out) if code == 0 else last_words(err)
    return outcomes


def _scored(report: str) -> str:
    """Whether the problems that the pair can solve were solved: it is right about nearly all of this kind."""
    values = re.findall(r"\|(?:exact_match|acc)\s*\|[^|]*\|\s*([0-9.]+)\|", report)
    if not values:
        return "no score in the report"
    return PASSED if float(values[0]) >= _LEAST_RIGHT else f"only {float(values[0]):.0%} of the answers are right"


async def _guidellm(place: Place) -> Outcomes:
    results = place.folder / "results.json"
    code, out, err = await place.run(
        place.bin / "guidellm", "benchmark", "--target", place.url, "--model", "allroads", "--processor", _TOKENIZER,
        "--rate-type", "concurrent", "--rate", "4", "--max-requests", "16",
        "--data", "prompt_tokens=24,output_tokens=16", "--output-path", results, "--disable-progress",
    )  # fmt: skip
    if code:
        return {"load": last_words(err or out)}
    totals = json.loads(results.read_text())["benchmarks"][0]["request_totals"]
    is_fine = totals["successful"] == totals["total"]
    return {"load": PASSED if is_fine else f"of {totals['total']} requests {totals['successful']} succeeded"}


async def _curl(place: Place) -> Outcomes:
    if shutil.which("curl") is None:
        return {"chat": "curl is not installed"}
    outcomes = {}
    for feature, more in (("chat", {}), ("stream", {"stream": True})):
        body = {"model": "allroads", "messages": [{"role": "user", "content": _QUESTION}], "temperature": 0, **more}
        code, out, err = await place.run(
            "curl", "-sSN", "--fail-with-body", f"{place.url}/v1/chat/completions",
            "-H", "Content-Type: application/json", "-d", json.dumps(body),
        )  # fmt: skip
        is_whole = "data: [DONE]" in out if more else '"finish_reason":"stop"' in out.replace(": ", ":")
        outcomes[feature] = PASSED if code == 0 and is_whole else last_words(err or out)
    return outcomes


def last_words(text: str) -> str:
    """The last line that says something, short enough for a table."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip(" │╭╮╰╯─")]
    return lines[-1].replace("|", "/")[:200] if lines else "it failed and said nothing"


KINDS = (
    Kind("openai-python", ("openai",), _script("openai_python")),
    Kind("langchain-openai", ("langchain-openai",), _script("langchain")),
    Kind("litellm", ("litellm",), _script("litellm_python")),
    Kind("lm-eval", ("lm_eval", "transformers", "requests", "aiohttp", "tenacity", "tqdm", "tiktoken"), _lm_eval),
    # Newer ones need torch, and their default build of it gigabytes.
    Kind("guidellm", ("guidellm<0.4",), _guidellm),
    Kind("curl", (), _curl),
)
