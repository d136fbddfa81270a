"""`report.html`: one file that fetches nothing and runs nothing; all that models and files say in it is escaped."""

import json
from base64 import b64encode
from typing import Any

from jinja2 import Environment, StrictUndefined

from .pictures import cost_of, draw_pareto, draw_positions, draw_reliability, pareto_front
from .report_file import FORMULAS, ArmFigures, Interval, Report
from .wording import number_interval, percent, percent_interval, query_words, summary

PAGE_FILE = "report.html"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width">
<title>Evaluation of routing</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
tr.front td:first-child { font-weight: bold; }
img { max-width: 100%; }
pre { white-space: pre-wrap; background: #f6f6f6; padding: 0.6rem; }
.answer { white-space: pre-wrap; background: #f6f6f6; padding: 0.6rem; }
.tier1 { background: #f7c9a5; } .tier2 { background: #a9d5f0; } .tier3 { background: #b7e3c7; }
.note { color: #666; font-size: 13px; }
</style>
</head>
<body>
<h1>Evaluation of routing</h1>
{% for paragraph in summary %}<p>{{ paragraph }}</p>
{% endfor %}
<h2>What was asked</h2>
<table>
{% for name, value in asked %}<tr><td>{{ name }}</td><td style="text-align: left">{{ value }}</td></tr>
{% endfor %}</table>
<h2>Figures</h2>
<table>
<tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for is_front, row in rows %}<tr{% if is_front %} class="front"{% endif %}>
{%- for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
<p class="note">In brackets: 95 % intervals (Wilson's for right answers, else the bootstrap over problems). Bold:
nothing measured is both cheaper by the published formula and better. Cost: billions of parameters times token
positions, for an answer. The published formula (arXiv 2505.21600) counts each token of the answer once, by the model
that wrote it. The full one counts all that any model computed: prompts, proposals that were dropped, what the large
model read to catch up, and the router; it counts a token that is read along with others like one that is written
alone, so it is a bound from above. Token/s: all requests together, {{ concurrency }} at once.</p>
<h2>Against the same cost spent otherwise</h2>
{% for name, words in comparisons %}<h3>{{ name }}</h3>
<ul>{% for line in words %}<li>{{ line }}</li>{% endfor %}</ul>
{% endfor %}
<h2>Accuracy against cost</h2>
{% for title, image in pareto %}<h3>{{ title }}</h3><img alt="{{ title }}" src="data:image/svg+xml;base64,{{ image }}">
{% endfor %}
<h2>Where in the answer the large model writes</h2>
<img alt="share by position" src="data:image/svg+xml;base64,{{ positions }}">
{% if shown %}<h2>Who wrote what</h2>
<p class="note">Without colour: {{ tiers[0] }}.
{% for name in tiers[1:] %}<span class="tier{{ loop.index }}">{{ name }}</span> {% endfor %}</p>
{% for answer in shown %}<h3>{{ answer.arm }}, problem {{ answer.problem }}:
{{ "right" if answer.right else "wrong" }}</h3>
<p class="note">{{ answer.question }}</p>
<div class="answer">{% for part in answer.stretches %}<span class="tier{{ part.tier }}">{{ part.text }}</span>
{%- endfor %}</div>
{% endfor %}{% endif %}
{% if reliability %}<h2>Can the scores be believed?</h2>
<p class="note">In an audit the large model wrote everything, and the router scored every proposal of the small one. A
proposal that the large model words otherwise counts as another token, even where it means the same, so points may lie
above the dotted line for a router whose score is the probability of another meaning. What matters: they rise.</p>
{% for name, image in reliability %}<h3>{{ name }}</h3>
<img alt="{{ name }}" src="data:image/svg+xml;base64,{{ image }}">
{% endfor %}{% endif %}
<h2>How to make this again</h2>
<pre>{{ command }}</pre>
<p class="note">allroads {{ version }}; {{ machine }}. All figures are in report.json, all answers in answers.jsonl.</p>
</body>
</html>
"""

_COLUMNS = (
    "arm",
    "right",
    "tokens of larger models",
    "activated, billions",
    "cost (published)",
    "cost (full)",
    "token/s",
    "token/s of a request",
    "tokens an answer",
    "cut",
)


def render_page(report: Report) -> str:
    """The report as HTML."""
    routed = report.arms_of("routed")
    points = [(arm.published_cost.value, arm.accuracy.value) for arm in report.arms]
    front = set(pareto_front(points))
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(_PAGE)
    return template.render(
        summary=summary(report),
        asked=_asked(report),
        columns=_COLUMNS,
        rows=[(point in front, _row(arm)) for point, arm in zip(points, report.arms, strict=True)],
        concurrency=report.run["settings"]["concurrency"],
        comparisons=[
            (comparison.arm, [f"{query.formula} cost: {query_words(query)}" for query in comparison.queries])
            for comparison in report.comparisons
        ],
        pareto=[
            (f"by the {formula} formula", _encoded(draw_pareto(report, formula)))
            for formula in FORMULAS
            if all(cost_of(arm, formula) is not None for arm in report.arms)
        ],
        positions=_encoded(draw_positions([*routed, *report.arms_of("random")])),
        shown=report.shown,
        tiers=report.tiers,
        reliability=[(found.policy, _encoded(draw_reliability(found))) for found in report.reliability],
        command=report.command,
        version=report.allroads,
        machine=", ".join(f"{name} {value}" for name, value in report.machine.items()),
    )


def _row(arm: ArmFigures) -> tuple[str, ...]:
    return (
        arm.name,
        percent_interval(arm.accuracy),
        percent_interval(arm.llm_share),
        number_interval(arm.activated),
        number_interval(arm.published_cost),
        _if_known(arm.full_cost),
        f"{arm.tokens_per_s:.4g}",
        number_interval(arm.tokens_per_s_per_request),
        number_interval(arm.length),
        percent(arm.num_cut / arm.num_problems),
    )


def _if_known(interval: Interval | None) -> str:
    return "unknown" if interval is None else number_interval(interval)


def _asked(report: Report) -> list[tuple[str, str]]:
    mesh = report.run["mesh"]
    rows = [("problems", _plain(report.run["problems"]))]
    rows += [
        (f"model {name}", f"{mesh['tiers'][name]}, {count:,} parameters for a token")
        for name, count in zip(report.tiers, report.parameters, strict=True)
    ]
    rows += [(f"router of {name}", f"{count:,} parameters") for name, count in report.router_parameters.items()]
    rows += [(name, _plain(value)) for name, value in report.run["settings"].items() if value not in (None, {}, [])]
    if report.run["judge"]:
        rows.append(("judge", report.run["judge"]))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return value if isinstance(value, str) else json.dumps(value)


def _encoded(svg: str) -> str:
    """As an image, so that nothing in it can be more than a picture."""
    return b64encode(svg.encode()).decode()
