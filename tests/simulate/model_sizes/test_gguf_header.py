"""GGUF files that the package `gguf` writes: the sizes and the bytes that their headers state."""

import gguf
import numpy as np
import pytest

from simulate.device_memory import DeviceMemory
from simulate.drafter_kinds import no_work
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.gguf_header import MODEL_DATA
from simulate.model_sizes.hf_config import context_limit
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError
from treeopt.storage.user_files import shipped_json

HIDDEN, INNER, VOCAB, LAYERS = 64, 96, 320, 3
Q4, Q8, F16 = (gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q8_0", "F16"))
BYTES = {Q4: 18 / 32, Q8: 34 / 32, F16: 2.0}
BLOCK = {
    "attn_q": (HIDDEN, HIDDEN, Q4),
    "attn_k": (HIDDEN // 2, HIDDEN, Q4),
    "attn_v": (HIDDEN // 2, HIDDEN, Q8),
    "attn_output": (HIDDEN, HIDDEN, Q8),
    "ffn_gate": (INNER, HIDDEN, Q4),
    "ffn_up": (INNER, HIDDEN, Q4),
    "ffn_down": (HIDDEN, INNER, F16),
}


def write(path, *, architecture="llama", head=Q8, block=BLOCK, extra=()):
    writer = gguf.GGUFWriter(path, architecture)
    fields = {"block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": INNER, "context_length": 512}
    for name, value in {**fields, "attention.head_count": 4, "attention.head_count_kv": 2, **dict(extra)}.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    tensors = {"token_embd": (VOCAB, HIDDEN, Q4), **({} if head is None else {"output": (VOCAB, HIDDEN, head)})}
    tensors |= {f"blk.{i}.{name}": size for i in range(LAYERS) for name, size in block.items()}
    for name, (rows, columns, kind) in tensors.items():
        values = gguf.quantize(np.zeros((rows, columns), np.float32), kind)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
    for name in ("output_norm", *(f"blk.{i}.{part}_norm" for i in range(LAYERS) for part in ("attn", "ffn"))):
        writer.add_tensor(f"{name}.weight", np.zeros(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_matrices_head_and_embedding_have_the_bytes_of_their_types(tmp_path):
    path = write(tmp_path / "model.gguf")
    for source in (path, tmp_path):  # the file, or the folder that holds nothing else
        shape = Shape.from_config(source, as_stored=True)
        total = sum(tensor.n_elements for tensor in gguf.GGUFReader(path).tensors)
        assert (shape.parameters, shape.vocab, shape.tied) == (total, VOCAB, False)
        ((_, qkv, output, gate_up, down),) = [(group.count, *group.matrices) for group in shape.layer_groups]
        assert qkv.stored == pytest.approx((3 * BYTES[Q4] + BYTES[Q8]) / 4)
        assert [output.stored, gate_up.stored, down.stored] == [BYTES[Q8], BYTES[Q4], BYTES[F16]]
        assert (shape.head_bytes, shape.embedding_bytes) == (BYTES[Q8], BYTES[Q4])
        assert Forward.of(shape).head_bytes == BYTES[Q8]  # it is not priced at 2 bytes
        memory = DeviceMemory.of(shape, no_work(), context=1, weight_bytes=4.0)  # norms are in fp32
        assert memory.weights == sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
    assert context_limit(path) == 512


def test_bytes_of_types_are_the_librarys():
    known = shipped_json(MODEL_DATA)["gguf"]["types"]
    sizes = {str(int(kind)): size / block for kind, (block, size) in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: known[kind] / 256 for kind in sizes} == sizes


def test_a_head_that_is_the_embedding_counts_once(tmp_path):
    shape = Shape.from_config(write(tmp_path / "model.gguf", head=None), as_stored=True)
    assert (shape.tied, shape.head_bytes) == (True, BYTES[Q4])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"architecture": "newest"}, None),  # the usual names of fields
        ({"architecture": "newest", "block": {**BLOCK, "attn_memory": (HIDDEN, 8 * HIDDEN, F16)}}, "in its tensors"),
        ({"extra": {"ssm.state_size": 16}}, "llama.ssm.state_size: recurrent layers of GGUF files are not counted"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path, how, said):
    path = write(tmp_path / "model.gguf", **how)
    if said is None:
        assert "'newest' is not known" in Shape.from_config(path, as_stored=True).notes[0]
    else:
        with pytest.raises(CostError, match=f"model.gguf: .*{said}"):
            Shape.from_config(path, as_stored=True)


def test_broken_files_are_refused_in_one_line(tmp_path):
    whole = write(tmp_path / "model.gguf").read_bytes()
    for cut in (0, 3, 20, 200, len(whole) // 2, len(whole) - 4 * HIDDEN // 2):  # the last within its last tensor
        (tmp_path / "model.gguf").write_bytes(whole[:cut])
        with pytest.raises(CostError, match=r"model\.gguf: the header of this GGUF file cannot be read: .*"):
            Shape.from_config(tmp_path)
    for name, value in ((b"llama.block_count", 8), (b"llama.embedding_length", 0)):  # a text's type; no number
        at = whole.index(name) + len(name)
        broken = whole[:at] + bytes([value or 4]) + whole[at + 1 : at + 4] + bytes(4) + whole[at + 8 :]
        (tmp_path / "model.gguf").write_bytes(broken)
        with pytest.raises(CostError, match=r"model\.gguf: the header of this GGUF file cannot be read: .*"):
            Shape.from_config(tmp_path)
