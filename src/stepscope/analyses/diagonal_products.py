"""Products with matrices that were made from a vector and have numbers on their diagonal only."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._around import READS, VIEWS, Op, around, is_shape, sources_of, together
from stepscope.analyses._windows import how_steps_were_found
from stepscope.costs.tensor_shapes import dims_of
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["DiagonalProducts", "diagonal_products"]

_PRODUCT = late_pattern(r"aten::(matmul|mm|bmm)")
_AFTER = 8
"""How many operators after the matrix is made are looked at."""
_CHOSEN = """
    SELECT event, thread, place, step FROM called
    WHERE name = 'aten::diag_embed'
       OR name = 'aten::diag' AND event IN (SELECT parent FROM ops WHERE name = 'aten::diag_embed')
    ORDER BY place LIMIT 256
"""


@dataclass(frozen=True, slots=True)
class DiagonalProducts:
    """Products right after a diagonal matrix was made from a vector, in one step."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that makes it; needs with_stack=True."]
    size: Annotated[int | None, "Rows and columns of the matrix; None without shapes."]
    products: Annotated[int, "How many products follow, with nothing but views between."]
    made_ns: Annotated[int, "Device time of making the matrix: all of it is written once, mostly zeros."]
    products_ns: Annotated[int, "Device time of the products."]
    backward_ns: Annotated[int, "Device time of their gradients, and of the gradient of the matrix."]


_SUMMED = ("products", "made_ns", "products_ns", "backward_ns")


@analysis(reads=READS | {"ops": (*READS["ops"], "parent")})
def diagonal_products(trace: Trace) -> Table[DiagonalProducts]:
    """Finds products with a matrix that `torch.diag` made from a vector: they only scale rows or columns."""
    if not all(map(trace.may_have_name, ("^aten::diag_embed$", "^aten::(matmul|mm|bmm)$"))):
        return Table.of(DiagonalProducts, [], ["No matrix is made from its diagonal."])
    found = (one for row in trace.rows(around(_CHOSEN, 0, _AFTER)) if (one := _found(row)))
    rows = sorted(together(found, _SUMMED), key=lambda row: -row.products_ns)
    nothing = [] if rows else ["No product follows a matrix that was made from its diagonal."]
    return Table.of(DiagonalProducts, rows, nothing + how_steps_were_found(trace))


def _found(row: dict[str, Any]) -> DiagonalProducts | None:
    """The products right after one such matrix was made."""
    made, *after = row["ops"]
    vector = next(iter(sources_of(made)), None)
    size = vector[-1] if vector else None
    products = _products(after, size)
    if not products:
        return None
    return DiagonalProducts(
        step=row["step"],
        user_frame=row["user_frame"],
        size=size,
        products=len(products),
        made_ns=made["ns"],
        products_ns=sum(op["ns"] for op in products),
        backward_ns=sum(op["backward_ns"] for op in (made, *products)),
    )


def _products(after: list[Op], size: int | None) -> list[Op]:
    """The products right after the matrix was made: with it, or with what a product with it gave."""
    found: list[Op] = []
    for op in after:
        if VIEWS.fullmatch(op["name"]):
            continue
        sides = [shape[-2:] for shape in dims_of(op["dims"])[:2] if is_shape(shape)]
        fits = size is None or [size, size] in sides
        if not _PRODUCT.fullmatch(op["name"]) or not fits:
            break
        found.append(op)
    return found
