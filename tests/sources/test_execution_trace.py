"""Execution traces: their nodes, however they are laid out, and what of a profile belongs to them."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.protobuf import message, packed_varint
from tests.trying import tries

import stepscope
from stepscope import _native
from stepscope.analyses.op_inputs import op_inputs
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.store.columns import texts

SHAPES = [[[8, 4], [4, 2]], [[8, 2]]]


def flat(number: int, name: str, thread: int = 1, shapes: Any = None) -> dict[str, Any]:
    """A node as versions up to 1.0.2 write it."""
    return {
        "name": name, "id": number + 10, "rf_id": number, "parent": 2, "fw_parent": 0, "seq_id": -1,
        "scope": 0, "tid": thread, "fw_tid": 0, "op_schema": f"{name}(Tensor self) -> Tensor",
        "inputs": [[1, 2, 0, 32, 4, "cpu"]],
        "input_shapes": shapes or SHAPES[0], "input_types": ["Tensor(float)", "Tensor(float)"], "outputs": [],
        "output_shapes": SHAPES[1], "output_types": ["Tensor(float)"],
    }  # fmt: skip


def nested(node: dict[str, Any]) -> dict[str, Any]:
    """The same node as later versions write it."""
    attrs = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")
    gave = {"values": node["outputs"], "shapes": node["output_shapes"], "types": node["output_types"]}
    return {
        "id": node["id"], "name": node["name"], "ctrl_deps": node["parent"],
        "inputs": {"values": node["inputs"], "shapes": node["input_shapes"], "types": node["input_types"]},
        "outputs": gave,
        "attrs": [{"name": name, "type": "uint64", "value": node[name]} for name in attrs],
    }  # fmt: skip


def written(path: Path, nodes: list[dict[str, Any]], schema: str = "1.0.1") -> Path:
    document = {
        "schema": schema,
        "pid": 7,
        "time": "2026-01-01",
        "start_ts": 1,
        "nodes": nodes,
        "finish_ts": 2,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_both_layouts_say_the_same(tmp_path: Path) -> None:
    nodes = [flat(number, f"aten::op{number}") for number in range(1, 4)]
    one = stepscope.open(written(tmp_path / "a.json", nodes))
    two = stepscope.open(written(tmp_path / "b.json", [nested(node) for node in nodes], "1.0.3-chakra.0.0.4"))
    sql = "SELECT * FROM execution_nodes ORDER BY node"
    assert one.arrow(sql).to_pylist() == two.arrow(sql).to_pylist()
    (first, *_) = one.arrow(sql).to_pylist()
    assert (first["node"], first["name"], first["parent"], first["record_id"]) == (11, "aten::op1", 2, 1)
    assert (first["sequence"], first["forward_node"]) == (None, None)
    assert json.loads(first["input_shapes"]) == SHAPES[0]
    assert one.meta.metadata["execution_trace"] == {"schema": "1.0.1", "pid": 7, "time": "2026-01-01"}


def profile(tmp_path: Path, names: list[str]) -> Path:
    drawing = Drawing()
    for place, name in enumerate(names):
        drawing.op(name, 100 * place, 50)
    return drawing.write(tmp_path / "trace.json")


def test_nodes_are_found_in_the_profile_by_their_place(tmp_path: Path) -> None:
    names = ["aten::a", "aten::b", "aten::a", "aten::c"]
    nodes = [flat(number, name) for number, name in enumerate(names, 5)]
    trace = stepscope.open(
        profile(tmp_path, ["aten::c", *names, "aten::other"]), also=[written(tmp_path / "et.json", nodes)]
    )
    found = op_inputs(trace)
    assert {(row.name, row.nodes, row.joined, row.host_ns) for row in found} == {
        ("aten::a", 2, 2, 100_000), ("aten::b", 1, 1, 50_000), ("aten::c", 1, 1, 50_000),
    }  # fmt: skip
    assert list(found.notes) == ["4 of 4 operators of the execution trace are in the profile."]
    assert trace.meta.sources[1].joined == "by the order of operators"


def test_a_profile_of_something_else_is_not_joined(tmp_path: Path) -> None:
    names = ["aten::a", "aten::b", "aten::c", "aten::d", "aten::e"]
    nodes = [flat(number, name) for number, name in enumerate(names)]
    trace = stepscope.open(profile(tmp_path, names[::-1]), also=[written(tmp_path / "et.json", nodes)])
    found = op_inputs(trace)
    assert sum(row.joined for row in found) == 0
    assert list(found.notes) == [
        "None of its operators was found in the profile: it shows others, or in another order."
    ]


def test_alone_it_has_no_times(tmp_path: Path) -> None:
    found = op_inputs(stepscope.open(written(tmp_path / "et.json", [flat(1, "aten::a")])))
    assert [(row.name, row.nodes, row.host_ns) for row in found] == [("aten::a", 1, None)]
    assert list(found.notes) == ["There is no profile beside the execution trace, so it has no times."]


def test_what_is_cut_is_read_up_to_there(tmp_path: Path) -> None:
    whole = written(tmp_path / "et.json", [flat(number, "aten::a") for number in range(10)]).read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    trace = stepscope.open(cut)
    (count,) = trace.arrow("SELECT count(*) FROM execution_nodes")[0].to_pylist()
    assert 5 <= count <= 7
    (damage,) = trace.meta.damage
    assert damage.reason.startswith("the execution trace ends too early")
    assert damage.bytes > 0


@pytest.mark.parametrize("text", ['{"schema": "1.0.1", "pid": 1, "nodes": []}', '{"workload_graph": [}'])
def test_without_nodes_it_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "et.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(StepscopeError, match=r"et\.json is no execution trace") as caught:
        stepscope.open(file)
    assert "ExecutionTraceObserver" in caught.value.hint


def test_odd_nodes_are_counted(tmp_path: Path) -> None:
    odd: list[Any] = [
        {"id": "x", "name": "a"},
        {"name": "b"},
        {"id": 1},
        7,
        None,
        "text",
        [],
        flat(1, "aten::a"),
    ]
    trace = stepscope.open(written(tmp_path / "et.json", odd))
    assert trace.meta.rows["execution_nodes"] == 1
    assert [one.reason for one in trace.meta.damage] == ["a node without a number or a name, not kept"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=tries(100))
@given(elements=st.lists(VALUES, max_size=8), before=VALUES, size=st.integers(1, 40), compact=st.booleans())
def test_elements_come_out_as_they_went_in(
    elements: list[Any], before: Any, size: int, *, compact: bool
) -> None:
    document = {"before": before, "nodes": elements, "after": 1}
    raw = json.dumps(document, indent=None if compact else 1).encode()
    reader = _native.ElementReader("nodes")
    for at in range(0, len(raw), size):
        reader.feed(raw[at : at + size])
    reader.finish()
    assert reader.trouble == ""
    assert [json.loads(text) for text in texts(*reader.take()).to_pylist()] == elements
    assert {key: json.loads(text) for key, text in reader.members} == {"before": before, "after": 1}


@settings(max_examples=tries(200))
@given(raw=st.binary(max_size=60), size=st.integers(1, 20))
def test_any_bytes_are_read_or_refused(raw: bytes, size: int) -> None:
    reader = _native.ElementReader("nodes")
    document = b'{"nodes": [1, {"a": 2}, ' + raw
    for at in range(0, len(document), size):
        reader.feed(document[at : at + size])
    reader.finish()
    for text in texts(*reader.take()).to_pylist():
        json.loads(text)


REAL = {"simple_add": (28, 28, 38), "linear": (710, 710, 931)}


@pytest.mark.parametrize("name", REAL)
def test_real_pairs(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    folder = sample("execution_traces")
    (et,) = folder.glob(f"{name}_et*.json.gz")
    joined, operators, nodes = REAL[name]
    assert len(json.loads(gzip.decompress(et.read_bytes()))["nodes"]) == nodes
    trace = stepscope.open(folder / f"{name}_kineto.json.gz", also=[et], store=tmp_path)
    assert trace.meta.rows["execution_nodes"] == nodes
    found = op_inputs(trace)
    assert (sum(row.joined for row in found), sum(row.nodes for row in found)) == (joined, operators)


def test_real_ranks_and_their_execution_traces(sample: Callable[[str], Path], tmp_path: Path) -> None:
    with tarfile.open(sample("execution_traces/dlrm_8_ranks_et_1.0.1.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (et,) = tmp_path.rglob("dlrm_eg_3.json")
    (kineto,) = sample("ranks/dlrm_v100_8").glob("worker3_*")
    found = op_inputs(stepscope.open(kineto, also=[et], store=tmp_path / "stores"))
    joined, nodes = (sum(getattr(row, name) for row in found) for name in ("joined", "nodes"))
    assert joined >= 0.99 * nodes > 1000


def delimited(*messages: bytes) -> bytes:
    return b"".join(packed_varint(len(one)) + one for one in messages)


def attribute(name: str, number: int, value: int | bytes) -> bytes:
    return message((1, name), (number, value))


def chakra_node(number: int, name: str, needs: tuple[int, ...] = ()) -> bytes:
    """A node as Chakra writes what it read of a trace of torch."""
    given_ = message((1, "[[1, 2]]"), (2, "[[8, 4]]"), (3, '["Tensor(float)"]'))
    attrs = [
        attribute("rf_id", 13, number + 100),
        attribute("tid", 13, 1),
        attribute("op_schema", 29, f"{name}(Tensor self) -> Tensor".encode()),
        attribute("seq_id", 17, 1),  # folded: -1
        attribute("is_cpu_op", 27, 1),
    ]
    depends = b"".join(map(packed_varint, needs))
    fields = [(1, number), (2, name), (3, 4), (4, 2), (5, depends), (7, 5), (8, given_)]
    return message(*fields, *((10, one) for one in attrs))


HEADER = message((1, "0.0.4"), (2, attribute("schema", 29, b"1.0.2-chakra.0.0.4")))


class TestProtobuf:
    def test_nodes(self, tmp_path: Path) -> None:
        file = tmp_path / "x.0.et"
        file.write_bytes(delimited(HEADER, chakra_node(0, "aten::a"), chakra_node(300, "aten::b", (0, 7))))
        trace = stepscope.open(file)
        first, second = trace.arrow("SELECT * FROM execution_nodes ORDER BY node").to_pylist()
        assert (first["node"], first["name"], first["parent"], first["record_id"]) == (0, "aten::a", 2, 100)
        assert (first["thread"], first["sequence"], first["depends_on"]) == (1, None, None)
        assert (first["input_shapes"], first["input_types"]) == ("[[8, 4]]", '["Tensor(float)"]')
        assert (second["node"], second["depends_on"], second["dur_ns"]) == (300, "[0,7]", 5000)
        assert second["schema"] == "aten::b(Tensor self) -> Tensor"
        assert trace.meta.metadata["execution_trace"] == {"schema": "1.0.2-chakra.0.0.4"}
        assert [row.name for row in op_inputs(trace)] == ["aten::a", "aten::b"]

    def test_one_of_a_generator(self, tmp_path: Path) -> None:
        sent = message((1, 1), (2, "COMM_SEND_NODE"), (3, 5), (10, attribute("comm_size", 9, 1024)))
        worked = message((2, "COMP_NODE"), (3, 4), (10, attribute("is_cpu_op", 27, 0)))  # its number is 0
        file = tmp_path / "x.0.et"
        file.write_bytes(delimited(message((1, "0.0.4")), worked, sent))
        trace = stepscope.open(file)
        assert trace.meta.kind == "execution_trace"
        found = trace.arrow("SELECT node, name FROM execution_nodes ORDER BY node").to_pylist()
        assert [tuple(row.values()) for row in found] == [(0, "COMP_NODE"), (1, "COMM_SEND_NODE")]
        assert "has no times" in build_report(trace).verdict.sentence

    @pytest.mark.parametrize(
        "parts",
        [
            (message((1, "0.0.4")),),
            (message((1, "0.0.4")), message((1, 1), (2, "no kind"))),
            (message((1, "0.0.4")), message((1, 1), (2, "a"), (3, 4), (11, 1))),
            (message((1, "0.0.4")), message((1, 1), (2, b"\xff\x00"), (3, 4))),
            (message((1, "0.0.4")), message((1, "a"), (2, "a"), (3, 4))),
            (message((1, "0.0.4"), (3, 1)), message((1, 1), (2, "a"), (3, 4))),
            (message((1, "1.x no version")), message((1, 1), (2, "a"), (3, 4))),
        ],
    )
    def test_other_protobuf_is_not_taken_for_one(self, parts: tuple[bytes, ...], tmp_path: Path) -> None:
        file = tmp_path / "x.et"
        file.write_bytes(delimited(*parts))
        with pytest.raises(StepscopeError, match="no source knows"):
            stepscope.open(file)

    def test_durations_are_told(self, tmp_path: Path) -> None:
        file = tmp_path / "x.et"
        file.write_bytes(delimited(HEADER, chakra_node(0, "aten::a")))
        said = build_report(stepscope.open(file)).verdict.sentence
        assert "has no timeline" in said
        assert "has no times" not in said

    def test_what_is_cut_or_damaged(self, tmp_path: Path) -> None:
        odd = message((1, 5)) + b"\x12\x7f"  # a name that runs over the end
        whole = delimited(HEADER, chakra_node(0, "aten::a"), odd, chakra_node(1, "aten::b"))
        file = tmp_path / "x.et"
        file.write_bytes(whole[:-3])
        trace = stepscope.open(file)
        assert trace.meta.rows["execution_nodes"] == 1
        assert [one.reason for one in trace.meta.damage] == [
            "the execution trace ends too early or is damaged: it ends too early",
            "a damaged node of the execution trace, not kept",
        ]

    @settings(max_examples=tries(200))
    @given(raw=st.binary(max_size=80), size=st.integers(1, 30))
    def test_any_bytes_are_read_or_refused(self, raw: bytes, size: int) -> None:
        reader = _native.ChakraReader()
        document = delimited(HEADER, chakra_node(1, "aten::a")) + raw
        for at in range(0, len(document), size):
            reader.feed(document[at : at + size])
        reader.finish()
        for text in texts(*reader.take()).to_pylist():
            json.loads(text)

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_real_one(self, rank: int, sample: Callable[[str], Path], tmp_path: Path) -> None:
        file = sample(f"execution_traces/chakra_ring_allreduce.{rank}.et")
        raw, at, nodes = file.read_bytes(), 0, -1  # the header is none
        while at < len(raw):
            size, shift = 0, 0
            while True:
                byte, at = raw[at], at + 1
                size, shift = size | (byte & 0x7F) << shift, shift + 7
                if byte < 0x80:
                    break
            at, nodes = at + size, nodes + 1
        trace = stepscope.open(file, store=tmp_path)
        assert trace.meta.rows["execution_nodes"] == nodes > 10
        assert trace.meta.damage == ()
        (kinds,) = trace.arrow("SELECT count(DISTINCT name[:4]) FROM execution_nodes")[0].to_pylist()
        assert kinds == 2, "COMM_… and COMP_…"
