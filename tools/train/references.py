"""Other implementations of qwen35 to compare with: Hugging Face transformers and llama.cpp, on the CPU."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import llama_cpp
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFReader
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from model import Geometry

transformers.logging.set_verbosity_error()  # it would say that kernels for GPUs are not installed

LLAMACPP_BATCH = 512  # tokens

LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
}
OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def dequantise(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file with F32 and Q1_0 tensors as f32, decoded by ggml itself."""
    ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib/libggml-base.so"))
    tensors = {}
    for tensor in GGUFReader(path).tensors:
        if tensor.tensor_type == GGMLQuantizationType.Q1_0:
            packed = np.ascontiguousarray(tensor.data)
            values = np.empty([int(n) for n in tensor.shape[::-1]], np.float32)
            pointers = (ctypes.c_void_p(array.ctypes.data) for array in (packed, values))
            ggml.dequantize_row_q1_0(*pointers, ctypes.c_int64(values.size))
        elif tensor.tensor_type == GGMLQuantizationType.F32:
            values = np.array(tensor.data)
        else:
            raise ValueError(f"{tensor.name} is {tensor.tensor_type.name}")
        tensors[tensor.name] = torch.from_numpy(values)
    return tensors


def hf_parameters(g: Geometry, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undoes what the GGUF converter did: the order of value heads, 1 added to norms, -exp of A_log."""
    ratio = g.n_value_heads // g.n_key_heads

    def grouped(x: Tensor, axis: int, head: int) -> Tensor:
        """Value heads from tiled order (j reads key head j % n_key_heads) to grouped by key head."""
        tiled = x.unflatten(axis, (ratio, g.n_key_heads, head))
        return tiled.transpose(axis, axis + 1).flatten(axis, axis + 2)

    def converted(name: str, x: Tensor) -> Tensor:
        if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            return x - 1
        if name.endswith(("attn_qkv.weight", "ssm_conv1d.weight")):
            query_key, value = x.split((2 * g.key_dim, g.value_dim))
            x = torch.cat((query_key, grouped(value, 0, g.head_v_dim)))
            return x.unsqueeze(1) if "conv1d" in name else x
        if re.fullmatch(r"blk\.\d+\.attn_gate\.weight", name):
            return grouped(x, 0, g.head_v_dim)
        if name.endswith("ssm_out.weight"):
            return grouped(x, 1, g.head_v_dim)
        if name.endswith(("ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias")):
            return grouped(x, 0, 1)
        if name.endswith("ssm_a"):
            return grouped((-x).log(), 0, 1)
        return x

    result = {}
    for name, x in tensors.items():
        if name in OTHER_NAMES:
            result[OTHER_NAMES[name]] = converted(name, x)
        else:
            _, layer, rest = name.split(".", 2)
            result[f"model.layers.{layer}.{LAYER_NAMES[rest]}"] = converted(name, x)
    return result


class HuggingFace:
    """transformers in float32 with eager attention."""

    name = (
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32,"
        " eager attention"
    )

    def __init__(self, g: Geometry, path: str | Path, sections: Sequence[int]):
        tensors = dequantise(path)
        tied = "output.weight" not in tensors
        config = Qwen3_5TextConfig(
            vocab_size=g.vocab,
            hidden_size=g.hidden,
            intermediate_size=g.ffn,
            num_hidden_layers=g.n_layers,
            num_attention_heads=g.n_heads,
            num_key_value_heads=g.n_kv_heads,
            head_dim=g.head_dim,
            max_position_embeddings=g.context_length,
            rms_norm_eps=g.rms_eps,
            tie_word_embeddings=tied,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": g.rope_theta,
                "partial_rotary_factor": g.n_rot / g.head_dim,
                "mrope_section": list(sections[:3]),
                "mrope_interleaved": True,
            },
            linear_conv_kernel_dim=g.conv_kernel,
            linear_key_head_dim=g.head_k_dim,
            linear_value_head_dim=g.head_v_dim,
            linear_num_key_heads=g.n_key_heads,
            linear_num_value_heads=g.n_value_heads,
            layer_types=[
                "full_attention" if g.is_attention(i) else "linear_attention" for i in range(g.n_layers)
            ],
            attn_implementation="eager",
            dtype="float32",
        )
        self.model = Qwen3_5ForCausalLM(config).float().eval()
        parameters = hf_parameters(g, tensors)
        if tied:
            parameters["lm_head.weight"] = parameters["model.embed_tokens.weight"]
        self.model.load_state_dict(parameters, strict=True)

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Scores after every position in one pass, [T, V]."""
        return self.model(torch.tensor([ids]), use_cache=False).logits[0].numpy()

    @torch.no_grad()
    def hidden_states(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Embedding, residual stream after each layer but the last, final norm, [layers + 1, T, D]."""
        output = self.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        return torch.cat(output.hidden_states).numpy()

    @torch.no_grad()
    def greedy(self, ids: Sequence[int], count: int) -> tuple[list[int], NDArray[np.float32]]:
        """`count` greedy ids, token by token, and the scores each was chosen from, [count, V]."""
        tokens, cache, chosen, rows = list(ids), None, [], []
        for _ in range(count):
            output = self.model(torch.tensor([tokens]), cache=cache, use_cache=True)
            cache, row = output.cache, output.logits[0, -1]
            tokens = [int(row.argmax())]
            chosen += tokens
            rows.append(row.numpy())
        return chosen, np.stack(rows)


class LlamaCpp:
    """llama.cpp with a key and value cache of f32 or, its default, f16."""

    name = f"llama-cpp-python {llama_cpp.__version__}, CPU"

    def __init__(self, path: str | Path, context: int, cache: Literal["f32", "f16"]):
        kind = {"f32": llama_cpp.GGML_TYPE_F32, "f16": llama_cpp.GGML_TYPE_F16}[cache]
        options: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1, "verbose": False}
        self.llama = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_batch=LLAMACPP_BATCH,
            logits_all=True,
            flash_attn=False,
            type_k=kind,
            type_v=kind,
            **options,
        )

    def tokenize(self, text: str) -> list[int]:
        return self.llama.tokenize(text.encode(), add_bos=False, special=True)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Scores after every position, [T, V]."""
        self.llama.reset()
        self.llama.eval(ids)
        return self.llama.scores[: len(ids)].copy()

    def greedy(self, ids: Sequence[int], count: int, stop_id: int | None = None) -> list[int]:
        """Greedy ids, ending with `stop_id` unless cut off at `count`."""
        self.llama.reset()
        self.llama.eval(ids)
        chosen: list[int] = []
        while True:
            chosen.append(int(self.llama.scores[self.llama.n_tokens - 1].argmax()))
            if len(chosen) == count or chosen[-1] == stop_id:
                return chosen
            self.llama.eval(chosen[-1:])
