"""Python functions that the GPU waits for: what each does, as far as names tell, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stepscope import units
from stepscope.analyses.host_functions import ARROW
from stepscope.findings import Bounds, Location, Saving, locations_of
from stepscope.findings._waits import of_shares
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import Length
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.store.phases import GENERATED

if TYPE_CHECKING:
    from stepscope.analyses.host_functions import HostFunction
    from stepscope.findings.mean_step import MeanStep

__all__ = ["FAST_PROCESSOR", "HostWork", "Kind", "host_works", "saving_of"]

_LEAST = 0.8
"""What is gained of a function's time at least: in a thread, it takes some of the interpreter's time."""
_LEAST_CALL_NS = 20_000
"""Calls that take less are what eager code does between its operators."""
_OCCASIONAL = 0.2
"""A function is called now and then if the median step has no more than this part of the longest."""
_LONG_TITLE = 34


class Kind(NamedTuple):
    """What a function does, and how to keep the GPU from waiting for it."""

    pattern: str
    """Of the names of the function, and of those around and inside it."""
    fix: str
    called: str | None = None
    """How the program calls it, where that is another name than the function's own."""


_ASIDE = (
    "threading.Thread(target=work, args=(copy,)).start()    # beside the loop; or a process, for slow Python"
)
_IN_WORKERS = (
    line(
        Change.WORKERS,
        "loader = DataLoader(dataset, ..., num_workers=8, persistent_workers=True)    # do it there",
    ),
    "requests = pool.map(prepare, inputs)    # without a loader: prepare the next input meanwhile",
)
_TENSORS_ONCE = """\
frames = torch.from_numpy(np.stack(frames)).cuda()    # once: what comes again, as uint8 where it is that
batch = frames[places].float() / 255    # then choose and convert on the GPU"""
FAST_PROCESSOR = """\
processor = AutoImageProcessor.from_pretrained(name, use_fast=True)    # torchvision instead of NumPy
inputs = processor(images, device="cuda", return_tensors="pt")    # with use_fast: on the GPU"""
KINDS = (
    Kind(
        r"^Python GC$",
        """\
gc.freeze()    # after start-up: what lives on is not searched again
gc.disable()    # and gc.collect() every thousand steps""",
        "Python's garbage collector",
    ),
    Kind(
        r"^<built-in function collect>$",
        "if step % 1000 == 0: gc.collect()    # or not at all: objects are freed without it",
        "gc.collect()",
    ),
    Kind(
        r"^torch/serialization\.py\(\d+\): save$",
        fix_of(
            line(
                Change.SAVE_LESS,
                """\
torch.distributed.checkpoint.async_save(state, checkpoint_id=path)    # copies, then writes in a thread
copy = {name: t.to("cpu", copy=True) for name, t in state.items()}    # or save a copy in a thread
threading.Thread(target=torch.save, args=(copy, path)).start()""",
            )
        ),
        "torch.save()",
    ),
    Kind(
        r"^torch/distributed/checkpoint/|^safetensors/\w+\.py\(\d+\): save"
        r"|: (_?save_checkpoint|save_pretrained|save_model|save_state|_save)$",
        fix_of(
            line(
                Change.SAVE_LESS,
                """\
torch.distributed.checkpoint.async_save(state, checkpoint_id=path)    # copies, then writes in a thread
# or save less often""",
            )
        ),
    ),
    Kind(r"^<built-in function sleep>$", "# take the sleep out of the loop", "time.sleep()"),
    Kind(
        r"^copy\.py\(\d+\): _?(deep)?copy",
        "# copy what changes, not the whole; tensors with t.clone(), on the GPU",
        "copy.deepcopy()",
    ),
    Kind(r"^subprocess\.py\(", "# start it once before the loop, or don't wait for it", "subprocess"),
    Kind(
        r"^(requests|urllib3|httpx|httpcore|http|aiohttp|huggingface_hub|boto3|botocore|s3fs|gcsfs)/",
        "# fetch before the loop, or in DataLoader workers; keep a copy on a local disk",
    ),
    Kind(
        r"^(wandb|mlflow|tensorboard|tensorboardX|comet_ml|neptune|clearml|aim|logging|loguru|rich|tqdm)/"
        r"|^torch/utils/tensorboard/|^(logging|csv)\.py\(|^json/|^<built-in function print>"
        r"|^<built-in method (write|flush|writerow) of _",
        fix_of(
            line(
                Change.LOG_LESS,
                """\
if step % 100 == 0: log(records)    # once in many steps
records.append(loss.detach())    # keep tensors; format and write them after the loop, or in a thread""",
            )
        ),
    ),
    Kind(
        r"^(matplotlib|seaborn|plotly|bokeh)/",
        "if step % 1000 == 0: plot(records)    # or write the figures down, and plot in another process",
    ),
    Kind(
        r"^(sklearn|torchmetrics|evaluate|sacrebleu|rouge_score|pycocotools|nltk)/",
        """\
metric.update(scores, labels)    # on the GPU (torchmetrics), and compute() at the end of the epoch
if step % 100 == 0: report(metric)""",
    ),
    Kind(
        r"^transformers/.*(image_processing|image_transforms|feature_extraction|video_processing)",
        fix_of(FAST_PROCESSOR, *_IN_WORKERS),
    ),
    Kind(
        r"^(PIL|cv2|torchvision|albumentations|skimage|imageio|imgaug|kornia|av|decord)[/.]|^scipy/ndimage/"
        r"|ImagingCore",
        fix_of(
            *_IN_WORKERS,
            "images = v2.functional.resize(images.cuda(), size)    # torchvision.transforms.v2, on the GPU",
        ),
    ),
    Kind(
        r"^(librosa|torchaudio|soundfile|audioread|resampy|noisereduce)[/.]|^scipy/signal/",
        fix_of(
            *_IN_WORKERS,
            "spectrum = torchaudio.transforms.MelSpectrogram(...).cuda()(waves)    # a batch on the GPU",
        ),
    ),
    Kind(
        r"^(tokenizers|sentencepiece|tiktoken|spacy)[/.]|^transformers/.*tokenization|encode_batch",
        fix_of(
            "dataset = dataset.map(tokenize, batched=True, num_proc=8)    # once, before training",
            'inputs = tokenizer(texts, padding="longest")    # not to max_length: padding is computed, too',
            *_IN_WORKERS,
        ),
    ),
    Kind(
        r"^<built-in method (read|readinto|readline) of _|^<built-in function (open|load|loads)>$"
        r"|^torch/serialization\.py\(\d+\): load$|^numpy/lib/.*npyio|^(h5py|zarr|lmdb|pickle)[/.]",
        fix_of(*_IN_WORKERS),
    ),
    Kind(
        r"^<built-in method (tensor|as_tensor) of type",
        fix_of(_TENSORS_ONCE, *_IN_WORKERS),
        "torch.tensor()",
    ),
    Kind(
        r"^<built-in function (array|asarray|ascontiguousarray|concatenate)>",
        fix_of(_TENSORS_ONCE, *_IN_WORKERS),
        "numpy.array()",
    ),
    Kind(
        r"^(pandas|polars|pyarrow|numpy|scipy|numba)/",
        fix_of(*_IN_WORKERS, "# or write it with tensors, on the GPU"),
    ),
)
"""The first that matches counts."""
_PLAIN = Kind(
    "",
    f"""\
if step % 100 == 0: work()    # not in every step, or once before the loop
{_ASIDE}""",
)
# What waits for other threads, processes and machines does no work of its own.
_WAITS = late_pattern(
    r"^(threading|queue|selectors|socket|asyncio|concurrent|multiprocessing)(\.py|/)"
    r"|^<built-in (method|function) (acquire|poll|select|recv\w*|wait\w*|run_backward)\b"
)
_NAMELESS = late_pattern(rf"^(<|torch/|triton/|nn\.Module|.*(?:{GENERATED}))")
_FRAME = late_pattern(r"(.+)\(\d+\): (.+)")
_BUILT_IN = late_pattern(r"<built-in (?:method|function) (\w+)")


@dataclass(frozen=True, slots=True)
class HostWork:
    """A function that the GPU waits for."""

    row: HostFunction
    kind: Kind

    @property
    def names(self) -> list[str]:
        """The functions from the outer to the inner one."""
        return self.row.path.split(ARROW)

    @property
    def called(self) -> str:
        """What it is called, with its library: `torch.save()`, `zoom_shift() of scipy`."""
        if self.kind.called:
            return self.kind.called
        of = f" of {self.library}" if self.library else ""
        return f"{_short(self.row.function)}{of}"

    @property
    def library(self) -> str | None:
        """The package that it belongs to; None for the user's own."""
        named = next((name for name in reversed(self.names) if _FRAME.fullmatch(name)), None)
        if named is None or named == self.row.user_frame:
            return None
        file = re.split(r"(?:site|dist)-packages/", named)[-1].partition("(")[0]
        return file.partition("/")[0] if "/" in file.lstrip("/") else file.removesuffix(".py")

    @property
    def title(self) -> str:
        """What the GPU waits for, short enough for a title."""
        for one in (self.called, _short(self.row.function), _short(self.row.outer)):
            if len(one) <= _LONG_TITLE:
                return one
        return "a Python function"

    def within(self, package: str) -> bool:
        """Whether it is called by functions of a package, or is one."""
        return any(name.startswith(f"{package}/") for name in self.names)

    def occasional(self, mean_step: MeanStep) -> bool:
        """Whether it is called in some steps only, and makes these long."""
        row = self.row
        if row.long_steps is None or row.longest_step_ns is None or row.usual_step_ns is None:
            return False
        return row.long_steps < mean_step.steps and row.usual_step_ns <= _OCCASIONAL * row.longest_step_ns

    def steady(self, mean_step: MeanStep) -> float:
        """The part of its time that is left if each step is as the median one: a call may be interrupted."""
        usual_ns, whole_ns = self.row.usual_step_ns, self.row.outer_host_ns
        if usual_ns is None or not whole_ns or self.occasional(mean_step):
            return 1.0
        return min(1.0, usual_ns * mean_step.steps / whole_ns)

    def story(self, mean_step: MeanStep) -> str:
        """For what the GPU waits how long in a step, as a sentence."""
        row = self.row

        def took(ns: float) -> str:
            return units.duration(mean_step.per_step(ns))

        share = units.share(mean_step.share(mean_step.per_step(row.outer_idle_ns)))
        outer = self.called if self.kind.called and row.function == row.outer else _short(row.outer)
        text = f"The GPU waits {took(row.outer_idle_ns)} of a step ({share}) for `{outer}`"
        if self.kind.called:
            text += f", which calls `{self.called}`" if row.function != row.outer else ""
        elif row.function != row.outer:
            text += f", of it {took(row.idle_ns)} for `{_short(row.function)}`"
            text += f" of {self.library}" if self.library else ""
        if row.part and row.part_idle_ns:
            text += f" (`{_short(row.part)}` {took(row.part_idle_ns)})"
        return f"{text}."

    def locations(self, mean_step: MeanStep) -> tuple[Location, ...]:
        """The function, what calls it in its library, and the user's line."""
        row = self.row
        frames = [name for name in reversed(self.names) if _FRAME.fullmatch(name)]
        known = [name for name in frames if self.kind.called and re.search(self.kind.pattern, name)]
        inner = next(iter([*known, *frames]), None)

        def took(ns: float) -> str:
            return f"the GPU waits {units.duration(mean_step.per_step(ns))} a step"

        notes = {
            row.outer: took(row.outer_idle_ns),
            inner: f"as {self.called}" if known else took(row.idle_ns),
        }
        return locations_of(
            [
                (row.user_frame, notes.get(row.user_frame, "calls it")),
                *((name, note) for name, note in notes.items()),
            ]
        )


def _short(name: str) -> str:
    """A function without its file."""
    found = _FRAME.fullmatch(name)
    if found:
        return f"{found[2]}()"
    found = _BUILT_IN.match(name)
    return f"{found[1]}()" if found else name


def host_works(rows: Iterable[HostFunction]) -> list[HostWork]:
    """The functions that do work of their own and can be named, most expensive first."""
    found = []
    for row in rows:
        names = [*row.path.split(ARROW), row.part or ""]
        kind = next((kind for kind in KINDS if any(re.search(kind.pattern, name) for name in names)), None)
        if kind is None and (
            _WAITS.search(row.function) or all(_NAMELESS.match(name) for name in names if name)
        ):
            continue
        if row.outer_idle_ns >= _LEAST_CALL_NS * row.outer_calls:
            found.append(HostWork(row, kind or _PLAIN))
    return sorted(found, key=lambda work: -work.row.outer_idle_ns)


def saving_of(mean_step: MeanStep, works: Iterable[HostWork]) -> Saving:
    """What a step saves without these: the GPU's waiting for them, less what recording them cost."""
    given = list(works)
    rows = [work.row for work in given]
    whole = sum(row.outer_idle_ns for row in rows)
    steady = sum(work.steady(mean_step) * work.row.outer_idle_ns for work in given) / whole if whole else 1.0
    shares: list[Bounds] = []
    # A step is short without the profiler if recording it cost much, and so did recording these.
    recorded = {Length.SHORT: "recording_high_ns", Length.LONG: "recording_low_ns"}
    for length, column in recorded.items():
        own = max(0.0, mean_step.per_step(whole - sum(getattr(row, column) for row in rows)))
        step, starved = mean_step.unprofiled_ns[length] or 1.0, mean_step.unprofiled_starved_ns[length]
        shares.append((min(_LEAST * steady * own, starved) / step, min(own, starved) / step))
    return of_shares(mean_step, min(low for low, _ in shares), max(high for _, high in shares))
