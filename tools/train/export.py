"""Parameters to and from GGUF files of architecture qwen35.

python export.py build/run/best.pt ../../models/signbit-mini.gguf
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from torch import Tensor

import q1_0
from chat import CHAT_TEMPLATE
from model import Geometry, is_matrix, parameter_shapes

ARCHITECTURE = "qwen35"
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # token types
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

METADATA: dict[str, str | float] = {
    "general.name": "Signbit Mini",
    "general.description": "1-bit chat model: countries, elements, small talk. Sources: NOTICE.txt.",
    "general.license": "MIT",
    # Every question it was trained on has one right answer.
    "general.sampling.temp": 0.0,
}


def write_gguf(
    path: str | Path,
    g: Geometry,
    latents: Mapping[str, Tensor],
    tokenizer_json_path: str | Path,
    metadata: Mapping[str, str | float],
    chat_template: str,
    matrices: Literal["q1_0", "f32"] = "q1_0",
) -> None:
    """Write a model file; `metadata` holds extra keys such as general.name, numbers among them as f32.

    Matrices become one-bit blocks, or with "f32" the very numbers those blocks stand for.
    """
    writer = GGUFWriter(path, ARCHITECTURE)
    writer.add_type("model")
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_float32(key, value)
    _add_geometry(writer, g)
    writer.add_file_type(LlamaFileType.MOSTLY_Q1_0 if matrices == "q1_0" else LlamaFileType.ALL_F32)
    writer.add_quantization_version(2)
    _add_tokenizer(writer, g, json.loads(Path(tokenizer_json_path).read_text(encoding="utf-8")))
    writer.add_chat_template(chat_template)
    for name in parameter_shapes(g, tied="output.weight" not in latents):
        weights = latents[name].detach().float()
        if is_matrix(name) and matrices == "q1_0":
            writer.add_tensor(name, q1_0.pack(weights.numpy()), raw_dtype=GGMLQuantizationType.Q1_0)
        elif is_matrix(name):
            writer.add_tensor(name, q1_0.quantize(weights).numpy())
        elif name.endswith("ssm_a_log"):
            writer.add_tensor(name.removesuffix("_log"), (-weights.exp()).numpy())
        else:
            writer.add_tensor(name, weights.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_geometry(writer: GGUFWriter, g: Geometry) -> None:
    writer.add_block_count(g.n_layers)
    writer.add_context_length(g.context_length)
    writer.add_embedding_length(g.hidden)
    writer.add_feed_forward_length(g.ffn)
    writer.add_head_count(g.n_heads)
    writer.add_head_count_kv(g.n_kv_heads)
    writer.add_key_length(g.head_dim)
    writer.add_value_length(g.head_dim)
    # The pairs rotated by time, height and width of an image; for text only their sum matters.
    third = -(-(g.n_rot // 2) // 3)
    writer.add_rope_dimension_sections([third, third, g.n_rot // 2 - 2 * third, 0])
    writer.add_rope_freq_base(g.rope_theta)
    writer.add_rope_dimension_count(g.n_rot)
    writer.add_layer_norm_rms_eps(g.rms_eps)
    writer.add_ssm_conv_kernel(g.conv_kernel)
    writer.add_ssm_state_size(g.head_k_dim)
    writer.add_ssm_group_count(g.n_key_heads)
    writer.add_ssm_time_step_rank(g.n_value_heads)
    writer.add_ssm_inner_size(g.value_dim)
    writer.add_uint32(f"{ARCHITECTURE}.full_attention_interval", g.full_attention_interval)


def _add_tokenizer(writer: GGUFWriter, g: Geometry, tokenizer: Mapping[str, Any]) -> None:
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | special
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(g.vocab)):
        raise ValueError(f"the tokenizer's ids are not 0 to {g.vocab - 1}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(ARCHITECTURE)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [
            CONTROL if token in CONTROL_TOKENS else USER_DEFINED if token in special else NORMAL
            for token in tokens
        ]
    )
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    )
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)


def read_gguf(path: str | Path) -> tuple[Geometry, dict[str, Tensor], dict[str, Any]]:
    """The geometry, the parameters as f32 and all metadata of a file with F32, F16 or Q1_0 tensors."""
    reader = GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    arrays = {tensor.name: _to_f32(tensor) for tensor in reader.tensors}
    g = _geometry(metadata, vocab=len(arrays["token_embd.weight"]))
    p = {}
    for name, shape in parameter_shapes(g, tied="output.weight" not in arrays).items():
        if name.endswith("ssm_a_log"):
            p[name] = torch.from_numpy(np.log(-arrays[name.removesuffix("_log")]))
        else:
            p[name] = torch.from_numpy(arrays[name])
        if p[name].shape != shape:
            raise ValueError(f"{name} is {tuple(p[name].shape)}, not {shape}")
    return g, p, metadata


def _to_f32(tensor: Any) -> np.ndarray:
    if tensor.tensor_type == GGMLQuantizationType.Q1_0:
        return q1_0.unpack(tensor.data)
    if tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return tensor.data.astype(np.float32)  # a copy: the file stays mapped read-only
    raise ValueError(f"{tensor.name} is {tensor.tensor_type.name}")


def _geometry(metadata: Mapping[str, Any], vocab: int) -> Geometry:
    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{ARCHITECTURE}.{key}", default)
        if value is None:
            raise KeyError(f"{ARCHITECTURE}.{key}")
        # An f32 reads as a number such as 9.99999997e-07; its shortest decimal form is the one meant.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    g = Geometry(
        n_layers=get("block_count") - get("nextn_predict_layers", 0),
        hidden=get("embedding_length"),
        ffn=get("feed_forward_length"),
        n_key_heads=get("ssm.group_count"),
        n_value_heads=get("ssm.time_step_rank"),
        n_heads=get("attention.head_count"),
        n_kv_heads=get("attention.head_count_kv"),
        vocab=vocab,
        context_length=get("context_length"),
        head_k_dim=get("ssm.state_size"),
        head_v_dim=get("ssm.inner_size") // get("ssm.time_step_rank"),
        head_dim=get("attention.key_length"),
        n_rot=get("rope.dimension_count"),
        rope_theta=get("rope.freq_base"),
        conv_kernel=get("ssm.conv_kernel"),
        rms_eps=get("attention.layer_norm_rms_epsilon"),
        full_attention_interval=get("full_attention_interval", 4),
    )
    schedule = [not g.is_attention(layer) for layer in range(g.n_layers)]
    if get("attention.recurrent_layers", schedule)[: g.n_layers] != schedule:
        raise ValueError("the attention layers do not follow full_attention_interval")
    return g


def load_checkpoint(path: str | Path) -> tuple[Geometry, dict[str, Tensor]]:
    """Geometry and latent parameters of train.py's best.pt or last.pt."""
    state = torch.load(path)
    g, latent = Geometry.from_json(state["geometry"]), state["latent"]
    if isinstance(latent, Tensor):  # last.pt holds the flat buffer
        from train import Layout

        latent = Layout(g).views(latent)
    return g, latent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="best.pt or last.pt of train.py")
    parser.add_argument("model", type=Path, help="the GGUF file to write")
    parser.add_argument("--tokenizer", type=Path, default=Path(__file__).parent / "build/tokenizer.json")
    args = parser.parse_args()

    g, latent = load_checkpoint(args.checkpoint)
    write_gguf(args.model, g, latent, args.tokenizer, METADATA, CHAT_TEMPLATE)
    print(f"{args.model}: {args.model.stat().st_size} bytes")


if __name__ == "__main__":
    main()
