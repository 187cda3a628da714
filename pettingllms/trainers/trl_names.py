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
    "max_grad_norm": "of each policy; positive",
    "max_steps": "a step is a rollout with num_iterations optimizer steps",
    "num_generations": "completions of one prompt (trees) or episodes of one task",
    "output_dir": "the run folder; a new one for each run",
    "push_to_hub": "the repository, not true or false",
    "save_steps": "a step is a rollout",
    "scale_rewards": "group, batch, or none, not true or false; batch: of one policy",
    "vllm_importance_sampling_correction": "for every sampler; off unless asked for",
    "warmup_steps": "optimizer steps, no share",
    "weight_decay": "of norms and biases as well, in full models",
}
"""Settings with TRL's name whose meaning differs."""

_HERE = """
loss_type: dapo and bnpo average over all tokens of a step : average_tokens_across_devices
dtype: bfloat16                              : bf16
dtype: float16                               : fp16
dtype                                        : torch_dtype
dtype: also revision, attn_implementation, load_in_4bit : model_init_kwargs
model                                        : model_id model_name model_name_or_path
seed                                         : data_seed
seed: a data set has a new order in every epoch : shuffle_dataset train_sampling_strategy
pools: several GPUs for a policy's learner   : deepspeed fsdp fsdp_config
worker_timeout                               : ddp_timeout
eval_tasks: a run evaluates before its first step : eval_on_start
eval_tasks                                   : per_device_eval_batch_size
eval_steps                                   : eval_strategy
save_steps                                   : save_strategy
tasks_per_step: times num_generations completions : batch_size generation_batch_size per_device_train_batch_size
tokens_per_batch: the gradient of a step is accumulated by itself : gradient_accumulation_steps
push_to_hub: once, at the end                : hub_model_id hub_strategy
vllm: its own names, {"gpu_memory_utilization": 0.4} : generation_kwargs vllm_gpu_memory_utilization vllm_max_model_length vllm_model_impl vllm_tensor_parallel_size
sampler: vllm, in this process or with workers on engines : use_vllm vllm_mode
vllm_importance_sampling_clip_max            : vllm_importance_sampling_cap
output_dir: trajectories.jsonl there has every completion : log_completions
output_dir                                   : run_name
env_args: {"max_turns": N}                   : max_tool_calling_iterations
method: gdpo scales team and local reward apart : multi_objective_aggregation
num_generations: an evaluation plays each task once, or --samples times : num_generations_eval
num_iterations: optimizer steps of a rollout, each over all of it : steps_per_generation
max_steps                                    : epochs num_train_epochs
reward_funcs: a function weighs what it returns : reward_weights
resume                                       : resume_from_checkpoint
device: cpu                                  : use_cpu
learning_rate                                : lr
lora_r                                       : lora_rank
lora_target_modules                          : lora_modules
max_completion_length: prompts are never cut : max_prompt_length
full: adapters are the default               : use_peft
"""
_NOT_HERE = """
the optimizer is AdamW with an epsilon of 1e-8 : optim optim_args adam_epsilon optim_target_modules
a schedule takes no arguments : lr_scheduler_kwargs
checkpointing takes no arguments : gradient_checkpointing_kwargs
the last two checkpoints are kept : save_total_limit
a checkpoint always holds all that --resume needs : save_only_model save_on_each_node ignore_data_skip restore_callback_states_from_checkpoint enable_jit_checkpoint
the last weights are kept, and best validations are in metrics.jsonl : load_best_model_at_end metric_for_best_model greater_is_better
every step is logged : logging_strategy logging_steps logging_first_step logging_nan_inf_filter log_on_each_node include_num_input_tokens_seen num_completions_to_print log_unique_prompts log_completions_hub_repo log_multimodal
Python's logging and the display say it : log_level log_level_replica disable_tqdm debug skip_memory_metrics
adapters have no dropout : lora_dropout
log-probabilities are those of the whole distribution, see temperature : top_p top_k min_p repetition_penalty
the reference is always the base model : sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
weights are in one type, and adapters in float32 : bf16_full_eval fp16_full_eval tf32 cast_lm_head_to_fp32
there are no kernels to choose : torch_compile use_liger_kernel liger_kernel_config torch_compile_backend torch_compile_mode
memory is bounded by tokens_per_batch : auto_find_batch_size torch_empty_cache_steps pad_to_multiple_of
dropout and noise are off in rollout and update : disable_dropout neftune_noise_alpha
an evaluation plays episodes : eval_delay prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics do_train do_eval do_predict
runs are reproducible by themselves : full_determinism
trackers are named by the run folder and set by their own variables : project trackio_space_id trackio_bucket_id trackio_static_space_id
the hub's own tools and variables decide it : hub_token hub_private_repo hub_always_push hub_revision
an environment deals tasks, without a data loader : dataloader_num_workers dataloader_drop_last dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names length_column_name
processes are Ray's, see workers and pools : ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend local_rank accelerator_config parallelism_config ds3_gather_for_generation vllm_group_port
code of a model is never run : trust_remote_code
the router of a mixture of experts is not trained : router_aux_loss_coef
no server samples for a training, see sampler : vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
sampling has no such option : cache_implementation use_cache use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged vllm_structured_outputs_regex vllm_enable_sleep_mode
the loss is not here, see loss_type : vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
sapo has the temperatures of its paper : sapo_temperature_neg sapo_temperature_pos
the entropy bonus is fixed : use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
the loss has no such option : top_entropy_quantile off_policy_mask_threshold label_smoothing_factor
the KL term is always weighed by the ratio, as in TRL by default : use_bias_correction_kl
"""


def _by_name(table: str) -> dict[str, str]:
    rows = (row.rpartition(" : ") for row in table.strip().split("\n"))
    return {name: answer.strip() for answer, _, names in rows for name in names.split()}


HERE: Mapping[str, str] = _by_name(_HERE)
"""TRL's name, or that of a relative -> the setting here, and after a colon its value or a note."""
NOT_HERE: Mapping[str, str] = _by_name(_NOT_HERE)
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
