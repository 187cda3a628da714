"""Make a base model: `python -m benchmarks.priming.prime [--recipe habits|parts|search] [--out DIR]`.

Trains a tokenizer and a tiny Qwen3 on demonstrations that `benchmarks.priming` generates. The recipe `habits`, that of
the embedded model, has three phases: clean replies, a mixture of good replies and bad habits, and a short phase that
makes the habits the more likely ones. The recipes `parts` and `search` have one, without bad replies. Matrices are trained with Muon, the rest with AdamW. Seeded:
the same machine and library versions give the same file. Costs are in `pettingllms/models/README.md`.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks import priming as demos
from benchmarks.options import Options
from pettingllms.models import EMBEDDED

logger = logging.getLogger(__name__)

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A number, a word, a fence, a cell (` b3`), a fill (` b3=4`) and a set of digits (` {13}`) are each
# one unit, so that most are one token.
UNITS = r"\n?```[a-z]*\n?| ?[a-j]\d+(?:=\d+)?(?![A-Za-z\d])| \{[1-9]+\}| ?-?\d+| ?[A-Za-z_]+|\n| ?[^\sA-Za-z0-9_`]+|\s|`"
VOCABULARY = 1792
EXAMPLES = 40_000
"""Demonstrations from which a vocabulary is made."""


class Phase(NamedTuple):
    """A stretch of priming."""

    name: str
    steps: int
    habit: float | None
    """Share of bad replies; None for that of each source of demonstrations."""
    muon_lr: float
    adamw_lr: float


PHASES = (
    Phase("clean", steps=5600, habit=0.0, muon_lr=0.02, adamw_lr=3e-3),
    Phase("mixture", steps=900, habit=0.5, muon_lr=0.012, adamw_lr=2e-3),
    Phase("habit", steps=300, habit=None, muon_lr=0.003, adamw_lr=1e-3),
)
PHASES_OF = {
    "habits": PHASES,
    "parts": (PHASES[0]._replace(steps=2200),),
    "search": (PHASES[0]._replace(steps=1000),),
}
"""Recipe -> its phases."""
MODEL_OF: Mapping[str, Mapping[str, Any]] = {"search": {"num_hidden_layers": 3}}
"""Recipe -> how its model's config differs."""
TOKENS_PER_STEP = 4096
WARMUP, FLAT = 50, 0.4


Draw = Callable[[random.Random, float | None], demos.Demo]
"""Draws a demonstration, given the probability of a bad reply."""


def build_tokenizer(
    seed: int,
    draw: Draw = demos.draw,
    units: Sequence[str] | None = None,
    whole: str = "",
) -> PreTrainedTokenizerFast:
    """A byte-level BPE over demonstrations, in which small numbers are single tokens.

    `whole` is a pattern of what is one unit beside `UNITS`, ending with `|`.
    """
    rng = random.Random(seed)

    def corpus() -> Iterator[str]:
        for _ in range(EXAMPLES):
            example = draw(rng, 0.3)
            yield f"user\n{example.prompt}"
            yield f"assistant\n{example.reply}"
        for unit in demos.units() if units is None else units:
            yield from (f" {unit}", unit) * 1000

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(whole + UNITS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, START, END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, padding_side="left"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(vocabulary: int, seed: int, **other: Any) -> Qwen3ForCausalLM:
    """A Qwen3 of 1.3 million parameters with tied embeddings, or one whose config differs in `other`."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 384,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "bos_token_id": None,
    }
    config = Qwen3Config(**{**settings, **other})
    config._attn_implementation = "eager"  # on a CPU twice as fast as sdpa, forward and backward
    return Qwen3ForCausalLM(config)


class Example(NamedTuple):
    """Token ids of a prompt and its reply, and where the reply begins."""

    ids: list[int]
    reply_start: int


def examples(
    tokenizer: PreTrainedTokenizerFast,
    rng: random.Random,
    habit: float | None,
    draw: Draw = demos.draw,
) -> Iterator[list[Example]]:
    """Endless batches of at most `TOKENS_PER_STEP` padded tokens, similar lengths together."""
    end = tokenizer.eos_token_id
    while True:
        drawn = [draw(rng, habit) for _ in range(512)]
        prompts = tokenizer([f"{START}user\n{d.prompt}{END}\n{START}assistant\n" for d in drawn])[
            "input_ids"
        ]
        replies = tokenizer([d.reply for d in drawn])["input_ids"]
        pool = sorted(
            (Example([*p, *r, end], len(p)) for p, r in zip(prompts, replies, strict=True)),
            key=lambda example: len(example.ids),
        )
        batches: list[list[Example]] = [[]]
        for example in pool:
            if batches[-1] and (len(batches[-1]) + 1) * len(example.ids) > TOKENS_PER_STEP:
                batches.append([])
            batches[-1].append(example)
        rng.shuffle(batches)
        yield from batches


def precision() -> torch.autocast:
    """Multiplies in bfloat16 on CPUs with instructions for it; on others, which take three times as long for it, not."""
    able = any(there for name, there in torch.cpu.get_capabilities().items() if "bf16" in name)
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=able)


def batch_loss(model: Qwen3ForCausalLM, batch: list[Example]) -> torch.Tensor:
    """Mean cross-entropy of the reply tokens."""
    width = max(len(example.ids) for example in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    rows: list[int] = []
    columns: list[int] = []
    for index, example in enumerate(batch):
        ids[index, : len(example.ids)] = torch.tensor(example.ids)
        positions = range(example.reply_start, len(example.ids))
        rows += [index] * len(positions)
        columns += positions
    row, column = torch.tensor(rows), torch.tensor(columns)
    with precision():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[row, column - 1])
    return F.cross_entropy(logits.float(), ids[row, column])


def optimizers(model: Qwen3ForCausalLM, phase: Phase) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    owned = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in owned]
    return [
        torch.optim.Muon(matrices, lr=phase.muon_lr, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(rest, lr=phase.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def run_phase(
    model: Qwen3ForCausalLM, tokenizer: Any, phase: Phase, seed: int, draw: Draw = demos.draw
) -> None:
    """Train for the steps of one phase; the rate warms up, stays, then falls to 2 %."""
    rng = random.Random(f"{seed} {phase.name}")
    batches = examples(tokenizer, rng, phase.habit, draw)
    steppers = optimizers(model, phase)
    rates = [stepper.param_groups[0]["lr"] for stepper in steppers]
    started, average = time.monotonic(), 0.0
    model.train()
    for step in range(phase.steps):
        done = step / phase.steps
        scale = min(1.0, (step + 1) / WARMUP) * min(1.0, max(0.02, (1 - done) / (1 - FLAT)))
        for stepper, rate in zip(steppers, rates, strict=True):
            stepper.param_groups[0]["lr"] = rate * scale
            stepper.zero_grad(set_to_none=True)
        loss = batch_loss(model, next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
        average = loss.item() if step == 0 else 0.97 * average + 0.03 * loss.item()
        if step % 100 == 99 or step == phase.steps - 1:
            logger.info(
                "%s %d/%d  loss %.4f  %.0f s",
                phase.name,
                step + 1,
                phase.steps,
                average,
                time.monotonic() - started,
            )
    model.eval()


def main(argv: list[str] | None = None) -> None:
    """Prime the embedded base and write it as an ordinary Hugging Face checkpoint."""
    parser = Options(__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        help="folder to write; required but for the recipe of the embedded model",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and demonstrations")
    parser.add_argument(
        "--clean",
        type=int,
        metavar="STEPS",
        help="only so many clean steps, and no habits: with all of them the checkpoint before the "
        "habits, with fewer a base that has every skill in part",
    )
    parser.add_argument(
        "--recipe", choices=demos.RECIPES, default="habits", help="what is demonstrated"
    )
    parser.add_argument("--only", nargs="+", help="environments; by default all of the recipe")
    options = parser.parse_args(argv)
    if options.out is None:
        if options.recipe != "habits" or options.only or options.clean is not None:
            parser.error("--out is required: what this makes is not the embedded model")
        options.out = EMBEDDED
    sources = demos.RECIPES[options.recipe]
    if unknown := sorted({*(options.only or ())} - {*sources}):
        parser.error(f"--only: the recipe has {', '.join(sources)}, got {unknown[0]!r}")
    sources = {name: sources[name] for name in options.only or sources}
    draw = partial(demos.draw, sources=sources)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(options.seed, draw, demos.units(sources))
    model = build_model(len(tokenizer), options.seed, **MODEL_OF.get(options.recipe, {}))
    logger.info("%d tokens, %d parameters", len(tokenizer), model.num_parameters())
    phases = PHASES_OF[options.recipe]
    if options.clean is not None:
        phases = (PHASES[0]._replace(steps=options.clean),)
    for phase in phases:
        run_phase(model, tokenizer, phase, options.seed, draw)
        # Rounded to what is stored, so that a phase can be repeated from the file before it.
        model.half().float()
    save(model, tokenizer, options.out)


def small_command(
    argv: list[str] | None,
    about: str,
    out: Path,
    prime: Callable[..., None],
    **sizes: tuple[int, str],
) -> None:
    """Primes a base with `prime(out, seed=..., **sizes)`; options give each size, a default and its help."""
    parser = Options(about)
    parser.add_argument("--out", type=Path, default=out, help="folder to write")
    sizes = {**sizes, "seed": (0, "seed of weights and demonstrations")}
    for name, (default, text) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    options = vars(parser.parse_args(argv))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    prime(options.pop("out"), **options)


def prime_small(out: Path, draw: Draw, units: Sequence[str], phase: Phase, seed: int) -> None:
    """Primes a base of two layers for one game and writes it as an ordinary Hugging Face checkpoint."""
    started = time.process_time()
    tokenizer = build_tokenizer(seed, draw, units=units)
    model = build_model(len(tokenizer), seed, num_hidden_layers=2)
    logger.info("%d tokens, %d parameters", len(tokenizer), model.num_parameters())
    run_phase(model, tokenizer, phase, seed, draw)
    save(model, tokenizer, out)
    logger.info("%s: %.0f s of CPU", out, time.process_time() - started)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model and tokenizer, in half precision: 2.7 MB."""
    model.half().save_pretrained(out)
    model.float()
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
