"""The embedded pair behind vLLM's server: every rule, dials per request, values that are refused, replicas.

VLLM_PROBLEMS says how many math problems each rule gets, 300 by default; an acceptance of 300 problems has a standard
error of about half a point.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from benchmarks.served import CHOICES, STOP, Server, acceptance, running, start, stop
from hf_diversed import DiversedHead, DiversedHeadConfig, load_demo_pair
from hf_diversed.running.decode import Decoder
from hf_diversed.running.methods import build_methods
from hf_diversed.running.prompts import encode
from hf_diversed.running.sampling import Sampling
from hf_diversed.serving.export import export_demo_pair
from hf_diversed.tasks import TASKS, load_records


PROBLEMS = int(os.environ.get("VLLM_PROBLEMS", "300"))
RULES = ("lossless", "diversed", *CHOICES)
TASK = TASKS["math"]()


@pytest.fixture(scope="module")
def pair_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    export_demo_pair(folder)
    return folder


@pytest.fixture(scope="module")
def options(pair_folder):
    return ("--head", str(pair_folder / "heads" / "math"), "--choices", ",".join(CHOICES))


@pytest.fixture(scope="module")
def server(pair_folder, options, tmp_path_factory):
    """A served pair: that of VLLM_SERVER, or one of our own."""
    if address := os.environ.get("VLLM_SERVER"):
        yield Server(address, None, None)
        return
    with running(start(pair_folder, tmp_path_factory.mktemp("log"), *options)) as started:
        yield started


@pytest.fixture(scope="module")
def problems():
    return load_records(TASK, "test", PROBLEMS, seed=0)


@pytest.fixture(scope="module")
def generated(problems):
    """`generate`'s acceptance on the same problems, by rule."""
    pair = load_demo_pair()
    decode = Decoder(pair, Sampling(max_new_tokens=128, batch_size=50, stop_strings=tuple(STOP)))
    prompts = encode(pair.tokenizer, [TASK.prompt(record) for record in problems])
    found = {}
    for method in build_methods(["lossless" if rule == "lossless" else rule for rule in RULES], pair.heads["math"]):
        stats = [decode(method, prompts[start : start + 50], seed=start).stats for start in range(0, PROBLEMS, 50)]
        drafted, accepted = (sum(getattr(one, name) for one in stats) for name in ("num_drafted", "num_accepted"))
        found[method.label] = accepted / drafted
    return dict(zip(RULES, found.values()))


@pytest.mark.parametrize("rule", RULES)
def test_accepts_as_generate_does(server, problems, generated, rule, record_property):
    """Catches a law that is right at the kernels and wrong in the engine: requests mixed up, drafts of another law."""
    before = server.counted()
    answers = server.post_all([TASK.prompt(record) for record in problems], [{"diversed_rule": rule}] * PROBLEMS)
    drafted, accepted = (server.counted()[name] - before[name] for name in ("draft_tokens", "accepted_tokens"))
    right = sum(TASK.score(answer["choices"][0]["text"], record) for answer, record in zip(answers, problems))
    figures = {
        "rule": rule,
        "accepted": round(acceptance(answers), 4),
        "by generate": round(generated[rule], 4),
        "right": round(right / PROBLEMS, 4),
    }
    print(figures)
    assert acceptance(answers) == pytest.approx(accepted / drafted, abs=0.005)
    # What is counted otherwise behind an EOS, and noise: problems differ in their acceptance by 0.1 or so.
    assert acceptance(answers) == pytest.approx(generated[rule], abs=0.015 + 0.4 / PROBLEMS**0.5)


def test_dials_of_one_batch(server, problems):
    """Catches a dial that reaches the neighbours: 0 accepts everything, 1 nothing but what the target would."""
    strictnesses = (0.0, 0.5, 1.0)
    few = [TASK.prompt(record) for record in problems[: PROBLEMS // 3] for _ in strictnesses]
    asked = [{"diversed_strictness": strictnesses[i % 3]} for i in range(len(few))]
    answers = server.post_all(few, asked)
    rates = [acceptance(answers[i::3]) for i in range(3)]
    print(dict(zip(strictnesses, (round(rate, 4) for rate in rates))))
    assert rates[0] == 1.0
    assert rates[0] - 0.02 > rates[1] > rates[2] + 0.1


BAD = [
    {"diversed_strictness": 7},
    {"diversed_strictness": -0.1},
    {"diversed_strictness": "high"},
    {"diversed_strictness": [0.5]},
    {"diversed_max_bias": 2},
    {"diversed_max_drop": 0.01},
    {"diversed_bias_budget": 1},
    {"diversed_rule": "static:0.1"},
    {"diversed_rule": "lenience:0.3", "diversed_strictness": 0.5},
    {"diversed_qualty": 0.5},
]


@pytest.mark.parametrize("xargs", BAD, ids=str)
def test_bad_values_are_answered_with_400(server, problems, xargs):
    """Catches an exception in the sampler: it would end the engine for everybody."""
    status, answer = server.post(TASK.prompt(problems[0]), xargs)
    assert status == 400, answer
    (name,) = [name for name in xargs if name != "diversed_rule"] or ["diversed_rule"]
    assert name in answer["error"]["message"]
    assert server.post(TASK.prompt(problems[0]), {"diversed_strictness": 0.7}, max_tokens=4)[0] == 200


def test_bad_values_among_good_ones(server, problems):
    """Catches a refusal that takes its batch with it."""
    with ThreadPoolExecutor(32) as pool:
        asked = [{"diversed_strictness": 7 if i % 4 == 0 else 0.5} for i in range(64)]
        answers = list(pool.map(lambda xargs: server.post(TASK.prompt(problems[0]), xargs, max_tokens=16), asked))
    assert [status for status, _ in answers] == [400 if i % 4 == 0 else 200 for i in range(64)]


def test_greedy_requests_follow_the_target(server, problems):
    """Catches greedy rows that a neighbour's rule relaxes: they must be plain greedy decoding of the target."""
    pair, few = load_demo_pair(), problems[:8]
    prompts = [TASK.prompt(record) for record in few]
    with ThreadPoolExecutor(16) as pool:
        sampled = pool.map(lambda prompt: server.post(prompt, {"diversed_strictness": 0.0}), prompts)
        answers = list(pool.map(lambda prompt: server.post(prompt, {}, temperature=0.0), prompts))
        list(sampled)
    for prompt, (_, answer) in zip(prompts, answers):
        ids = torch.tensor(encode(pair.tokenizer, [prompt]))
        plain = pair.target.generate(
            ids, do_sample=False, max_new_tokens=128, tokenizer=pair.tokenizer, stop_strings=STOP
        )
        text = pair.tokenizer.decode(plain[0, ids.shape[1] :], skip_special_tokens=True)
        assert answer["choices"][0]["text"] == text.removesuffix(STOP[0])


def test_cut_offs_of_a_request_hold(server, problems):
    """Catches a nucleus of one token that a permissive dial overrules: what the target cuts off is never kept.

    By top_p: on CPUs vLLM 0.32's top_k alone ends the engine in rounds that verify no draft.
    """
    prompt = TASK.prompt(problems[0])
    _, greedy = server.post(prompt, {}, temperature=0.0)
    _, cut = server.post(prompt, {"diversed_strictness": 0.0}, top_p=1e-6)
    assert cut["choices"][0]["text"] == greedy["choices"][0]["text"]


@pytest.mark.parametrize("kind", ["data", "tensor"])
def test_more_than_one_worker(server, pair_folder, options, problems, tmp_path, kind):
    """Catches what one process keeps to itself: two workers, replicas or parts of one model, requests of all dials."""
    dials = ({"diversed_strictness": 0.0}, {}, {"diversed_strictness": 1.0})
    prompts = [TASK.prompt(record) for record in problems]
    asked = [dials[index % 3] for index in range(len(prompts))]
    alone = server.post_all(prompts, asked)
    with running(start(pair_folder, tmp_path, *options, f"--{kind}-parallel-size", "2")) as parallel:
        together = parallel.post_all(prompts, asked)
    for dial in range(3):
        rates = [acceptance(answers[dial::3]) for answers in (alone, together)]
        print(kind, dials[dial], [round(rate, 4) for rate in rates])
        assert rates[0] == pytest.approx(rates[1], abs=0.06 + 0.5 / PROBLEMS**0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rule", "block"), "is not served by vLLM"),
        (("--rule", "static:0.5", "--speculative-config", "{greedy}"), "drafts chosen greedily come from no law"),
        (("--head", "{hidden}"), "reads hidden states (features='hidden'), which vLLM does not show its sampler"),
    ],
    ids=["rule", "greedy drafts", "hidden states"],
)
def test_what_cannot_be_served_does_not_start(pair_folder, tmp_path, options, words):
    """Catches a deployment that pays for a rule and decodes losslessly."""
    greedy = {"method": "draft_model", "model": str(pair_folder / "draft"), "num_speculative_tokens": 5}
    DiversedHead(DiversedHeadConfig(96, 48)).save_pretrained(tmp_path / "head")
    filled = {"{greedy}": json.dumps(greedy), "{hidden}": str(tmp_path / "head")}
    starting = start(pair_folder, tmp_path, *(filled.get(option, option) for option in options))
    try:
        assert starting.process.wait(900) != 0
    finally:
        stop(starting)
    said = [line for line in starting.log.read_text().splitlines() if words in line]
    print(said[-1])
    assert said


def test_an_unknown_vllm_goes_on_losslessly(pair_folder, tmp_path, problems, monkeypatch):
    """Catches a plugin that stops an engine it does not know, changes half of it, or says nothing in its log."""
    (tmp_path / "sitecustomize.py").write_text(
        "from hf_diversed.serving.vllm import signatures\n"
        "place = ('v1/sample/rejection_sampler.py', 'rejection_sample')\n"
        "signatures.KNOWN[place] = ('of another release',)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with running(start(pair_folder, tmp_path, "--rule", "static:0.0")) as unknown:
        rate = acceptance(unknown.post_all([TASK.prompt(record) for record in problems[:16]], [{}] * 16))
        told = [line for line in unknown.log.read_text().splitlines() if "does not know this vLLM" in line]
    print(round(rate, 4), told)
    assert len(told) == 1
    assert "rejection_sample of v1/sample/rejection_sampler.py takes (draft_token_ids" in told[0]
    assert rate < 0.9  # static:0.0 would keep every draft


def test_looked_up_drafts(pair_folder, tmp_path, problems):
    """Catches tokens found in the text that are judged losslessly, or by a law that they do not have."""
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    options = ("--rule", "static:0.0", "--speculative-config", json.dumps(ngram))
    with running(start(pair_folder, tmp_path, *options)) as looked_up:
        prompts, rates = [TASK.prompt(record) for record in problems[:16]], []
        for asked in ({}, {"diversed_rule": "lossless"}):
            answers = looked_up.post_all(prompts, [asked] * len(prompts))
            rates.append(acceptance([answer for answer in answers if "metrics" in answer]))
    print("looked up", rates)
    assert rates[0] == 1.0 > rates[1]
