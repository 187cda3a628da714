"""From zero to a real model.

The same command takes any causal model of the Hugging Face hub on a GPU. Before renting one, `--dry-run` says what a run will take: it resolves all settings
and estimates memory and work from the model's configuration alone, without loading weights. Here the configuration is written by hand, in the shape of
Qwen3-1.7B, so that no network is needed; with a network, the id `Qwen/Qwen3-1.7B` stands in its place.
"""

import json
import tempfile
from pathlib import Path

from pettingllms.cli.train import main as train

SHAPE = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "config.json").write_text(json.dumps(SHAPE))
    # Thinking costs thousands of tokens a completion; leave it off until the rest works.
    thinking = json.dumps({"enable_thinking": False})
    options = ["--chat-template-kwargs", thinking, "--max-completion-length", "1024"]
    exit_code = train(["--env", "coding", "--model", folder, *options, "--dry-run"])
    assert exit_code == 0

print("""
On a machine with a GPU:

  pip install 'pettingllms[train,vllm]'
  pettingllms-sandbox doctor                     # what contains model-written programs here
  pettingllms-data fetch mbpp --out data/mbpp    # real tasks in place of generated ones
  pettingllms-eval  --env coding --dataset data/mbpp --model Qwen/Qwen3-1.7B --limit 50 --out evals/base
  pettingllms-train --env coding --dataset data/mbpp --model Qwen/Qwen3-1.7B --sampler vllm
  pettingllms-eval  --env coding --adapters runs/latest --swap all --out evals/trained
  pettingllms-eval  --compare evals/base evals/trained:adapters
  pettingllms-serve runs/latest

Out of memory in the update: lower --tokens-per-batch. Out of memory in sampling: lower --tasks-per-step,
--num-generations or --vllm.gpu_memory_utilization. The first signs of learning are in metrics.jsonl: reward
by role, and the share of groups in which all completions earned the same.""")
