"""A report as one HTML file: nothing is fetched, nothing runs, and every name in it is escaped."""

from base64 import b64encode
from typing import Any

from jinja2 import Environment, StrictUndefined

from ..svg_style import HOW_TO_INSTALL
from . import pictures, wording
from .report import Audit, GroupReport

_MAX_PICTURED = 12
"""Groups that get pictures; a log of many thresholds would make a page that no browser likes."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width">
<title>Audit of routing decisions</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; font-size: 13px; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
.note { color: #666; font-size: 13px; }
.parted { color: #b30000; font-weight: bold; }
</style>
</head>
<body>
<h1>Audit of routing decisions</h1>
<p>{{ source }}</p>
{% for group in groups %}
<h2>{{ group.label }}</h2>
<p>{{ group.summary }}</p>
{% for title, columns, rows in group.tables %}
<table>
<tr><th>{{ title }}</th>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endfor %}
{% if group.drift %}<p{% if group.has_parted %} class="parted"{% endif %}>{{ group.drift }}</p>{% endif %}
{% for title, image in group.pictures %}
<h3>{{ title }}</h3>
<img alt="{{ title }}" src="data:image/svg+xml;base64,{{ image }}">
{% endfor %}
{% endfor %}
<p>{{ caution }}</p>
{% if how_to_draw %}<p class="note">There are no pictures: matplotlib is missing ({{ how_to_draw }}).</p>{% endif %}
<p class="note">Files: {{ files | join(", ") }}</p>
</body>
</html>
"""


def render_page(audit: Audit) -> str:
    """The report as HTML."""
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(_PAGE)
    can_draw = pictures.can_draw()
    return template.render(
        source=wording.source(audit),
        groups=[
            _group(group, has_pictures=can_draw and number < _MAX_PICTURED) for number, group in enumerate(audit.groups)
        ],
        caution=wording.CAUTION,
        how_to_draw="" if can_draw else HOW_TO_INSTALL,
        files=audit.files,
    )


def _group(group: GroupReport, *, has_pictures: bool) -> dict[str, Any]:
    drift = group.drift
    return {
        "label": group.key.label,
        "summary": wording.summary(group),
        "tables": wording.tables(group),
        "drift": "" if drift is None else wording.drift_line(drift),
        "has_parted": drift is not None and drift.verdict == "parted",
        # As images, so that nothing in them can be more than a picture.
        "pictures": [
            (title, b64encode(drawn.encode()).decode())
            for title, drawn in (pictures.pictures_of(group) if has_pictures else [])
        ],
    }
