"""Records in the format of `evaluate`, by method."""


def record(method: str, acceptance: float | None, quality: float, **changes) -> dict:
    bounds = None if acceptance is None else [acceptance - 0.02, acceptance + 0.01]
    return {
        **{"method": method, "task": "math", "metric": "accuracy", "n": 100, "samples_per_prompt": 1},
        **{"temperature": 1.0, "num_assistant_tokens": 5, "batch_size": 16, "seconds_per_sample": 0.2},
        **{"quality": quality, "quality_ci": [quality - 0.05, quality + 0.03]},
        **{"acceptance_rate": acceptance, "acceptance_rate_ci": bounds},
        **changes,
    }


def sweep(**changes) -> list[dict]:
    """A small frontier; its points are not sorted."""
    return [
        record("target", None, 0.86, seconds_per_sample=0.4, **changes),
        record("lossless", 0.6, 0.85, seconds_per_sample=0.3, **changes),
        record("static:0.2", 0.9, 0.4, **changes),
        record("static:0.7", 0.7, 0.6, seconds_per_sample=0.25, **changes),
        record("lenience:0.5", 0.75, 0.55, **changes),
        record("diversed@0.7", 0.7, 0.84, static_gain=0.24, static_gain_ci=[0.2, 0.3], **changes),
        record("diversed@0.3", 0.9, 0.41, static_gain=0.01, static_gain_ci=[-0.1, 0.1], **changes),
    ]
