"""The decoder: prompts as ids, rows cut at their end, and random numbers that depend on the seed only."""

import dataclasses

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_diversed import DiversedHead, DiversedHeadConfig, StaticEnsembleVerifier
from hf_diversed.evaluation.decoder import Decoder, Method, Sampling, build_methods, encode
from hf_diversed.verifiers import DiversedVerifier, LosslessVerifier
from hf_diversed.zoo.loader import Pair
from tests import tiny
from tests.evaluation.fakes import tiny_pair
from tests.training import runs


CHAT = [{"role": "user", "content": "hi"}]
UPSTREAM = Method("upstream", upstream=True, ensemble_weight=0.5)


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Without EOS, so that rows of all methods reach the maximum length."""
    found = tiny_pair()
    found.target.generation_config.eos_token_id = found.draft.generation_config.eos_token_id = None
    return found


def test_prompts_get_special_tokens_once():
    """Catches a chat prompt with a second BOS, and plain text without the first."""
    tokenizer = runs.tokenizer()
    plain = tokenizer("user: hi\nassistant: ", add_special_tokens=False).input_ids
    assert encode(tokenizer, [CHAT, CHAT]) == [plain, plain]
    assert encode(tokenizer, ["user: hi\nassistant: "]) == [[tiny.BOS, *plain]]
    assert encode(tokenizer, ["user: hi\nassistant: "], add_special_tokens=False) == [plain]
    assert encode(tokenizer, []) == []


def test_indentation_at_the_start_of_a_completion():
    """Catches a first space that the decoder of a SentencePiece tokenizer removes, and one before the first word."""
    backend = Tokenizer(models.WordLevel({"▁x": 0, "▁▁▁▁return": 1, "▁1": 2, "▁def": 3}, unk_token="▁x"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert tokenizer.decode([1, 2]) == "   return 1"

    def text(tokenizer, ids):
        return Decoder(dataclasses.replace(tiny_pair(), tokenizer=tokenizer), Sampling()).text(ids)

    assert text(tokenizer, [1, 2]) == "    return 1"
    assert text(tokenizer, [3, 2]) == "def 1"
    assert text(runs.tokenizer(), runs.tokenizer()("  ab", add_special_tokens=False).input_ids) == "  ab"


def test_padding_is_not_eos():
    """Catches a tokenizer without a pad token that cannot be used, and padding that looks like the end of a row."""
    pair = tiny_pair()
    pair.tokenizer.pad_token = pair.tokenizer.eos_token
    assert Decoder(pair, Sampling()).pad_id == tiny.BOS
    pair.tokenizer.pad_token = pair.tokenizer.bos_token = None
    assert Decoder(pair, Sampling()).pad_id not in pair.target.generation_config.eos_token_id


def test_cut_off_answers():
    """Catches a complete answer of the maximum length, and one that a stop string ended."""
    decoder = Decoder(tiny_pair(), Sampling(max_new_tokens=3, num_assistant_tokens=2, stop_strings=("b",)))
    assert decoder.is_cut_off([5, 6, 7], "acd")
    assert not decoder.is_cut_off([5, 6], "ac")
    assert not decoder.is_cut_off([5, 6, tiny.EOS], "ac")
    assert not decoder.is_cut_off([5, 6, 4], "acb")


@pytest.mark.parametrize("method", [Method("target"), Method("lossless", LosslessVerifier())], ids=lambda m: m.label)
@pytest.mark.parametrize("with_eos", [False, True])
def test_a_stop_string_does_not_begin_in_the_prompt(pair, method, with_eos):
    """Catches a completion that ends within its first token because of the prompt's last one."""
    pair = tiny_pair() if with_eos else pair
    sampling = Sampling(temperature=0.0, max_new_tokens=9, num_assistant_tokens=2)
    prompts = [[4, 5, 6], [7, 8, 9, 11, 6]]
    free = Decoder(pair, sampling)(method, prompts, 1).tokens
    text = Decoder(pair, sampling).text
    stop = text([6, free[0][0]])
    assert all(stop not in text(row) for row in free)
    limited = Decoder(pair, dataclasses.replace(sampling, stop_strings=(stop,)))(method, prompts, 1).tokens
    assert limited == free
    assert len(limited[0]) > 1


@pytest.mark.parametrize(
    "method", [Method("target"), Method("lossless", LosslessVerifier()), UPSTREAM], ids=lambda m: m.label
)
def test_only_the_seed_decides(pair, method):
    """Catches draws from the caller's random state, or that advance it: data order and dropout would change."""
    decoder = Decoder(pair, Sampling(max_new_tokens=9, num_assistant_tokens=2))
    before = torch.get_rng_state()
    one = decoder(method, [[4, 5, 6]], 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(9)
    same, other = decoder(method, [[4, 5, 6]], 1), decoder(method, [[4, 5, 6]], 2)
    assert one.tokens == same.tokens != other.tokens
    assert [len(row) for row in one.tokens] == [9]
    assert (one.stats is None) == (method.verifier is None)
    assert one.seconds > 0
    assert one.num_rounds == (one.stats.num_rounds if one.stats else 9 if method.label == "target" else one.num_rounds)
    assert 9 / 3 <= one.num_rounds <= 9


def test_upstream_equals_the_static_verifier(pair):
    """Catches an ensemble weight that is lost, and upstream's own draft length."""
    decoder = Decoder(pair, Sampling(temperature=0, max_new_tokens=20, num_assistant_tokens=3))
    ours = decoder(Method("static", StaticEnsembleVerifier(0.5)), [[4, 5, 6]], 0)
    assert ours.tokens == decoder(UPSTREAM, [[4, 5, 6]], 0).tokens
    assert UPSTREAM.definition == "upstream(0.5)"
    assert UPSTREAM.generate_kwargs(pair.draft, 3)["assistant_model"].generation_config.num_assistant_tokens == 3


@pytest.fixture
def head() -> DiversedHead:
    torch.manual_seed(0)
    return DiversedHead(DiversedHeadConfig(4, 4)).eval()


def test_names(head):
    """Catches a name that builds another verifier, and a strictness of 0 that is ignored."""
    names = ["target", "lossless", "static:0.7", "diversed", "diversed@0.25", "diversed@0"]
    methods = build_methods([*names, Method("mine", StaticEnsembleVerifier(0.2))], head)
    assert [method.label for method in methods] == [*names, "mine"]
    kinds = [type(None), LosslessVerifier, StaticEnsembleVerifier, DiversedVerifier]
    assert [type(method.verifier) for method in methods[:4]] == kinds
    assert [method.verifier.strictness for method in methods[3:6]] == [[0.5], [0.25], [0.0]]
    assert build_methods(methods) == methods


def test_prompt_lookup_copies_as_many_tokens_as_the_head_was_trained_with():
    """Catches a default that replaces the head's number of draft tokens."""
    head = DiversedHead(DiversedHeadConfig(features="distribution", num_assistant_tokens=7))
    method = Method("diversed", DiversedVerifier(head))
    assert method.generate_kwargs(None, None)["prompt_lookup_num_tokens"] == 7
    assert method.generate_kwargs(None, 3)["prompt_lookup_num_tokens"] == 3
    assert Method("lossless", LosslessVerifier()).generate_kwargs(None, None)["prompt_lookup_num_tokens"] == 5


def test_heads_by_name(head, tmp_path):
    """Catches a revision used as a strictness, and the given head used instead of the named one."""
    folder = tmp_path / "head@v2"
    head.save_pretrained(folder)
    plain, strict = build_methods([f"diversed:{folder}", f"diversed:{folder}@0.75"], DiversedHead(head.config))
    for method, strictness in ((plain, 0.5), (strict, 0.75)):
        assert isinstance(method.verifier, DiversedVerifier)
        assert method.verifier.strictness == [strictness]
        assert torch.equal(next(method.verifier.head.parameters()), next(head.parameters()))
    assert build_methods(["diversed"], folder)[0].verifier.head is plain.verifier.head


def test_descriptions_identify_the_head(head):
    """Catches results of one head continued with another: equal descriptions must mean equal decoding."""
    before = build_methods(["diversed"], head)[0].definition
    assert build_methods(["diversed"], head)[0].definition == before
    assert build_methods(["diversed@0.6"], head)[0].definition != before
    with torch.no_grad():
        next(head.parameters()).add_(1e-3)
    assert build_methods(["diversed"], head)[0].definition != before


def test_generate_receives_every_sampling_argument():
    """Catches a setting of the model's config that makes training and evaluation sample differently."""
    fixed = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    assert Sampling().generate_kwargs() == {"do_sample": True, "temperature": 1.0, "max_new_tokens": 128, **fixed}
    greedy = {"do_sample": False, "max_new_tokens": 9, "repetition_penalty": 1.0}
    assert Sampling(temperature=0, max_new_tokens=9).generate_kwargs() == greedy


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], ["at least one", "none"]),
        (["lossless", "lossless"], ["different methods", "lossless"]),
        (["diversed"], ["needs a head", "head="]),
    ],
)
def test_refusals(specs, words):
    with pytest.raises(ValueError) as error:
        build_methods(specs)
    assert all(word in str(error.value) for word in words), str(error.value)
