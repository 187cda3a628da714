"""What each setting of TRL's `GRPOConfig` is here; a test compares the names with TRL 1.16's.

A name that is no setting of `ATGRPOConfig` stands in one of two tables: `HERE` if something else has
its purpose, `NOT_HERE` if nothing has. Errors give the answer, and a page of the docs shows all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MEANING: Mapping[str, str] = {
    "beta": "the reference is the base model",
    "eval_steps": "a step is a rollout; 0: no evaluation",
    "gradient_checkpointing": "off for the embedded models",
    "loss_type": "without luspo and vespo",
    "max_grad_norm": "of each policy",
    "max_steps": "a step is a rollout with num_iterations optimizer steps",
    "num_generations": "completions of one prompt (trees) or episodes of one task",
    "output_dir": "the run folder; a new one for each run",
    "push_to_hub": "the repository, not true or false",
    "save_steps": "a step is a rollout",
    "scale_rewards": "batch: of one policy",
    "vllm_importance_sampling_correction": "for every sampler; off unless asked for",
    "warmup_steps": "optimizer steps, no share",
}
"""Settings with TRL's name whose meaning differs."""

_HERE = """
average_tokens_across_devices    loss_type: dapo and bnpo average over all tokens of a step
bf16                             dtype: bfloat16
data_seed                        seed
dataloader_num_workers           scoring_threads
ddp_timeout                      worker_timeout
deepspeed                        pools: several GPUs for a policy's learner
eval_on_start                    eval_tasks: a run evaluates before its first step
eval_strategy                    eval_steps
fp16                             dtype: float16
fsdp                             pools: several GPUs for a policy's learner
fsdp_config                      pools: several GPUs for a policy's learner
generation_batch_size            tasks_per_step: times num_generations completions
gradient_accumulation_steps      tokens_per_batch: the gradient of a step is accumulated by itself
hub_model_id                     push_to_hub
hub_strategy                     push_to_hub: pushes once, at the end
generation_kwargs                vllm
log_completions                  output_dir: trajectories.jsonl there has every completion
max_tool_calling_iterations      env_args: {"max_turns": N}
model_init_kwargs                dtype: also revision, attn_implementation, load_in_4bit
multi_objective_aggregation      estimator: gdpo scales team and local reward apart
num_generations_eval             num_generations: an evaluation plays each task once; pettingllms-eval --samples
num_train_epochs                 max_steps
per_device_eval_batch_size       eval_tasks
per_device_train_batch_size      tasks_per_step: times num_generations completions
reward_weights                   reward_funcs: a function weighs what it returns
resume_from_checkpoint           resume
run_name                         output_dir
save_strategy                    save_steps
shuffle_dataset                  seed: a data set has a new order in every epoch
steps_per_generation             num_iterations
train_sampling_strategy          seed: a data set has a new order in every epoch
use_cpu                          device: cpu
use_vllm                         sampler: vllm
vllm_gpu_memory_utilization      vllm: {"gpu_memory_utilization": 0.4}
vllm_importance_sampling_cap     vllm_importance_sampling_clip_max
vllm_max_model_length            vllm: {"max_model_len": N}
vllm_mode                        sampler: vllm in this process, vllm-server over HTTP
vllm_model_impl                  vllm: {"model_impl": ...}
vllm_server_base_url             server
vllm_server_host                 server: http://HOST:PORT
vllm_server_port                 server: http://HOST:PORT
vllm_server_timeout              server_timeout
vllm_tensor_parallel_size        vllm: {"tensor_parallel_size": N}
batch_size                       tasks_per_step: times num_generations completions
epochs                           max_steps
lora_modules                     lora_target_modules
lora_rank                        lora_r
lr                               learning_rate
max_prompt_length                max_completion_length: prompts are never cut
model_id                         model
model_name                       model
model_name_or_path               model
torch_dtype                      dtype
use_peft                         full: adapters are the default
"""
_NOT_HERE = """
the optimizer is AdamW with an epsilon of 1e-8: optim optim_args adam_epsilon optim_target_modules
a schedule takes no arguments: lr_scheduler_kwargs
the last two checkpoints are kept: save_total_limit
a checkpoint always holds all that --resume needs: save_only_model save_on_each_node ignore_data_skip restore_callback_states_from_checkpoint enable_jit_checkpoint
the last weights are kept, and best validations are in metrics.jsonl: load_best_model_at_end metric_for_best_model greater_is_better
every step is logged: logging_strategy logging_steps logging_first_step logging_nan_inf_filter log_on_each_node include_num_input_tokens_seen num_completions_to_print log_unique_prompts log_completions_hub_repo log_multimodal
Python's logging and the display say it: log_level log_level_replica disable_tqdm debug skip_memory_metrics
adapters have no dropout: lora_dropout
log-probabilities are those of the whole distribution, see temperature: top_p top_k min_p repetition_penalty
the reference is always the base model: sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
weights are in one type, and adapters in float32: bf16_full_eval fp16_full_eval tf32 cast_lm_head_to_fp32
there are no kernels to choose: torch_compile use_liger_kernel liger_kernel_config torch_compile_backend torch_compile_mode gradient_checkpointing_kwargs
memory is bounded by tokens_per_batch: auto_find_batch_size torch_empty_cache_steps pad_to_multiple_of
dropout and noise are off in rollout and update: disable_dropout neftune_noise_alpha
an evaluation plays episodes: eval_delay prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics do_train do_eval do_predict
runs are reproducible by themselves: full_determinism
trackers are named by the run folder and set by their own variables: project trackio_space_id trackio_bucket_id trackio_static_space_id
the hub's own tools and variables decide it: hub_token hub_private_repo hub_always_push hub_revision
an environment deals tasks, without a data loader: dataloader_drop_last dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names length_column_name
processes are Ray's, see workers and pools: ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend local_rank accelerator_config parallelism_config ds3_gather_for_generation vllm_group_port
code of a model is never run: trust_remote_code
the router of a mixture of experts is not trained: router_aux_loss_coef
sampling has no such option: cache_implementation use_cache use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged vllm_structured_outputs_regex vllm_enable_sleep_mode
the loss is not here, see loss_type: vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
sapo has the temperatures of its paper: sapo_temperature_neg sapo_temperature_pos
the entropy bonus is fixed: top_entropy_quantile use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
the loss has no such option: off_policy_mask_threshold label_smoothing_factor
the KL term is always weighed by the ratio, as in TRL by default: use_bias_correction_kl
"""

HERE: Mapping[str, str] = {
    name: where.strip() for name, _, where in (r.partition(" ") for r in _HERE.strip().split("\n"))
}
"""TRL's name, or that of a relative -> the setting here, and after a colon its value or a note."""
NOT_HERE: Mapping[str, str] = {
    name: why
    for why, _, names in (row.rpartition(": ") for row in _NOT_HERE.strip().split("\n"))
    for name in names.split()
}
"""TRL's name -> why there is no such setting."""


def advice(name: str, known: Iterable[str]) -> str | None:
    """What to do in place of a setting or option of TRL's; None if TRL has no such name.

    Args:
        name: as it was written, `bf16` or `--bf16`.
        known: the settings, without dashes, that can be given where it was written.
    """
    key = name.lstrip("-").replace("-", "_")
    if key in NOT_HERE:
        return f"TRL's {key} is not here: {NOT_HERE[key]}"
    if key not in HERE:
        return None
    setting, _, note = HERE[key].partition(": ")
    note = f" ({note})" if note else ""
    if setting not in known:
        return f"TRL's {key} is {setting} of a training here{note}"
    return f"use {f'--{setting}'.replace('_', '-') if name.startswith('-') else setting}{note}"
