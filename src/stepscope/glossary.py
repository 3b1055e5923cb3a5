"""What the words of a report mean, for `stepscope explain`, the HTML page and docs/reference/glossary.md."""

from __future__ import annotations

__all__ = ["WORDS"]

WORDS = {
    "step": (
        "One iteration of the program: in training, a batch through forward, backward and optimizer. A "
        "step is more than its mark: it ends when the device has finished all work that was launched in "
        "it. Without marks stepscope looks for what repeats, and says how it found the steps."
    ),
    "mark": (
        "The range that the profiler writes around a step (`ProfilerStep#3`), once for each call of "
        "`prof.step()`. Marks are the surest way to tell steps apart."
    ),
    "phase": (
        "What a part of a training step is for: data loading, forward, backward, recomputation, "
        "optimizer. Time that belongs to none of them is `other`."
    ),
    "launch": (
        "A call on the host that puts work into a queue of the device: a kernel, a copy or a fill. The "
        "device runs it later, in the order of its stream."
    ),
    "idle": (
        "The device runs nothing: no kernel, no copy, no fill. Every idle time has a cause, see starved."
    ),
    "starved": (
        "The device is idle and waits for the host to launch something. This time shrinks if the host "
        "gets faster or launches less often. Idle time for other reasons, such as a wait for another "
        "stream, is not starved."
    ),
    "drained": (
        "The queue of the device ran empty because the host waited for the device in a blocking call "
        "(`.item()`, `cudaStreamSynchronize`). Afterwards the device is starved until the host has "
        "launched new work. The column `drained_by` names the call."
    ),
    "unprofiled": (
        "Without the profiler. Recording slows the host, so a recorded step is often longer than a real "
        "one. The unprofiled step is an estimate of the real one, as a range: stepscope simulates the "
        "steps without the cost of recording. All gains are shares of the unprofiled step."
    ),
    "exposed": (
        "Copies or collectives that run while no kernel computes. They add to the step. Those that "
        "overlap with computing kernels are hidden and cost little."
    ),
    "bus bandwidth": (
        "How fast a collective uses each link, as nccl-tests compute it: its bytes over its time, times "
        "what its kind has to send for each byte: 2(n-1)/n for an all-reduce among n ranks, (n-1)/n for "
        "all-gather, reduce-scatter and all-to-all. So it can be compared with the peak of the link, "
        "whatever the kind. On one rank it includes the wait for others."
    ),
    "self": (
        "Time in which an operator or call was the innermost one of its thread: its total without what it "
        "called. Self times add up, totals do not."
    ),
    "user frame": (
        "The innermost Python function on the stack that is your code: not part of Python, torch or "
        "another installed package. If all code is that of a package, as in a server, the innermost "
        "function of the package. Needs a profile with `with_stack=True`."
    ),
    "library frame": (
        "The innermost Python function on the stack that is not part of Python or torch, if it is called by "
        "your code and belongs to a package: `modeling_gpt2.py: eager_attention_forward`. Needs a profile "
        "with `with_stack=True`."
    ),
    "call site": (
        "The place in the code from which something was called: the path of functions, ranges and "
        "operators around it."
    ),
    "replay": (
        "One launch of a captured CUDA graph. It runs all kernels of the graph without the host preparing "
        "each of them."
    ),
    "simulation": (
        "The recorded steps, played again with a change: without waits, with faster kernels, without the "
        "profiler. Durations stay, start times follow from what waits for what. `stepscope whatif` runs "
        "one."
    ),
    "gain": (
        "How much shorter the mean unprofiled step gets by a fix, as a range: the lower bound is what to "
        "expect at least, the upper bound at most. Gains of findings that overlap do not add up."
    ),
    "certainty": (
        "How sure a finding is. certain: measured in this profile. likely: follows from what is measured. "
        "possible: the profile cannot show whether the fix applies."
    ),
}
"""The words, each with its definition; a plain text with `code`."""
