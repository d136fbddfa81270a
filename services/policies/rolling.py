"""Route by the mean uncertainty of the last few tokens: R2R's code, `SingleRollingWindowSwitching`."""

import math

from .dirichlet import MAX_ALEATORIC
from .policy import Parameter, RequestView, setting, threshold
from .small_rule import SmallRule

_MAX_WINDOW = 64


class Rolling(SmallRule):
    """One unsure token calls the large model, which writes until a window of tokens is sure in the mean.

    It starts on the large model with an empty window. Uncertainty that is NaN counts as unsure, and enters no window.
    """

    name = "rolling"
    summary = "the large model writes from an unsure token on, until the last few are sure in the mean"
    parameters = (
        threshold(0.0, MAX_ALEATORIC, 2.275, "aleatoric uncertainty in nats, below which the small model is sure"),
        Parameter("entropy", "entropy in nats, below which a token is sure too", 0.0, 20.0, 0.02),
        Parameter("window", "tokens in the window", 1, _MAX_WINDOW, 3, is_whole=True),
    )
    never = setting(threshold=MAX_ALEATORIC)
    always = setting(threshold=0.0, entropy=0.0)

    def is_large(self, request: RequestView, aleatoric: float, entropy: float) -> bool:
        """By this token alone while the small model writes; while the large one does, by a window that it is in."""
        window: tuple[float, ...] | None = request.memory.get("window", ())
        known = () if math.isnan(aleatoric) else (aleatoric,)
        if window is None:  # the small model writes
            is_sure = bool(known) and (aleatoric < request.threshold or entropy < request.number("entropy"))
            window = known
        else:
            window = (*window, *known)[-int(request.number("window")) :]
            is_sure = bool(window) and sum(window) / len(window) < request.threshold
        request.memory["window"] = None if is_sure else window
        return not is_sure
