"""A run small enough for tests: a random pair of a real architecture, a tokenizer of characters, a few prompts."""

import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_diversed.training import DiversedConfig, DiversedTrainer
from tests.tiny import BOS, EOS, PAD, VOCAB_SIZE, tiny_draft, tiny_model


CHARACTERS = (string.ascii_lowercase + string.digits + " .,:;?!+-*/=()<>\n" + string.ascii_uppercase)[: VOCAB_SIZE - 4]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PROMPTS = ["a", "bc", "def 1", "ghi = 22", "jk", "l", "mnop?", "qrs tuv", "w", "xyz 0"]
TINY = {"per_device_train_batch_size": 8, "generation_batch_size": 8, "num_generations": 2, "num_iterations": 2}
TINY |= {"max_steps": 4, "warmup_steps": 0, "save_steps": 2, "eval_steps": 2, "logging_steps": 2, "seed": 3}
TINY |= {"max_completion_length": 10, "num_assistant_tokens": 3, "acceptance_coef": 0.3}
TINY |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True}


def tokenizer() -> PreTrainedTokenizerFast:
    """One id per character, BOS in front, padding on the left, and a chat template."""
    vocabulary = {"<pad>": PAD, "<eos>": EOS, "<bos>": BOS, "<unk>": 3}
    vocabulary |= {character: 4 + index for index, character in enumerate(CHARACTERS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    settings = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
    settings |= {"padding_side": "left", "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE}
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


def pair(noise: float = 0.3):
    """A target, and a draft model that sometimes agrees with it."""
    target = tiny_model("llama")
    return target, tiny_draft(target, noise=noise)


def rows(prompts=PROMPTS) -> list[dict]:
    return [{"prompt": prompt, "number": index} for index, prompt in enumerate(prompts)]


def letters(completions, **columns) -> list[float]:
    """Share of letters: depends on every token, so that two different runs are unlikely to agree."""
    return [sum(character.isalpha() for character in text) / max(len(text), 1) for text in completions]


def config(output_dir: Path | str, **settings) -> DiversedConfig:
    return DiversedConfig(output_dir=str(output_dir), **{**TINY, **settings})


def trainer(output_dir: Path | str, reward_funcs=letters, *, models=None, train_dataset=None, **settings):
    """Return a `DiversedTrainer` for the small pair, from fields of `DiversedConfig` and arguments of the trainer."""
    names = ("head", "eval_dataset", "callbacks", "stop_strings", "task")
    given = {name: settings.pop(name) for name in names if name in settings}
    given |= {"reward_funcs": reward_funcs, "args": config(output_dir, **settings), "processing_class": tokenizer()}
    given["train_dataset"] = rows() if train_dataset is None else train_dataset
    return DiversedTrainer(*(models or pair()), **given)


def trained(*args, **settings):
    """Return a `DiversedTrainer` after training."""
    done = trainer(*args, **settings)
    done.train()
    return done


def zero(completions, **columns):
    return [0.0] * len(completions)
