"""The side table of execution traces."""

from __future__ import annotations

from stepscope.schema.events import Column, StoredTable

__all__ = ["EXECUTION"]

EXECUTION = (
    StoredTable(
        "execution_nodes",
        "Nodes of an execution trace: operators with what they were given and gave, without times.",
        (
            Column("node", "int64", "Number of the node.", always=True),
            Column("name", "string", "Name of the operator or range.", always=True),
            Column("parent", "int64", "Node around it; NULL at the outermost."),
            Column("thread", "int64", "Thread, as the recorder counts them."),
            Column("record_id", "int64", "Number of the recorded function, which a profile may have, too."),
            Column("sequence", "int64", "Autograd's number that ties backward to forward."),
            Column("forward_node", "int64", "For backward: the node that it belongs to."),
            Column("schema", "string", "Signature of the operator."),
            Column("input_shapes", "string", "Shapes of the inputs, as JSON."),
            Column("input_types", "string", "Types of the inputs, as JSON."),
            Column(
                "inputs", "string", "Inputs as JSON: a tensor is id, storage, offset, count, size, device."
            ),
            Column("output_shapes", "string", "Shapes of the outputs, as JSON."),
            Column("output_types", "string", "Types of the outputs, as JSON."),
            Column("outputs", "string", "Outputs, as the inputs are written."),
            Column(
                "depends_on",
                "string",
                "Nodes whose results it needs, as JSON, where the file says it.",
            ),
            Column("dur_ns", "int64", "How long it took, where the file says it: that of a workload does."),
        ),
    ),
)
