"""What the name of a call says: whose code it is, and which phase of training begins with it.

Frames are named `file(line): function`, where the line is that of the function's definition. The profiler
takes the folders of `sys.path` off the front, so a file of an installed package reads `package/module.py` and
one of the user's `train.py` or `project/model.py`: packages are told from projects by their names.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.schema import DATALOADER_RANGE, OPTIMIZER_RANGE

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BACKWARD", "DATALOADER", "FORWARD", "GENERATED", "OPTIMIZER", "OTHER", "PHASES"]
__all__ += ["RECOMPUTATION", "is_library_frame", "is_module", "is_user_frame", "own_phases"]

PHASES = ("dataloader", "optimizer", "backward", "recomputation", "forward", "other")
"""In the order in which they claim an instant that several share."""
DATALOADER, OPTIMIZER, BACKWARD, RECOMPUTATION, FORWARD, OTHER = range(6)

_LIBRARIES = (
    "_pytest|accelerate|aiohttp|anyio|apex|attr|bitsandbytes|click|cloudpickle|composer|"
    "datasets|deepspeed|diffusers|einops|evaluate|fairscale|fastai|fastapi|filelock|fire|"
    "flash_attn|flashinfer|fsspec|functorch|huggingface_hub|hydra|ignite|ipykernel|IPython|jax|"
    "joblib|kornia|lightning|lightning_fabric|lightning_utilities|matplotlib|megatron|mlflow|"
    "mmcv|mmengine|monai|nemo|networkx|numpy|omegaconf|optuna|pandas|peft|PIL|pluggy|psutil|"
    "pyarrow|pydantic|pytest|pytorch_lightning|pytorch_metric_learning|ray|requests|safetensors|"
    "scipy|sglang|six|sklearn|spacy|starlette|stepscope|sympy|tensorboard|tensordict|timm|"
    "tokenizers|torch|torch_geometric|torchaudio|torchdata|torchmetrics|torchtitan|torchtune|"
    "torchvision|tqdm|transformer_engine|transformers|triton|trl|typer|typing_extensions|unsloth|"
    "uvicorn|uvloop|vllm|wandb|webdataset|xformers|zmq"
)
# A script of the user's may well have one of these names.
_STANDARD = "|".join(
    sorted(sys.stdlib_module_names - {"code", "profile", "test", "this", "trace", "tty", "turtle"})
)
GENERATED = r"/torchinductor_|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{51}\.py"
"""Where torch's compiler keeps what it wrote: its own folder, or another one with names of its making."""
_PYTHON = rf"/lib(64)?/python3[^/]*/|{GENERATED}|^({_STANDARD})(\.py|/)"
_NOT_THE_USERS = (
    rf"{_PYTHON}|(site|dist)-packages/|/pytorch/torch/|/stepscope/capture/"
    rf"|^<(?:[^i]|i[^p])|^({_LIBRARIES})(\.py|/)"
)
_NOT_EVEN_A_LIBRARYS = (
    rf"/torch/|{GENERATED}|^<|^(torch|triton|functorch|numpy|typing_extensions)(\.py|/)"
    r"|(^|/)stepscope/capture/"
    rf"|/lib(64)?/python3[^/]*/[^/]*$|^({_STANDARD})(\.py|/)"
)
_FRAME = r"^.+\(\d+\): .+$"

_CALLS_BACKWARD = r"(__init__|graph)\.py\(\d+\): (backward|grad|_engine_run_backward)"
_PHASE_NAMES = (
    (DATALOADER, DATALOADER_RANGE),
    (
        OPTIMIZER,
        rf"{OPTIMIZER_RANGE}|^torch/nn/utils/clip_grad\.py\(|^torch/optim/\w+\.py\(\d+\): step$",
    ),
    (
        BACKWARD,
        rf"^autograd::engine::evaluate_function: |^torch/autograd/{_CALLS_BACKWARD}$",
    ),
    (RECOMPUTATION, r"^torch/utils/checkpoint\.py\(\d+\): (recompute_fn|unpack_hook)$"),
)


def is_user_frame(names: pa.Array) -> pa.Array:
    """Whether a name is that of a frame outside torch, other libraries and Python itself."""
    return _is_frame_but(names, _NOT_THE_USERS)


def is_library_frame(names: pa.Array) -> pa.Array:
    """Whether a name is that of a frame outside torch and Python: in a server, all code is a library's."""
    return _is_frame_but(names, _NOT_EVEN_A_LIBRARYS)


def _is_frame_but(names: pa.Array, excluded: str) -> pa.Array:
    import pyarrow.compute as pc

    elsewhere = pc.match_substring_regex(names, excluded)
    return pc.and_(pc.match_substring_regex(names, _FRAME), pc.invert(elsewhere))


def is_module(names: pa.Array) -> pa.Array:
    """Whether a name is that of a call of an nn.Module."""
    import pyarrow.compute as pc

    return pc.starts_with(names, "nn.Module: ")


def own_phases(names: pa.Array) -> pa.Array:
    """The phase that a call of this name begins, as a place in `PHASES`; NULL for most."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.nulls(len(names), pa.int64())
    for phase, pattern in _PHASE_NAMES:
        found = pc.if_else(pc.match_substring_regex(names, pattern), pa.scalar(phase, pa.int64()), found)
    return found
