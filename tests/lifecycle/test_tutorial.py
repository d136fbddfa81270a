"""Every command of the tutorial runs, as a reader would run it, with fewer problems."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZES = "export PROBLEMS=120 QUESTIONS=8"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial asks the mesh with curl")
@pytest.mark.timeout(420)
def test_the_tutorial_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    assert blocks[0].startswith("export PROBLEMS=")
    # `allroads` is the one under test; its shell command may be installed elsewhere or not at all.
    command = f'allroads() {{ "{sys.executable}" -m allroads "$@"; }}'
    script = "\n".join(["set -eu", command, SIZES, *blocks[1:]])
    # A command in the background of a shell function is a subshell, which would not pass the signal on.
    script = script.replace("allroads up", f'"{sys.executable}" -m allroads up')
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "160", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    for made in (
        "labels/dataset.json", "router/router.safetensors", "router/calibration.json", "evaluation/report.html",
        "evaluation/report.json", "audit/audit.html", "decisions.jsonl",
    ):  # fmt: skip
        assert (tmp_path / made).stat().st_size > 0, made
    report = json.loads((tmp_path / "evaluation" / "report.json").read_text())
    assert {"slm", "llm"} <= {arm["name"] for arm in report["arms"]}
    decisions = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert {line["mode"] for line in decisions} == {"audit"}
    assert all(line["written"] == line["large"] for line in decisions if "end" not in line)
