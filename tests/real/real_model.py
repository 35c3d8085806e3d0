"""Makes a Llama of random weights: small, offline, the same bytes for each version of Python.

    python real_model.py FOLDER

Run by the interpreter that has vLLM, which brings numpy, safetensors and tokenizers along.

Its weights are drawn wide enough that greedy decoding depends on every token of the prompt and
does not collapse into one repeated token: so a KV cache that is wrong, or of another prompt,
shows in the answer.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

SEED = 0
VOCABULARY = 1024
CONTEXT = 4096
LAYERS = 2
HIDDEN = 128
INNER = 2 * HIDDEN
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
PAD, BOS, EOS = 0, 1, 2
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# Text for the tokenizer to learn from that every machine has.
CORPUS = ("argparse.py", "http/client.py", "json/decoder.py", "logging/__init__.py", "typing.py")
CHAT_TEMPLATE = (
    "{% if tools %}<|system|>\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def write_tokenizer(folder: Path) -> int:
    """A byte-level BPE, so that every text has tokens; returns how many there are."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [(library / name).read_text(encoding="utf-8") for name in CORPUS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token=SPECIAL[BOS],
        eos_token=SPECIAL[EOS],
        pad_token=SPECIAL[PAD],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    return int(tokenizer.get_vocab_size())


def write_weights(folder: Path, vocabulary: int) -> None:
    """The tensors."""
    import numpy as np
    from safetensors.numpy import save_file  # type: ignore[import-not-found]

    random = np.random.Generator(np.random.PCG64(SEED))

    def drawn(rows: int, columns: int, width: float) -> Any:
        return (random.standard_normal((rows, columns)) * width).astype(np.float32)

    def ones() -> Any:
        return np.ones(HIDDEN, np.float32)

    queries, keys = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    tensors = {
        "model.embed_tokens.weight": drawn(vocabulary, HIDDEN, 0.5),
        "lm_head.weight": drawn(vocabulary, HIDDEN, 0.5),
        "model.norm.weight": ones(),
    }
    for layer in range(LAYERS):
        tensors |= {
            f"model.layers.{layer}.{name}": value
            for name, value in (
                ("self_attn.q_proj.weight", drawn(queries, HIDDEN, 2 / HIDDEN**0.5)),
                ("self_attn.k_proj.weight", drawn(keys, HIDDEN, 2 / HIDDEN**0.5)),
                ("self_attn.v_proj.weight", drawn(keys, HIDDEN, 1 / HIDDEN**0.5)),
                ("self_attn.o_proj.weight", drawn(HIDDEN, queries, 1 / queries**0.5)),
                ("mlp.gate_proj.weight", drawn(INNER, HIDDEN, 1 / HIDDEN**0.5)),
                ("mlp.up_proj.weight", drawn(INNER, HIDDEN, 1 / HIDDEN**0.5)),
                ("mlp.down_proj.weight", drawn(HIDDEN, INNER, 1 / INNER**0.5)),
                ("input_layernorm.weight", ones()),
                ("post_attention_layernorm.weight", ones()),
            )
        }
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_configuration(folder: Path, vocabulary: int) -> None:
    """What vLLM reads of a model beside its weights."""
    tokens = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    write_json(
        folder / "config.json",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=False,
        torch_dtype="float32",
        **tokens,
    )
    write_json(folder / "generation_config.json", **tokens)


def write_json(path: Path, **document: Any) -> None:
    """Write it for people to read."""
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def main(folder: Path) -> None:
    """Make the model."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder)
    write_weights(folder, vocabulary)
    write_configuration(folder, vocabulary)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
