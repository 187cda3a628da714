"""Control tokens spelled out in texts that pass between models whose tokenizers are not known here.

A model's reply becomes part of the prompts of other roles. Servers read `<|im_start|>` in a message
as the token that opens a turn. `Chat` breaks up what is special to a tokenizer that is loaded here;
this does it for those of the usual families of models.
"""

from __future__ import annotations

import re

_SPELLINGS = (
    r"<[|｜][^<>|｜\n]{1,60}[|｜]>",  # <|im_start|>, <|eot_id|>
    r"</?s>|<(?:bos|eos|pad|unk)>",
    r"<(?:start|end)_of_turn>",
    r"\[/?INST\]|<</?SYS>>|\[/?(?:AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT)\]",
)
_CONTROL = re.compile("|".join(_SPELLINGS))
_ENDINGS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "</s>", "<end_of_turn>")


def without_control_tokens(text: str) -> str:
    """The text with a space after the first character of each control token.

    Lone surrogates, which no tokenizer takes, become `?`.
    """
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub(lambda match: f"{match[0][0]} {match[0][1:]}", plain)


def without_ending(text: str) -> str:
    """The text without the tokens of the end of a turn that some servers leave at its end."""
    end = len(text)
    while True:
        last = end
        while last and text[last - 1].isspace():
            last -= 1
        ending = next((token for token in _ENDINGS if text.endswith(token, 0, last)), None)
        if ending is None:
            break
        end = last - len(ending)
    return text if end == len(text) else text[:end].rstrip()
