"""Many calls of every kind in one process, some of which fail: tensors and attributes must not accumulate."""

import copy
import gc
import pickle

import torch

import hf_diversed
from hf_diversed import DiversedVerifier, StaticEnsembleVerifier
from tests.generation.modes import Interrupting
from tests.tiny import SAMPLED, Listener, num_hooks, ragged_batch, tiny_draft, tiny_head, tiny_model


FAILING = 4
GREEDY = {"max_new_tokens": 8, "do_sample": False}


def interrupt(*_):
    raise RuntimeError("interrupted")


def interrupted_forward(target, draft, **kwargs) -> None:
    """Generate with a draft whose forward fails, then remove the test's hook."""
    hook = draft.model.layers[0].register_forward_pre_hook(interrupt)
    try:
        target.generate(assistant_model=draft, verifier="lossless", **kwargs)
    finally:
        hook.remove()


def interrupted_attachment(target, draft, head, **kwargs) -> None:
    with hf_diversed.attach(target, draft, head), hf_diversed.record_stats():
        target.generate(stopping_criteria=[Interrupting()], **kwargs)


def attached(target, draft, head, **kwargs) -> None:
    with hf_diversed.attach(target, draft, head, num_assistant_tokens=3, diversed_strictness=0.7):
        with hf_diversed.record_stats() as stats:
            target.generate(**kwargs)
        assert stats.num_rounds > 0
        with hf_diversed.attach(target, draft, verifier="static:0.5"):
            target.generate(**kwargs)


def sorts_of_calls(target, draft, heads) -> list:
    """Return functions that call `generate` in different ways; `FAILING` of them fail."""
    batch, one = ragged_batch(3), ragged_batch(1)
    named = {"assistant_model": draft, **batch}
    records = {"return_dict_in_generate": True, "output_token_records": True, "output_scores": True}
    return [
        lambda: target.generate(**named, **GREEDY, verifier="lossless"),
        lambda: target.generate(**named, **SAMPLED, verifier=StaticEnsembleVerifier(0.4, max_bias=0.5)),
        lambda: target.generate(**named, **SAMPLED, diversed_head=heads[0], diversed_strictness=[0.1, 0.5, 1.0]),
        lambda: target.generate(**named, **GREEDY, verifier=DiversedVerifier(heads[1], max_bias=0.2), **records),
        lambda: target.generate(**named, **SAMPLED, verifier="block", repetition_penalty=1.2, **records),
        lambda: target.generate(**one, assistant_model=draft, **SAMPLED, verifier="static:0.5", streamer=Listener()),
        lambda: target.generate(**batch, **GREEDY, verifier="lossless", prompt_lookup_num_tokens=3),
        lambda: attached(target, draft, heads[0], **batch, **GREEDY),
        lambda: target.generate(**named, **GREEDY, verifier="lossless", stopping_criteria=[Interrupting()]),
        lambda: interrupted_forward(target, draft, **batch, **GREEDY),
        lambda: interrupted_attachment(target, draft, heads[0], **batch, **GREEDY),
        lambda: target.generate(**named, max_new_tokens=4, num_beams=2, verifier="lossless"),
    ]


def traces(**models) -> dict[str, object]:
    """Return what a call could leave on a model: hooks, attributes of modules, changed configs."""
    found: dict[str, object] = {}
    for role, model in models.items():
        found[f"{role}.hooks"], found[f"{role}.config"] = num_hooks(model), copy.deepcopy(model.config.to_dict())
        if model.can_generate():
            found[f"{role}.generation_config"] = copy.deepcopy(model.generation_config.to_dict())
        found |= {f"{role}.{name}: attributes": sorted(vars(module)) for name, module in model.named_modules()}
    return found


def live_tensors() -> int:
    """Return the number of live tensors."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_nothing_piles_up_or_stays_behind():
    """Catches a hook, an attachment, a changed config or a cache that outlives its call, also when the call fails."""
    target = tiny_model("llama")
    draft, heads = tiny_draft(target), (tiny_head(), tiny_head(features="distribution"))
    models = {"target": target, "draft": draft, "head": heads[0], "other_head": heads[1]}
    before, plain = traces(**models), target.generate(**ragged_batch(3), **GREEDY)
    failures, alive = 0, []
    for _ in range(3):
        for call in sorts_of_calls(target, draft, heads):
            try:
                call()
            except (RuntimeError, ValueError):
                failures += 1
        alive.append(live_tensors())
    assert failures == 3 * FAILING
    assert alive[2] <= alive[1]  # the first calls may fill caches
    left = {place: now for place, now in traces(**models).items() if now != before[place]}
    assert not left
    pickle.dumps((target, draft))
    with hf_diversed.record_stats() as stats:
        assert torch.equal(target.generate(**ragged_batch(3), **GREEDY), plain)
    assert stats.num_rounds == 0
