"""Sizes and training settings of the embedded pair."""

from dataclasses import dataclass, field

from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True)
class ModelRecipe:
    """Size and schedule of one model of the pair.

    Args:
        style: wording of its training text, a key of `embedded.corpus.STYLES`.
        steps: optimizer steps, each over `batch` examples.
        batch: examples in a step.
        learning_rate: maximum, reached after `warmup` steps; it falls to 0 over the last fraction `decay` of the
            steps.
        sharpness: factor on the trained model's logits, applied to its last norm. Above 1 it makes the model more
            confident at temperature 1, which compensates for short training.
    """

    style: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    steps: int
    learning_rate: float
    batch: int = 32
    warmup: int = 100
    decay: float = 0.35
    sharpness: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """Settings of the pair.

    Args:
        models: the models by role.
        families: task families and their weights in the mix.
        prompt_weight: weight of prompt tokens in the loss, relative to completion tokens.
        number_weight: the same for digits in the completion, which take longer to learn than words.
        save_every: steps between lines of progress; the packaged pair was also saved then.
    """

    seed: int = 0
    families: dict[str, float] = field(
        default_factory=lambda: {"math": 1.0, "summary": 0.25, "code": 0.25, "drills": 0.2}
    )
    vocab_size: int = 1024
    tokenizer_examples: int = 20_000
    prompt_weight: float = 0.1
    number_weight: float = 4.0
    save_every: int = 100
    models: dict[str, ModelRecipe] = field(
        default_factory=lambda: {
            "target": ModelRecipe(
                "target", 256, 640, layers=4, heads=4, steps=4500, learning_rate=5e-3, sharpness=1.8
            ),
            "draft": ModelRecipe("draft", 96, 256, layers=3, heads=4, steps=1500, learning_rate=6e-3),
        }
    )


def build_model(recipe: ModelRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the untrained model in float32, with special tokens and otherwise default generation settings."""
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**special)
    return model
