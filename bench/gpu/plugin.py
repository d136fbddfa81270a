"""What the services of the bench load as a plug-in: routing by a script, and weights that are made up.

Whether the large model writes a token, or keeps a draft, is drawn from the request's seed and the position, so that
every system of a run makes the same choices.
"""

from pathlib import Path

from allroads.engine.sampling import uniform
from allroads.policies.judging import judge, own_tokens
from allroads.policies.policy import ACCEPT, Drafts, Judgement, Parameter, Policy, Proposals, Verdict, reject, setting
from allroads.policies.speculative import Lossless

from .made_up import install

ROUTED = "bench-routed"
DRAFTED = "bench-drafted"
_SALT = 0xB0A7


def drawn(seed: int, position: int, probability: float) -> bool:
    """The script: true at this position of this request with a probability."""
    return uniform(seed ^ _SALT, position) < probability


class Routed(Policy):
    """R2R with a script in place of the threshold: the router scores every proposal, and its scores are waited for."""

    name = ROUTED
    summary = "a script says which tokens the large model writes, once the router has scored them"
    parameters = (Parameter("share", "probability that the large model writes a token", 0.0, 1.0),)
    scorer = "r2r"
    never = setting(share=0.0)
    always = setting(share=1.0)

    def route(self, proposals: Proposals) -> list[Verdict]:
        """Scores are there, and are not looked at."""
        return [
            reject(request.large) if drawn(request.seed, request.position, request.number("share")) else ACCEPT
            for request in proposals.requests
        ]


class Drafted(Lossless):
    """Speculative decoding with a script in place of the comparison; the large model's pass is the real one."""

    name = DRAFTED
    summary = "a script says which drafts stand, once the large model has seen them"
    parameters = (  # type: ignore[assignment] # one more than the base has
        *Lossless.parameters,
        Parameter("acceptance", "probability that a draft stands", 0.0, 1.0),
    )
    always = setting(acceptance=1.0)

    def verify(self, drafts: Drafts) -> list[Judgement]:
        """The large model's own tokens are drawn all the same."""
        judgements = []
        for request, rows, own in zip(drafts.requests, drafts.rows, own_tokens(drafts), strict=True):
            acceptance = request.number("acceptance")
            judgements.append(judge([drawn(request.seed, row.position, acceptance) for row in rows[:-1]], own))
        return judgements


def write_plugin(directory: Path) -> None:
    """Write what makes this module a plug-in of every Python that has `directory` and the repository on its path."""
    info = directory / "allroads_bench-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: allroads-bench\nVersion: 1.0\n")
    policies = "\n".join(f"{kind.name} = {__name__}:{kind.__name__}" for kind in (Routed, Drafted))
    (info / "entry_points.txt").write_text(f"[allroads.policies]\n{policies}\n")


install()
