"""Loading of frozen models and tokenizers, and initialization of heads."""

import math

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed import model_facts
from hf_diversed.harness.pair import load_tokenizer
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.training.arguments import DiversedConfig


def load_frozen(model: PreTrainedModel | str, args: DiversedConfig) -> PreTrainedModel:
    """Return a model in eval mode and without gradients. A name is loaded onto the device of this process.

    Raises:
        ValueError: for `model_init_kwargs` that are not a dict, or with a loaded model, which they would not change.
    """
    if isinstance(model, str):
        init_kwargs = args.model_init_kwargs or {}
        if isinstance(init_kwargs, str):
            raise ValueError(f"model_init_kwargs must be a JSON object or a dict, got {init_kwargs!r}.")
        options = {"dtype": "auto", "device_map": {"": args.device}} | init_kwargs
        model = AutoModelForCausalLM.from_pretrained(model, **options)
    elif args.model_init_kwargs:
        raise ValueError(
            f"model_init_kwargs={args.model_init_kwargs} has no effect on the loaded {type(model).__name__}; leave it "
            "out, or pass the model's name."
        )
    return model.eval().requires_grad_(False)


def target_tokenizer(target: PreTrainedModel | str) -> PreTrainedTokenizerBase:
    """Return the target's tokenizer, padding on the left."""
    name = target if isinstance(target, str) else model_facts.base_model(target).name_or_path
    if not name:
        raise ValueError("the tokenizer cannot be found for a target without a name; pass processing_class=.")
    return load_tokenizer(name)


def fresh_head(target: PreTrainedModel, draft: PreTrainedModel | None, args: DiversedConfig) -> DiversedHead:
    """Return a new head for a pair; without a draft model, one for prompt lookup."""
    if draft is None and args.head_features != "distribution":
        raise ValueError(
            'draft tokens from prompt lookup have no hidden states, so head_features must be "distribution", got '
            f"{args.head_features!r}."
        )
    config = DiversedHeadConfig.for_pair(
        target,
        draft,
        head_type=args.head_type,
        features=args.head_features,
        token_features=args.token_features,
        num_assistant_tokens=args.num_assistant_tokens,
        training_temperature=args.temperature,
    )
    head = seeded_head(config, args.seed)
    set_initial_prediction(head, args)
    return head


def seeded_head(config: DiversedHeadConfig, seed: int) -> DiversedHead:
    """Return a head with random weights; the state of torch's generators does not change."""
    # On the CPU only: torch.manual_seed would also seed CUDA's generators, which fork_rng([]) does not restore.
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        return DiversedHead(config)


def set_initial_prediction(head: DiversedHead, args: DiversedConfig) -> None:
    """Initialize a head to the weight `args.initial_weight` or, with token features, to `args.initial_lenience`. Call
    this again after `standardize`, so that the predictions stay the same."""
    if head.needs_token:
        head.start_lenient(args.initial_lenience)
        return
    with torch.no_grad():
        head.out.bias.fill_(math.log(args.initial_weight / (1.0 - args.initial_weight)))
