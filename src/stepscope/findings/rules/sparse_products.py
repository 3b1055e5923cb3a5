"""Products with a sparse matrix in COO form, which is converted, and perhaps sorted, for each of them."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._op_costs import cost_of, places_of
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["sparse_products"]

_PRODUCT, _INSIDE = "aten::_sparse_addmm", ("aten::addmm", "aten::_sparse_addmm")
_COALESCES = "aten::coalesce"
"""Which a product with a COO matrix calls in any case; it does nothing if that is coalesced."""
_SAVED = {"forward": (0.6, 0.9), "backward": (0.3, 0.9)}
"""Of what is left of products without sorting. On an H200 with five matrices of 1 to 10 million entries CSR
saved 0.60 to 0.89 in inference, 0.33 to 0.79 with the gradient, which turns the matrix around."""
_SORTS = """\
adjacency = adjacency.coalesce()    # once, when it is made: else each product sorts its entries anew"""
_CSR = """\
adjacency = adjacency.coalesce().to_sparse_csr()    # once; its products convert nothing, and read in order"""
_BACKWARD = """\
class Propagate(torch.autograd.Function):    # if it is symmetric: its gradient is the same product
    forward = staticmethod(lambda ctx, x: adjacency @ x)
    backward = staticmethod(lambda ctx, gradient: adjacency @ gradient)"""


@rule(category=Category.DEVICE)
def sparse_products(
    mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.03
) -> Advice | None:
    """Products with a sparse matrix in COO form: each converts it, and may sort its entries.

    Gain, with a matrix that is coalesced and turned into CSR once:

    - at most: all sorting, and nine tenths of the rest of these products with their gradients.
    - at least: all sorting, and of the rest 60 % in the forward pass, 30 % in the backward pass.
    """
    sorting = [op for op in step_ops if op.name == _COALESCES and op.within in _INSIDE]
    products = [op for op in step_ops if op.name == _PRODUCT] if sorting else []
    least_ns = most_ns = sorting_ns = 0.0
    for phase in {op.phase for op in products}:
        whole = cost_of([op for op in products if op.phase == phase], mean_step)
        sorted_ns = cost_of([op for op in sorting if op.phase == phase], mean_step).device_ns
        least, most = _SAVED["backward" if phase == "backward" else "forward"]
        sorting_ns += sorted_ns
        least_ns += sorted_ns + least * (whole.device_ns - sorted_ns)
        most_ns += sorted_ns + most * (whole.device_ns - sorted_ns)
    saving = off_device((least_ns, most_ns), mean_step)
    if not products or mean_step.gain(saving).high_share < least_share:
        return None
    whole = cost_of(products, mean_step)
    sorts, trains = sorting_ns > 0, any(op.phase == "backward" for op in products)
    part = f", of which {units.duration(sorting_ns)} sort its entries: it is not coalesced" if sorts else ""
    done = "sorted for each product" if sorts else "in COO form is converted for each product"
    return Advice(
        title=f"A sparse matrix {'is ' if sorts else ''}{done}",
        because=f"{often(whole.calls, 'product')} with a sparse matrix take "
        f"{units.duration(whole.device_ns)} of GPU time{part}. In COO form it is converted for each of them, "
        "and read in an order that costs time.",
        saving=saving,
        certainty="likely",
        fix=fix_of(*([_SORTS] if sorts else []), _CSR, *([_BACKWARD] if trains else [])),
        check="stepscope show step_ops: aten::coalesce within no product.",
        evidence={
            "products_per_step": whole.calls,
            "products_ns": round(whole.device_ns),
            "sorting_ns": round(sorting_ns),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.INDEXING)}),
        locations=places_of(products),
    )
