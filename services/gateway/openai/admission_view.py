"""What the gateway knows of the mesh's throughput and does about it, as `GET /v1/admission` shows it."""

from typing import Any

from ...throughput.setting_json import setting_to_json
from ..admission.controller import AdmissionController


def admission_view(controller: AdmissionController) -> dict[str, Any]:
    """JSON; null is what is not known. Lists have one entry for each larger tier, in their order."""
    profile, launches, predicted = controller.profile, controller.launches, controller.predicted
    is_ready = profile is not None and profile.is_ready
    return {
        "object": "admission",
        "is_ready": is_ready,
        "setting": setting_to_json(profile.setting()) if profile is not None and is_ready else None,
        "confidence": None if profile is None else profile.confidence,
        "num_requests": controller.num_requests,
        "thresholds": list(launches.in_force),
        "flush_s": list(launches.flush_s),
        "wished_thresholds": None if launches.wished is None else list(launches.wished),
        "predicted_tokens_per_s": None if predicted is None else predicted.tokens_per_s,
        "predicted_waits_s": None if predicted is None else list(predicted.waits_s),
        "predicted_for_num_requests": None if predicted is None else predicted.num_requests,
        "measured_tokens_per_s": controller.measured_tokens_per_s,
        "measured_waits_s": None if profile is None else profile.waits_s,
        "step_s": None if profile is None else profile.step_s,
        "fallbacks": controller.num_fallbacks,
    }
