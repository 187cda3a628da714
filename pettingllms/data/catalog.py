"""Named data sets: where they are, which of their files are which split, license and size.

What is said here was read on the pages of the data sets or in their files; a license or size that
was not found there is None, and `pettingllms-data show` then points to the page. The splits are
ours: a set that is published as `train` but that everybody tests on (AIME) is `test`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pettingllms.data.rows import Located
from pettingllms.data.splits import SPLITS, Split

KindName = Literal["coding", "math", "search", "sudoku", "sokoban"]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A published data set."""

    kind: KindName
    schema: str
    """How its rows are read."""
    repository: str
    """On the Hugging Face hub, or on GitHub where there is a `folder`."""
    files: Mapping[Split, tuple[str, ...]]
    """Patterns of the files of each split that it has."""
    about: str
    rows: str
    """Number of rows, as published."""
    license: str | None = None
    revision: str = "main"
    limits: tuple[tuple[str, float], ...] = ()
    """Fields of `pettingllms.sandbox.Limits` that its own evaluation or solutions need for a test."""
    also: tuple[str, ...] = ()
    """Other names that files of it have."""
    folder: str = ""
    """A folder to give after cloning it from GitHub."""

    @property
    def page(self) -> str:
        """The address where its publisher describes it."""
        site = "github.com" if self.folder else "huggingface.co/datasets"
        return f"https://{site}/{self.repository}"


# `timeout` of codegen_metrics in lcb_runner/evaluation.
_LIVECODEBENCH_LIMITS = (("cpu_s", 6.0),)

# It states none; its slowest solution (task 123) was measured to need 5 s.
_MBPP_LIMITS = (("cpu_s", 8.0),)

_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"


def _flashrag(about: str, rows: str, **files: str) -> DataSet:
    """A set of questions as FlashRAG writes them; split -> file."""
    named = {split: (files[split],) for split in SPLITS if split in files}
    return DataSet("search", "golden_answers", _FLASHRAG, named, about, rows)


CATALOG: Mapping[str, DataSet] = {
    "apps": DataSet(
        "coding",
        "apps",
        "codeparrot/apps",
        {"train": ("train.jsonl",), "test": ("test.jsonl",)},
        "programming problems in three levels, standard input and function calls (arXiv 2105.09938)",
        "5,000 train, 5,000 test",
        "mit",
        limits=(("cpu_s", 4.0),),  # `timeout` in eval/testing_util.py
    ),
    "code_contests": DataSet(
        "coding",
        "code_contests",
        "deepmind/code_contests",
        {
            "train": ("data/train-*.parquet",),
            "val": ("data/valid-*.parquet",),
            "test": ("data/test-*.parquet",),
        },
        "contest problems with right and wrong solutions (arXiv 2203.07814)",
        "about 13,000",
        "cc-by-4.0",
    ),
    "livecodebench": DataSet(
        "coding",
        "livecodebench",
        "livecodebench/code_generation_lite",
        {"test": ("test*.jsonl",)},
        "contest problems by date, without solutions (arXiv 2403.07974), six releases",
        "1,055 test",
        "cc",
        limits=_LIVECODEBENCH_LIMITS,
    ),
    "livecodebench_v6": DataSet(
        "coding",
        "livecodebench",
        "livecodebench/code_generation_lite",
        {"test": ("test6.jsonl",)},
        "the problems that the sixth release of livecodebench added, its latest",
        "a part of livecodebench's",
        "cc",
        limits=_LIVECODEBENCH_LIMITS,
    ),
    "mbpp": DataSet(
        "coding",
        "mbpp",
        "google-research-datasets/mbpp",
        {
            "train": ("full/train-*.parquet", "full/prompt-*.parquet"),
            "val": ("full/validation-*.parquet",),
            "test": ("full/test-*.parquet",),
        },
        "short functions with asserts (arXiv 2108.07732)",
        "974",
        "cc-by-4.0",
        limits=_MBPP_LIMITS,
    ),
    "mbpp_sanitized": DataSet(
        "coding",
        "mbpp",
        "google-research-datasets/mbpp",
        {
            "train": ("sanitized/train-*.parquet", "sanitized/prompt-*.parquet"),
            "val": ("sanitized/validation-*.parquet",),
            "test": ("sanitized/test-*.parquet",),
        },
        "the part of mbpp that was checked by hand",
        "127 train, 43 val, 257 test",
        "cc-by-4.0",
        limits=_MBPP_LIMITS,
    ),
    "humaneval": DataSet(
        "coding",
        "humaneval",
        "openai/openai_humaneval",
        {"test": ("openai_humaneval/test-*.parquet",)},
        "functions from their signature and docstring (arXiv 2107.03374)",
        "164 test",
        "mit",
        limits=(("cpu_s", 3.0),),  # `timeout` of evaluate_functional_correctness
    ),
    "aime24": DataSet(
        "math",
        "aime24",
        "Maxwell-Jia/AIME_2024",
        {"test": ("aime_2024_problems.parquet",)},
        "American Invitational Mathematics Examination 2024; answers are integers up to 999",
        "30 test",
        "mit",
        also=("aime2024",),
    ),
    "aime25": DataSet(
        "math",
        "problem_answer",
        "math-ai/aime25",
        {"test": ("test.jsonl",)},
        "American Invitational Mathematics Examination 2025; answers are integers up to 999",
        "30 test",
        also=("aime2025",),
    ),
    "math500": DataSet(
        "math",
        "problem_answer",
        "HuggingFaceH4/MATH-500",
        {"test": ("test.jsonl",)},
        "500 problems of MATH in five levels (arXiv 2305.20050)",
        "500 test",
    ),
    "hendrycks_math": DataSet(
        "math",
        "math",
        "EleutherAI/hendrycks_math",
        {"train": ("*/train-*.parquet",), "test": ("*/test-*.parquet",)},
        "competition problems of seven subjects in five levels (arXiv 2103.03874); math500 is a "
        "part of its test split",
        "7,500 train, 5,000 test",
        "mit",
    ),
    "minerva_math": DataSet(
        "math",
        "problems",
        "math-ai/minervamath",
        {"test": ("test.jsonl",)},
        "undergraduate problems of MIT's open courses (OCWCourses, arXiv 2206.14858)",
        "272 test",
        also=("minerva",),
    ),
    "olympiadbench": DataSet(
        "math",
        "olympiadbench",
        "Hothan/OlympiadBench",
        {"test": ("OE_TO_maths_en_COMP/train/*.parquet",)},
        "open-ended competition problems, English, text only (arXiv 2402.14008)",
        "675 test",
        "apache-2.0",
        # The branch with the hub's own conversion to parquet.
        revision="refs/convert/parquet",
    ),
    "gsm8k": DataSet(
        "math",
        "gsm8k",
        "openai/gsm8k",
        {"train": ("main/train-*.parquet",), "test": ("main/test-*.parquet",)},
        "word problems of grade-school arithmetic (arXiv 2110.14168)",
        "7,473 train, 1,319 test",
        "mit",
    ),
    "polaris": DataSet(
        "math",
        "problem_answer",
        "POLARIS-Project/Polaris-Dataset-53K",
        {"train": ("polaris-data-53K.jsonl",)},
        "training problems with a pass rate of a 7B model as difficulty",
        "about 53,000 train",
        "apache-2.0",
    ),
    "dapo_math": DataSet(
        "math",
        "dapo_math",
        "BytedTsinghua-SIA/DAPO-Math-17k",
        {"train": ("**.parquet",)},
        "training problems with integer answers (arXiv 2503.14476); each row about 100 times",
        "about 17,000 train, in over a million rows",
        "apache-2.0",
    ),
    "sudoku_extreme": DataSet(
        "sudoku",
        "sudoku",
        "sapientinc/sudoku-extreme",
        {"train": ("train.csv",), "test": ("test.csv",)},
        "9x9 puzzles with one solution each, easy to very hard; train and test inequivalent",
        "about 3.8 million train, 423,000 test",
    ),
    "boxoban": DataSet(
        "sokoban",
        "boxoban",
        "google-deepmind/boxoban-levels",
        {
            "train": ("unfiltered/train/*.txt",),
            "val": ("unfiltered/valid/*.txt",),
            "test": ("unfiltered/test/*.txt",),
        },
        "10x10 Sokoban levels with four boxes (arXiv 1901.03559)",
        "900,000 train, 100,000 val, 1,000 test; also medium and hard ones",
        license="apache-2.0",
        folder="boxoban-levels/unfiltered",
    ),
    "nq": _flashrag(
        "Natural Questions with short answers (Kwiatkowski et al. 2019)",
        "79,168 train, 8,757 val, 3,610 test",
        train="nq/train.jsonl",
        val="nq/dev.jsonl",
        test="nq/test.jsonl",
    ),
    "triviaqa": _flashrag(
        "trivia questions with lists of accepted answers (arXiv 1705.03551)",
        "78,785 train, 8,837 val, 11,313 test",
        train="triviaqa/train.jsonl",
        val="triviaqa/dev.jsonl",
        test="triviaqa/test.jsonl",
    ),
    "popqa": _flashrag(
        "questions about rare and well-known entities (arXiv 2212.10511)",
        "14,267 test",
        test="popqa/test.jsonl",
    ),
    # The publishers of these three keep their test answers secret: everybody tests on dev.
    "hotpotqa": _flashrag(
        "questions that take two passages (arXiv 1809.09600)",
        "90,447 train, 7,405 test",
        train="hotpotqa/train.jsonl",
        test="hotpotqa/dev.jsonl",
    ),
    "2wikimultihopqa": _flashrag(
        "questions that take two to four passages (arXiv 2011.01060)",
        "15,000 train, 12,576 test",
        train="2wikimultihopqa/train.jsonl",
        test="2wikimultihopqa/dev.jsonl",
    ),
    "musique": _flashrag(
        "questions that take two to four look-ups (arXiv 2108.00573)",
        "19,938 train, 2,417 test",
        train="musique/train.jsonl",
        test="musique/dev.jsonl",
    ),
    "bamboogle": _flashrag(
        "two-hop questions that no web page answers at once (arXiv 2210.03350)",
        "125 test",
        test="bamboogle/test.jsonl",
    ),
}


def benchmark_of(located: Located, schemas: Collection[str]) -> str | None:
    """Returns the name of the benchmark that files are named as, or whose schema they are in.

    A benchmark is a data set of the catalog without training rows.
    """
    benchmarks = {name: entry for name, entry in CATALOG.items() if "train" not in entry.files}
    names = [_plain(located.name.rpartition("/")[2])]
    names += [_plain(file.path.name.partition(".")[0]) for file in located.files]
    for name, entry in benchmarks.items():
        # As a part of the name: `aime24_shuffled.jsonl` is the benchmark all the same.
        if any(_plain(alias) in file_name for alias in (name, *entry.also) for file_name in names):
            return name
    others = {entry.schema for name, entry in CATALOG.items() if name not in benchmarks}
    telling = {*schemas} - others - {"tasks", "problems"}  # those anybody may write
    return next((name for name, entry in benchmarks.items() if entry.schema in telling), None)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())
