"""The head of GGUF files that the gguf package wrote, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_all

from runner.errors import UserError
from runner.weights.gguf_file import read_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    writer = gguf.GGUFWriter(tmp_path / "file.gguf", "llama")
    writer.add_uint8("a.u8", 255)
    writer.add_int8("a.i8", -128)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -32768)
    writer.add_uint32("a.u32", 4294967295)
    writer.add_int32("a.i32", -2147483648)
    writer.add_uint64("a.u64", 18446744073709551615)
    writer.add_int64("a.i64", -9223372036854775808)
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "naïve 日本 🫠")
    writer.add_array("a.strings", ["", "é", "x" * 1000])
    writer.add_array("a.numbers", [1.5, -2.5])
    writer.add_array("a.empty", [])
    writer.add_custom_alignment(64)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.arange(68, dtype=np.uint8).reshape(2, 34), raw_dtype=Kind.Q8_0)
    write_all(writer)
    return tmp_path / "file.gguf"


def test_metadata_of_every_type(file):
    metadata = read_gguf(file).metadata
    numbers = metadata.pop("a.numbers")
    np.testing.assert_array_equal(numbers, np.array([1.5, -2.5], np.float32))
    assert metadata == {
        "general.architecture": "llama",
        "a.u8": 255,
        "a.i8": -128,
        "a.u16": 65535,
        "a.i16": -32768,
        "a.u32": 4294967295,
        "a.i32": -2147483648,
        "a.u64": 18446744073709551615,
        "a.i64": -9223372036854775808,
        "a.f32": 0.5,
        "a.f64": 0.1,
        "a.bool": True,
        "a.string": "naïve 日本 🫠",
        "a.strings": ["", "é", "x" * 1000],
        "general.alignment": 64,
    }


def test_tensors_lie_where_the_gguf_package_finds_them(file):
    tensors = read_gguf(file).tensors
    for expected in gguf.GGUFReader(file).tensors:
        tensor = tensors[expected.name]
        assert tensor.kind == expected.tensor_type
        assert tensor.shape == tuple(expected.shape.tolist()[::-1])
        assert (tensor.start, tensor.end) == (expected.data_offset, expected.data_offset + expected.n_bytes)
        assert tensor.start % 64 == 0
    assert tensors["two"].shape == (2, 32) and tensors["two"].row_bytes == 34


def test_a_file_cut_anywhere_is_an_error_of_one_line(file):
    whole = file.read_bytes()
    end = read_gguf(file).tensors["two"].end
    for size in [*range(0, end, 7), end - 1]:
        file.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"damaged|cut short") as caught:
            read_gguf(file)
        assert "\n" not in str(caught.value)


def test_a_file_with_any_byte_changed_is_read_or_refused(file):
    whole = file.read_bytes()
    for at in [*range(4, 600), *range(len(whole) - 600, len(whole))]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_gguf(file)
        except UserError as error:
            assert "\n" not in str(error)


def test_what_is_no_gguf_file_says_so(tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04 and more than enough bytes")
    with pytest.raises(UserError, match=r"other.gguf is not a GGUF file"):
        read_gguf(other)


def test_versions_and_byte_orders_that_are_not_read(file):
    whole = file.read_bytes()
    for version in (b"\x01\0\0\0", b"\x04\0\0\0", b"\0\0\0\x03"):
        file.write_bytes(whole[:4] + version + whole[8:])
        with pytest.raises(UserError, match="versions 2 and 3"):
            read_gguf(file)


def test_a_part_of_a_split_file_says_how_to_join_it(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    write_all(writer)
    with pytest.raises(UserError, match=r"one of 3 parts.*llama-gguf-split --merge"):
        read_gguf(tmp_path / "part.gguf")
