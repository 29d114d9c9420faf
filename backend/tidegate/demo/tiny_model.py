"""Makes a tiny model with random weights, for a real vLLM; run by vLLM's Python: ``tiny_model.py DIRECTORY``.

About half a million parameters, a token a byte; nothing is downloaded. What it says has no sense, but under a grammar
it asks for tools as any model does. Needs torch, tokenizers and transformers, which Tidegate's own environment has not.
"""

from __future__ import annotations

import sys

TOOL_MARKS = ("<tool_call>", "</tool_call>")
"""As vLLM's parser ``hermes`` expects them; tokens of their own, not special ones, which the text leaves out."""

END = "<end>"

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


def main(directory: str) -> None:
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
        vocab_size=320, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=8192, tie_word_embeddings=True,
        eos_token_id=len(letters), pad_token_id=len(letters), bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory, safe_serialization=True)


if __name__ == "__main__":
    main(sys.argv[1])
