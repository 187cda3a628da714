"""Policies on a tiny random model that vLLM's CPU kernels can run, for the tests marked `vllm`."""

from __future__ import annotations

import torch

from pettingllms.policies.loading import load_policies
from pettingllms.samplers.base import SamplerSettings
from pettingllms.types import Request, Sample
from tests.tiny_lm import save_tiny, tiny_config

ROLES = {"coder": "coder", "tester": "tester", "judge": "third"}
# Fewer tokens a step than the prompts of one batch have, as with many tasks.
OPTIONS = {"kv_cache_memory_bytes": 1 << 28, "max_num_batched_tokens": 1024}
TEXTS = ("hello", "a question that is long enough to fill more than one block of the cache" * 2)


def save_model(directory):
    """Heads of 32 numbers: vLLM has no CPU kernel for smaller ones."""
    return save_tiny(directory, config=tiny_config(hidden=128))


def team(model_dir, roles=ROLES, options=OPTIONS, **changes):
    settings = SamplerSettings("vllm", {**OPTIONS, **options}, **changes.pop("settings", {}))
    kept = {"lora_r": 4, "lora_alpha": 8, "seed": 3, "sampler": settings}
    return load_policies(model_dir, roles, **{**kept, **changes})


def stir(policies, policy, seed, scale=0.1):
    """Moves the policy's weights as an optimizer would, far enough to be seen, and publishes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policies.parameters(policy):
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return policies.publish(policy)


def requests_for(policies, names=None, seed=0):
    """Several prompts for every policy, interleaved, so that one batch mixes them."""
    names = policies.names if names is None else names
    pairs = [(name, policies.chat.prompt_ids(text)) for text in TEXTS for name in names]
    return [Request(*pair, 1000 * seed + number) for number, pair in enumerate(pairs)]


def sampled(policies, n=2, seed=0, names=None, **settings):
    requests = requests_for(policies, names, seed)
    options = {"max_new_tokens": 12, **settings}
    return requests, policies.sample(requests, n, **options)


def told(policies, n, requests=None, **settings):
    """Completions by (request, number), as they were told one after the other, and those returned."""
    completions = {}

    def tell(place, number, completion):
        completions[place, number] = completion

    requests = requests_for(policies) if requests is None else requests
    options = {"max_new_tokens": 12, "on_completion": tell, **settings}
    answers = policies.sample(requests, n, **options)
    return completions, {(i, k): one for i, row in enumerate(answers) for k, one in enumerate(row)}


def differences(policies, requests, replies, temperature=1.0, of=None):
    """Policy -> greatest difference in log-probability to the trainer's own computation.

    `of` names the policy whose weights the trainer uses; by default the one that was asked.
    """
    gaps = {}
    for policy in dict.fromkeys(request.policy for request in requests):
        samples = [
            Sample(reply.prompt_ids, reply.token_ids, reply.logprobs, 1.0)
            for request, answers in zip(requests, replies, strict=True)
            for reply in answers
            if request.policy == policy
        ]
        [batch] = policies.microbatches(policy, samples, 1 << 20)
        with torch.no_grad():
            logp_BT, _ = policies.logprobs(of or policy, batch, temperature=temperature)
        gap_BT = (logp_BT - batch.old_logprobs_BT).abs() * batch.mask_BT
        gaps[policy] = gap_BT.max().item()
    return gaps
