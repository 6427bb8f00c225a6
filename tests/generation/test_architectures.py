"""Every supported architecture against plain `generate` and against plain forwards, on ragged left-padded batches."""

import contextlib
import itertools

import pytest
import torch
import transformers as tf

from hf_diversed import load_demo_pair, support
from hf_diversed.generation import runner
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.generation.runner import RaggedModel
from tests import tiny
from tests.generation.modes import STATIC


CASES = [(name, "eager" if name in tiny.EAGER_ONLY else "sdpa") for name in tiny.ARCHITECTURES]
CASES += [("llama", "eager"), ("gemma3_text", "eager")]
# Full and sliding attention, attention sinks, learned positions, and a projection after the last hidden state.
DIFFERENT = [case for case in CASES if case[0] in ("llama", "gemma3_text", "gpt_oss", "opt")]

PROMPT, NEW, GAMMA = 9, 12, 4  # 21 tokens in all: well beyond the sliding windows of 8


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def pair(request):
    architecture, attention = request.param
    target = tiny.tiny_model(architecture, attention=attention)
    assert support.attention_implementation(target) == attention
    return target, tiny.tiny_draft(target)


def decode(target, draft, inputs, **kwargs):
    settings = {"max_new_tokens": NEW, "num_assistant_tokens": GAMMA, "do_sample": False, **kwargs}
    settings |= {"assistant_model": draft, "verifier": "lossless", "return_dict_in_generate": True}
    return target.generate(**inputs, **settings)


def assert_lossless(target, draft, inputs, **kwargs):
    """Compare the tokens with those of plain `generate`, and return the output."""
    plain = target.generate(**inputs, **{"max_new_tokens": NEW, "do_sample": False, **kwargs})
    out = decode(target, draft, inputs, **kwargs)
    assert torch.equal(out.sequences, plain)
    return out


def single(inputs, row):
    """One row by itself, without its padding."""
    return {"input_ids": inputs["input_ids"][row : row + 1, inputs["attention_mask"][row].bool()]}


@pytest.mark.parametrize("architecture", ["qwen3_moe", "gpt_oss"])  # masks: a tensor, a dict
def test_router_logits_are_not_computed(architecture):
    """Catches the auxiliary loss of a mixture of experts, which cannot read the masks of ragged rows."""
    target = tiny.tiny_model(architecture, attention="eager")
    target.config.output_router_logits = True
    assert_lossless(target, tiny.tiny_draft(target), tiny.ragged_batch(1, PROMPT))


def test_lossless_greedy_is_plain_generate(pair):
    """Catches a wrong mask, position, window or cache column in one architecture, also with static shapes, which read
    padding rows."""
    target, draft = pair
    inputs = tiny.ragged_batch(4, PROMPT)
    ours = assert_lossless(target, draft, inputs)
    # Not vacuous: the text varies, and draft tokens were both accepted and rejected.
    assert len(set(ours.sequences[:, PROMPT:].flatten().tolist())) >= 8
    assert ours.stats.num_accepted > 0
    assert ours.stats.num_rejected > 0
    assert_lossless(target, draft, single(inputs, 2))
    for rows in ([0, 1, 2, 3], [1, 0, 1]):
        some = {name: values[rows] for name, values in inputs.items()}
        assert torch.equal(decode(target, draft, some, **STATIC).sequences, ours.sequences[rows])


@pytest.mark.parametrize("pair", DIFFERENT, indirect=True, ids="-".join)
def test_equal_prompts_share_a_row_of_the_prefill(pair, monkeypatch):
    """Catches equal prompts that are processed more than once, rows with another row's keys, and ids that are compared
    in the dtype of a mask, in which different ones can be equal."""
    target, draft = pair
    order, lengths = [3, 0, 2, 3, 1], [PROMPT, 1, 2, 5]
    ids = torch.randint(4, tiny.VOCAB_SIZE, (4, PROMPT), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(PROMPT) >= PROMPT - torch.tensor(lengths)[:, None]).long()
    inputs = {"input_ids": ids.where(mask == 1, tiny.PAD)[order], "attention_mask": mask[order]}
    expected = target.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    inputs["attention_mask"] = inputs["attention_mask"].bool()
    seen, drafts = inputs_of(target, monkeypatch), inputs_of(draft, monkeypatch)
    ours = decode(target, draft, inputs, prefill_chunk_size=3)
    assert torch.equal(ours.sequences, expected)
    # Each prompt once, without its last token.
    for forwards in (seen, drafts):
        prefill = itertools.takewhile(lambda ids: len(ids) < len(order), forwards)
        assert sum(ids.numel() for ids in prefill) == len(lengths) * (PROMPT - 1)


def inputs_of(model, monkeypatch):
    """Return a list that receives the ids of each forward. A hook would count as user code, which keeps all rows."""
    seen, run = [], runner.run_model

    def record(used, tokens, *args):
        if used is model:
            seen.append(tokens)
        return run(used, tokens, *args)

    monkeypatch.setattr(runner, "run_model", record)
    return seen


@contextlib.contextmanager
def module_inputs(module):
    """Yield a list that receives the first argument of each call."""
    seen = []
    hook = module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        hook.remove()


@torch.no_grad()
def test_logits_after_rollback_are_fresh_logits(pair):
    """Catches stale keys of rejected draft tokens, shifted positions and windows computed from another row's columns.
    Every round first writes a wrong block that is longer than the right one, at ragged starts, and then the right one.
    Columns of the wrong block that are not overwritten stay in the cache, as after a rejection."""
    target, _ = pair
    inputs, total, width = tiny.ragged_batch(4, PROMPT), 26, 4
    generator = torch.Generator().manual_seed(7)
    future = torch.randint(4, tiny.VOCAB_SIZE, (4, total + width - PROMPT), generator=generator)
    ids, mask = torch.cat([inputs["input_ids"], future], dim=1), inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    model = RaggedModel(target, RaggedRows(ids, ids.shape[1], width, [], tiny.PAD), mask, positions, keep_hidden=True)
    model.prefill(ids[:, : PROMPT - 1], chunk_size=3)

    rows = torch.arange(4)[:, None]
    starts, steps = [PROMPT - 1] * 4, itertools.cycle([[4, 1, 2, 3], [1, 4, 3, 1], [2, 2, 1, 4]])
    logits = torch.full((4, total, tiny.VOCAB_SIZE), float("nan"))
    while min(starts) < total - width:
        at = torch.tensor(starts)
        wrong = torch.randint(4, tiny.VOCAB_SIZE, (4, width + 1), generator=generator)
        model(wrong, PerRow(starts, at), keep=1)
        columns = at[:, None] + torch.arange(width)
        with module_inputs(model.model.get_output_embeddings()) as seen:
            block, hidden = model(ids[rows, columns], PerRow(starts, at), keep=width)
        assert torch.equal(hidden, seen[0][:, -width:])
        assert hidden.shape[-1] == support.hidden_width(target)
        logits[rows, columns] = block
        starts = [min(start + step, total - width) for start, step in zip(starts, next(steps))]

    for row in range(4):
        real = int((mask[row] == 0).sum())
        fresh = target(ids[row : row + 1, real : total - width], use_cache=False).logits[0]
        got = logits[row, PROMPT - 1 : total - width]
        torch.testing.assert_close(got, fresh[PROMPT - 1 - real :], atol=2e-4, rtol=1e-4)
        assert fresh.std() > 0.5  # sharp enough for a wrong key to show


class EndsAt(tf.StoppingCriteria):
    def __init__(self, length: int):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize(
    ("name", "source"),
    [("gpt2", {"assistant_model": None, "prompt_lookup_num_tokens": 4}), ("gpt2", STATIC), ("opt", {})],
    ids=["prompt lookup", "static", "draft model"],
)
def test_texts_may_end_at_the_last_learned_position(name, source):
    """Catches draft tokens and padding that index the table out of range where `max_length` exceeds it, and positions
    that are used twice instead of an error."""
    target = tiny.tiny_model(name)
    limit = support.max_positions(target)
    draft, inputs = tiny.tiny_draft(target), tiny.ragged_batch(2, limit - 6)
    inputs = {key: torch.cat([value, value[:1]]) for key, value in inputs.items()}
    call = {"do_sample": False, "max_length": limit + 20}
    ours = {"assistant_model": draft, "verifier": "lossless", **source}
    for end in (limit - 1, limit, limit + 1):
        stop = tf.StoppingCriteriaList([EndsAt(end)])
        plain = target.generate(**inputs, **call, stopping_criteria=stop)
        assert torch.equal(target.generate(**inputs, **call, **ours, stopping_criteria=stop), plain)
        assert plain.shape[1] == end
    with pytest.raises(IndexError, match="learned positions"):
        target.generate(**inputs, **call, **ours)


def test_token_types_of_plain_text_are_dropped():
    """Catches an error about the all-zero `token_type_ids` that tokenizers and processors return for plain text."""
    target, inputs = tiny.tiny_model("gemma3_multimodal"), tiny.ragged_batch(2, PROMPT)
    plain = target.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    assert torch.equal(decode(target, tiny.tiny_draft(target), inputs).sequences, plain)


@pytest.mark.parametrize("planes", [None, 4])
def test_positions_of_the_caller(planes):
    """Catches positions that are replaced by those of the mask; multimodal models take one plane per rotary axis."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    text = {**tiny.tiny_model("qwen2").config.to_dict(), "rope_parameters": rope, "model_type": "qwen2_vl_text"}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}
    markers = dict.fromkeys(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"), 3)
    config = tf.Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **markers)
    torch.manual_seed(0)
    target = tf.Qwen2VLForConditionalGeneration(config).eval()
    tiny.sharpen(target)
    inputs = tiny.ragged_batch(3, PROMPT)
    of_mask = assert_lossless(target, tiny.tiny_draft(target), inputs)
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0) * 3 + 2
    positions = positions if planes is None else positions.expand(planes, -1, -1)
    out = assert_lossless(target, tiny.tiny_draft(target), inputs, position_ids=positions)
    assert not torch.equal(out.sequences, of_mask.sequences)


def test_text_draft_for_a_multimodal_target():
    """Catches arguments of the target that are passed to a draft model of another class."""
    target = tiny.tiny_model("gemma3_multimodal")
    draft = tiny.tiny_model("gemma3_text", seed=3)
    draft.load_state_dict(
        {name: target.state_dict()[name.replace("model.", "model.language_model.", 1)] for name in draft.state_dict()}
    )
    assert assert_lossless(target, tiny.tiny_draft(draft), tiny.ragged_batch(2, PROMPT)).stats.num_accepted > 0


class PackedLinear(torch.nn.Module):
    """A linear layer whose weight is stored as bytes, as bitsandbytes and GPTQ store theirs."""

    def __init__(self, layer: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = torch.nn.Parameter(layer.weight.detach().view(torch.uint8).reshape(-1, 1), requires_grad=False)

    def forward(self, values):
        return values @ self.weight.flatten().view(torch.float32).view(self.out_features, self.in_features).T


def test_quantized_output_embedding():
    """Catches sizes read from its packed weight."""
    models = tiny.tiny_model(), tiny.tiny_draft(tiny.tiny_model())
    given = {"diversed_head": tiny.tiny_head(), "diversed_strictness": 1.0}
    call = {**tiny.ragged_batch(), "do_sample": False, "max_new_tokens": NEW}
    expected = models[0].generate(**call)
    for model in models:
        model.lm_head = PackedLinear(model.lm_head)
        assert support.vocab_size(model) == support.known_ids(model) == tiny.VOCAB_SIZE
    assert torch.equal(models[0].generate(**call, assistant_model=models[1], **given), expected)


def test_bytes_of_weights():
    """Catches tables of input embeddings, a tied matrix that counts twice, vision layers, and sizes before packing."""
    untied, tied = tiny.tiny_model(), load_demo_pair().draft
    table = untied.get_input_embeddings().weight
    assert support.weight_bytes(untied) == 4 * (untied.num_parameters() - table.numel())
    assert support.weight_bytes(untied.bfloat16()) == 2 * (untied.num_parameters() - table.numel())
    assert support.weight_bytes(tied) == 4 * tied.num_parameters()
    multimodal, text = (support.weight_bytes(tiny.tiny_model(f"gemma3_{kind}")) for kind in ("multimodal", "text"))
    assert multimodal == text


# Models whose rotary frequencies depend on the longest position of a forward. A block that crosses the length at which
# they change would be scored with other frequencies than plain decoding uses.
LIMIT = 32
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": LIMIT, "rope_theta": 10000.0}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
ROTATIONS = {
    "longrope": {"rope_parameters": LONGROPE, "max_position_embeddings": 2 * LIMIT},
    "dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
        "max_position_embeddings": LIMIT,
    },
}


@pytest.mark.parametrize(
    ("kind", "length", "count", "is_supported"),
    [
        *(("longrope", 24, LIMIT - 24, True), ("longrope", 24, LIMIT - 23, False)),
        *(("longrope", LIMIT + 1, 1, False), ("longrope", LIMIT + 2, 12, True)),
        *(("dynamic", 24, LIMIT - 24, True), ("dynamic", 24, LIMIT - 23, False)),
    ],
)
def test_calls_across_the_limit_are_refused(kind, length, count, is_supported):
    """Catches blocks that are scored with other frequencies than plain decoding uses, and errors for calls on one side
    of the limit; prompts beyond it have the long factors from the start."""
    target = tiny.tiny_model(lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**tiny.BASE | ROTATIONS[kind])))
    call = {"input_ids": tiny.ragged_batch(2, length)["input_ids"].clamp_min(4), "do_sample": False}
    call |= {"max_new_tokens": count}
    ours = {"assistant_model": tiny.tiny_draft(target), "verifier": "lossless"}
    if is_supported:
        assert torch.equal(target.generate(**call, **ours), target.generate(**call))
    else:
        with pytest.raises(ValueError, match=rf"changes its rotary frequencies at {LIMIT} ids.*; lower max_new_tok"):
            target.generate(**call, **ours)
