"""Makes a tiny model with random weights, for a real vLLM; run by vLLM's Python.

``tiny_model.py DIRECTORY [HIDDEN LAYERS]``: a third of a million parameters, or more; a token a byte; nothing is
downloaded. What it says has no sense, but under a grammar it asks for tools as any model does. Needs torch, tokenizers
and transformers, which Tidegate's own environment has not.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

TOOL_MARKS = ("<tool_call>", "</tool_call>")
"""As vLLM's parser ``hermes`` expects them; tokens of their own, not special ones, which the text leaves out."""

END = "<end>"
KV_HEADS = 2
HEAD_WIDTH = 32


class Size(NamedTuple):
    """Of a model: the width of its layers, a multiple of 64, and their number."""

    hidden: int = 128
    layers: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, two bytes each."""
        return 2 * 2 * self.layers * KV_HEADS * HEAD_WIDTH


TINY = Size()
DEEP = Size(256, 8)
"""Its prefill takes seven times as long: a rebuild costs more than a copy, as in a real model."""


# Tools are described in a few words only: their schemas, a token a byte, would leave little room for a conversation.
CHAT_TEMPLATE = (
    "{%- if tools %}[tools]{% for tool in tools %} {{ tool.function.name }}: {{ tool.function.description }};"
    "{% endfor %}\n{% endif -%}"
    "{%- for message in messages -%}[{{ message.role }}] {{ message.content or '' }}"
    "{%- if message.tool_calls %}{% for call in message.tool_calls %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson) }}"
    "</tool_call>{% endfor %}{% endif %}\n{% endfor -%}"
    "{%- if add_generation_prompt %}[assistant] {% endif -%}"
)


def main(directory: str, size: Size = TINY) -> None:
    """Write configuration, weights and tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {END: len(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(TOOL_MARKS))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=320, hidden_size=size.hidden, intermediate_size=2 * size.hidden, num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // HEAD_WIDTH,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_WIDTH, max_position_embeddings=8192, tie_word_embeddings=True,
        eos_token_id=len(letters), pad_token_id=len(letters), bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory, safe_serialization=True)


if __name__ == "__main__":
    main(sys.argv[1], Size(*map(int, sys.argv[2:])))
