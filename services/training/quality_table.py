"""The table in a scorer's card that tells how well it finds the rare class."""

from ..router.manifest import Quality, ScorerManifest


def quality_table(manifest: ScorerManifest, positives: str) -> str:
    """In Markdown, for validation and test; `positives` heads the column of the base rate."""
    head = f"| split | recall | precision | PR-AUC | tokens to the LLM | {positives} | mean probability |"
    rows = (_row(name, part) for name, part in (("validation", manifest.validation), ("test", manifest.test)))
    return "\n".join((head, "|---|---|---|---|---|---|---|", *rows))


def _row(name: str, quality: Quality) -> str:
    shares = (quality.recall, quality.precision, quality.pr_auc)
    rates = (quality.positive_rate, quality.base_rate, quality.mean_probability)
    cells = [f"{share:.3f}" for share in shares] + [f"{100 * rate:.2f} %" for rate in rates]
    return f"| {name} | {' | '.join(cells)} |"
