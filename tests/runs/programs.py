"""Programs for drawn runs: data, tensor, pipeline and expert parallel training, as operations of a step."""

from __future__ import annotations

from collections.abc import Sequence

from tests.runs.drawn import Group, Join, Op, Program, Talk, Work

__all__ = ["data_parallel", "experts", "pipeline", "sharded", "tensor_data"]


def data_parallel(
    ranks: int, *, layers: int = 3, work_ns: int = 2_000_000, overlapped: bool = True, size: int = 40_000_000
) -> Program:
    """Forward, then backward with an all-reduce for each layer, then the optimizer, which waits for all."""
    group = Group("dp", tuple(range(ranks)))

    def program(rank: int, step: int) -> list[Op]:
        ops: list[Op] = [Work(200_000, "host"), *(Work(work_ns, name="forward") for _ in range(layers))]
        for layer in range(layers):
            ops.append(Work(work_ns * 2, name="backward"))
            ops.append(Talk("all-reduce", group, size, wait=not overlapped, tag=f"{layer}"))
        ops += [Join(f"{layer}") for layer in range(layers)]
        return [*ops, Work(work_ns // 2, name="adam")]

    return program


def sharded(ranks: int, *, layers: int = 3, work_ns: int = 2_000_000, size: int = 20_000_000) -> Program:
    """An all-gather before each layer, forward and backward; reduce-scatters that nobody waits for."""
    group = Group("fsdp", tuple(range(ranks)))

    def program(rank: int, step: int) -> list[Op]:
        ops: list[Op] = []
        for _ in range(layers):
            ops += [Talk("all-gather", group, size), Work(work_ns, name="forward")]
        for layer in range(layers):
            ops += [Talk("all-gather", group, size), Work(work_ns * 2, name="backward")]
            ops.append(Talk("reduce-scatter", group, size, wait=False, tag=f"{layer}"))
        ops += [Join(f"{layer}") for layer in range(layers)]
        return [*ops, Work(work_ns // 2, name="adam")]

    return program


def tensor_data(tensor: int, data: int, *, layers: int = 3, work_ns: int = 1_000_000) -> Program:
    """All-reduces within neighbours in every layer, and one of gradients among ranks that lie apart."""
    inner = [Group(f"tp{k}", tuple(range(k * tensor, (k + 1) * tensor))) for k in range(data)]
    outer = [Group(f"dp{k}", tuple(k + tensor * place for place in range(data))) for k in range(tensor)]

    def program(rank: int, step: int) -> list[Op]:
        near, far = inner[rank // tensor], outer[rank % tensor]
        ops: list[Op] = []
        for name in ("forward", "backward"):
            for _ in range(layers):
                ops += [Work(work_ns, name=name), Talk("all-reduce", near, 4_000_000)]
        ops += [Talk("all-reduce", far, 50_000_000, stream="9"), Work(work_ns // 2, name="adam")]
        return ops

    return program


def pipeline(
    stages: int, *, micro_batches: int = 4, schedule: str = "GPipe", data: int = 1, work_ns: int = 2_000_000
) -> Program:
    """Stages of a model, rank = stage · data + place; each sends activations on and gradients back."""
    chains = [Group(f"pp{k}", tuple(k + data * stage for stage in range(stages))) for k in range(data)]
    peers = [Group(f"dp{s}", tuple(range(s * data, (s + 1) * data))) for s in range(stages)]
    everyone = Group("world", tuple(range(stages * data)))

    def program(rank: int, step: int) -> list[Op]:
        stage, place = divmod(rank, data)
        chain = chains[place]

        def talk(to: int | None = None, of: int | None = None) -> Talk:
            # A send is not waited for, a receive is; each direction has a stream of its own.
            if to is not None:
                target = chain.ranks[to]
                return Talk("send-receive", chain, 8_000_000, f"s{target}", wait=False, target=target)
            source = chain.ranks[of or 0]
            return Talk("send-receive", chain, 8_000_000, f"r{source}", source=source)

        def forward() -> list[Op]:
            before = [talk(of=stage - 1)] if stage else []
            after = [talk(to=stage + 1)] if stage < stages - 1 else []
            return [*before, Work(work_ns, name="forward"), *after]

        def backward() -> list[Op]:
            before = [talk(of=stage + 1)] if stage < stages - 1 else []
            after = [talk(to=stage - 1)] if stage else []
            return [*before, Work(work_ns * 2, name="backward"), *after]

        ahead = micro_batches if schedule == "GPipe" else min(micro_batches, stages - stage)
        ops: list[Op] = [op for _ in range(ahead) for op in forward()]
        for batch in range(micro_batches):
            ops += backward()
            ops += forward() if batch + ahead < micro_batches else []
        if data > 1:
            ops.append(Talk("all-reduce", peers[stage], 30_000_000, "9"))
        ops.append(Talk("all-reduce", everyone, 4, "9"))
        return [*ops, Work(work_ns // 4, name="adam")]

    return program


def experts(ranks: int, loads: Sequence[int], *, layers: int = 2, work_ns: int = 1_000_000) -> Program:
    """All-to-alls that send tokens to experts and back; rank k's expert gets `loads[k]` elements of each."""
    group = Group("ep", tuple(range(ranks)))
    mean = sum(loads) / len(loads)

    def program(rank: int, step: int) -> list[Op]:
        ops: list[Op] = []
        out, back = tuple(loads), (loads[rank],) * ranks
        for _ in range(layers):
            ops += [
                Work(work_ns, name="attention"),
                Talk("all-to-all", group, 2 * max(sum(out), sum(back)), in_splits=out, out_splits=back),
                Work(round(work_ns * loads[rank] / mean), name="expert", shape=f"[{loads[rank]},1,1]"),
                Talk("all-to-all", group, 2 * max(sum(out), sum(back)), in_splits=back, out_splits=out),
            ]
        ops.append(Talk("all-reduce", group, 40_000_000))
        return [*ops, Work(work_ns // 4, name="adam")]

    return program
