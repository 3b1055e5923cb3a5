# ruff: noqa: E501  # what is typed is one line
"""How frameworks change what a loop of one's own changes in a line, and what makers of devices add to it.

An empty text means that the framework does it already or has no way to change it: the line is left out.
Only flags that current versions have; each was looked up in the framework's documentation.
"""

from __future__ import annotations

from enum import StrEnum

from stepscope.findings.program import Framework, Vendor

__all__ = ["EXTRAS", "INFERENCE_ONLY", "NEEDS_GRAPHS", "TRAINING_ONLY", "VALUES", "VARIANTS", "Change"]


class Change(StrEnum):
    """What a line of a fix changes."""

    AUTOCAST = "16 bits by autocast"
    WEIGHTS = "16-bit weights"
    TF32 = "TF32"
    EIGHT_BITS = "8-bit products"
    EIGHT_BITS_TRAINING = "8-bit products in training"
    COMPILE = "compiling the model"
    GRAPHS = "compiling with graphs"
    AUTOTUNE = "tuned kernels"
    DYNAMIC_SHAPES = "compiling for changing shapes"
    MARK_STEP = "the start of a step with graphs"
    BATCH = "more samples at once"
    ONE_CALL = "one call for many inputs"
    SMALLER_BATCH = "fewer samples at once"
    ACCUMULATION = "fewer micro-steps"
    WORKERS = "workers of the loader"
    PINNED = "pinned memory"
    PREFETCH = "copies ahead of the step"
    OPTIMIZER = "a fused optimizer"
    ZERO_GRAD = "gradients set to None"
    ATTENTION = "fused attention"
    RECOMPUTE_LESS = "no recomputation"
    RECOMPUTE = "recomputation"
    NO_SYNC = "accumulation without all-reduces"
    BUCKETS = "buckets of DDP"
    BROADCASTS = "buffers sent in forward"
    SHARDS = "shards gathered ahead"
    FEWER_RANKS = "fewer ranks for a model"
    LINKS = "links between devices"
    PROCESSES = "a process for each GPU"
    BACKEND = "backend of the process group"
    ANOMALY = "anomaly detection"
    READ_LOSS = "reading the loss"
    METRICS = "metrics on the device"
    SCALER = "no gradient scaler"
    CLIPPING = "clipping without a read"
    LOG_LESS = "logging less often"
    SAVE_LESS = "evaluating and saving less often"
    KEEP_CACHE = "no emptying of the cache"
    LOSS = "a fused loss"
    MODEL_SIZES = "sizes of the model"
    CHANNELS_LAST = "channels last"
    STATIC_CACHE = "a cache of fixed size"
    DECODE_GRAPHS = "decoding with graphs"
    MORE_REQUESTS = "more requests at once"
    CAPTURE_SIZES = "sizes of captured graphs"
    SCHEDULE_AHEAD = "scheduling ahead"
    SAMPLER = "a fused sampler"
    CUSTOM_ALL_REDUCE = "all-reduce for few bytes"
    FUSED_ALL_REDUCE = "all-reduce fused with what follows"
    LAST_BATCH = "batches of one size"
    FULL_GRAPH = "one graph for the model"
    ALLOCATOR = "the allocator's segments"
    MACHINE = "the machine"
    COLLECTOR = "the garbage collector"
    TUNED_CONVOLUTIONS = "tuned convolutions"


TRAINING_ONLY = frozenset(
    {
        Change.AUTOCAST,
        Change.OPTIMIZER,
        Change.ZERO_GRAD,
        Change.NO_SYNC,
        Change.ACCUMULATION,
        Change.RECOMPUTE,
        Change.RECOMPUTE_LESS,
        Change.SCALER,
        Change.CLIPPING,
        Change.READ_LOSS,
        Change.METRICS,
        Change.ANOMALY,
        Change.LOSS,
        Change.MODEL_SIZES,
        Change.BUCKETS,
        Change.EIGHT_BITS_TRAINING,
    }
)
INFERENCE_ONLY = frozenset({Change.WEIGHTS, Change.EIGHT_BITS, Change.STATIC_CACHE, Change.DECODE_GRAPHS})
NEEDS_GRAPHS = frozenset({Change.GRAPHS, Change.MARK_STEP, Change.DECODE_GRAPHS, Change.CAPTURE_SIZES})

VALUES = {
    "dtype": "bfloat16",
    "short": "bf16",
    "lightning": "bf16-mixed",
    "workers": "8",
    "why": "if memory allows",
    "megabytes": "50",
    "devices": "8",
    "optimizer": "AdamW",
    "requests": "256",
    "sizes": "1 2 4 8",
}
"""What stands in a variant where the rule does not know better."""

_TRAINER = {
    Change.COLLECTOR: "gc.disable()    # before trainer.train(); a TrainerCallback calls gc.collect() in on_step_end "
    "every 100 steps",
    Change.AUTOCAST: "TrainingArguments({short}=True)    # mixed precision; weights stay fp32",
    Change.TF32: "TrainingArguments(tf32=True)    # TF32 for matrix products; weights stay fp32",
    Change.COMPILE: "TrainingArguments(torch_compile=True)    # fewer kernels, less Python",
    Change.GRAPHS: 'TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")    # CUDA graphs',
    Change.MARK_STEP: "",
    Change.AUTOTUNE: "TrainingArguments(torch_compile=True, "
    'torch_compile_mode="max-autotune-no-cudagraphs")    # other tile sizes',
    Change.DYNAMIC_SHAPES: "TrainingArguments(torch_compile=True)    # and pad_to_multiple_of=64 in the data "
    "collator: few shapes",
    Change.BATCH: "TrainingArguments(per_device_train_batch_size=2 * batch_size)    # {why}",
    Change.SMALLER_BATCH: "TrainingArguments(per_device_train_batch_size=batch_size // 2, "
    "gradient_accumulation_steps=2 * steps)",
    Change.ACCUMULATION: "TrainingArguments(gradient_accumulation_steps=steps // 2)    # with twice the batch: "
    "the same result",
    Change.WORKERS: "TrainingArguments(dataloader_num_workers={workers}, dataloader_prefetch_factor=4, "
    "dataloader_persistent_workers=True)",
    Change.PINNED: "TrainingArguments(dataloader_pin_memory=True)    # the default; tensors that you fill "
    "yourself: torch.empty(shape, pin_memory=True), once",
    Change.PREFETCH: 'TrainingArguments(accelerator_config={{"non_blocking": True}}, dataloader_pin_memory=True)',
    Change.OPTIMIZER: 'TrainingArguments(optim="adamw_torch_fused")',
    Change.ZERO_GRAD: "",
    Change.RECOMPUTE_LESS: "TrainingArguments(gradient_checkpointing=False)",
    Change.RECOMPUTE: "TrainingArguments(gradient_checkpointing=True)    # computes activations again",
    Change.NO_SYNC: "TrainingArguments(gradient_accumulation_steps=steps)    # the Trainer then reduces only "
    "in the last micro-step",
    Change.BUCKETS: "TrainingArguments(ddp_bucket_cap_mb={megabytes})",
    Change.BROADCASTS: "TrainingArguments(ddp_broadcast_buffers=False)",
    Change.PROCESSES: "torchrun --nproc-per-node {devices} train.py    # the Trainer then uses "
    "DistributedDataParallel",
    Change.BACKEND: 'TrainingArguments(ddp_backend="nccl")',
    Change.ANOMALY: 'TrainingArguments(debug="")    # and no torch.autograd.set_detect_anomaly(True)',
    Change.READ_LOSS: "TrainingArguments(logging_nan_inf_filter=False, logging_steps=100)    # the filter reads "
    "the loss in every step",
    Change.SCALER: "TrainingArguments(bf16=True)    # instead of fp16=True: needs no scaler, which reads once a "
    "step",
    Change.CLIPPING: "",
    Change.LOG_LESS: "TrainingArguments(logging_steps=100)    # callbacks and metrics once in many steps",
    Change.SAVE_LESS: "TrainingArguments(save_steps=1000, eval_steps=1000)    # saves and evaluates less often",
    Change.KEEP_CACHE: "TrainingArguments(torch_empty_cache_steps=None)    # the default: keeps memory for the "
    "next step",
    Change.LOSS: "TrainingArguments(use_liger_kernel=True)    # fuses the head and the loss, where the model is "
    "known",
    Change.LAST_BATCH: "TrainingArguments(dataloader_drop_last=True)    # if the last batch is smaller",
}
_LIGHTNING = {
    Change.COLLECTOR: "gc.disable()    # before trainer.fit(); call gc.collect() in on_train_batch_end every 100 batches",
    Change.TUNED_CONVOLUTIONS: "Trainer(benchmark=True)    # cuDNN tries each shape once",
    Change.AUTOCAST: 'Trainer(precision="{lightning}")    # mixed precision; weights stay fp32',
    Change.BATCH: "# in train_dataloader(): DataLoader(..., batch_size=2 * batch_size)    # {why}",
    Change.SMALLER_BATCH: "Trainer(accumulate_grad_batches=2 * steps)    # with half the batch_size: the same "
    "gradients, fewer activations",
    Change.ACCUMULATION: "Trainer(accumulate_grad_batches=steps // 2)    # with twice the batch: the same result",
    Change.WORKERS: "# in train_dataloader(): DataLoader(..., num_workers={workers}, prefetch_factor=4, "
    "persistent_workers=True, pin_memory=True)",
    Change.PINNED: "# in train_dataloader(): DataLoader(..., pin_memory=True)    # Lightning then copies without "
    "waiting",
    Change.OPTIMIZER: "# in configure_optimizers(): torch.optim.{optimizer}(self.parameters(), lr=lr, fused=True)",
    Change.ZERO_GRAD: "# in optimizer_zero_grad(): optimizer.zero_grad(set_to_none=True)    # the default",
    Change.NO_SYNC: "Trainer(accumulate_grad_batches=steps)    # Lightning then reduces only in the last "
    "micro-step",
    Change.BUCKETS: "Trainer(strategy=DDPStrategy(bucket_cap_mb={megabytes}, gradient_as_bucket_view=True))",
    Change.BROADCASTS: "Trainer(strategy=DDPStrategy(broadcast_buffers=False))",
    Change.PROCESSES: 'Trainer(devices={devices}, strategy="ddp")    # one process for each GPU',
    Change.BACKEND: 'Trainer(strategy=DDPStrategy(process_group_backend="nccl"))',
    Change.ANOMALY: "Trainer(detect_anomaly=False)    # the default",
    Change.READ_LOSS: 'self.log("loss", loss, on_step=False, on_epoch=True)    # no loss.item(), no prog_bar=True: '
    "the bar reads it",
    Change.SCALER: 'Trainer(precision="bf16-mixed")    # instead of "16-mixed": needs no scaler, which reads once '
    "a step",
    Change.LOG_LESS: "Trainer(log_every_n_steps=100)    # callbacks and metrics once in many steps",
    Change.SAVE_LESS: "ModelCheckpoint(every_n_train_steps=1000); Trainer(val_check_interval=1000)",
}
_DEEPSPEED = {
    Change.AUTOCAST: '"{short}": {{"enabled": true}}    # in the DeepSpeed config',
    Change.COMPILE: "engine.compile()    # the engine that deepspeed.initialize returned",
    Change.BATCH: '"train_micro_batch_size_per_gpu": 2 * batch_size    # in the DeepSpeed config; {why}',
    Change.SMALLER_BATCH: '"train_micro_batch_size_per_gpu": batch_size // 2, "gradient_accumulation_steps": 2 * '
    "steps    # in the DeepSpeed config",
    Change.ACCUMULATION: '"gradient_accumulation_steps": steps // 2    # with twice the micro batch: the same '
    "result",
    Change.OPTIMIZER: '"optimizer": {{"type": "AdamW"}}    # in the DeepSpeed config: its fused Adam',
    Change.ZERO_GRAD: "",
    Change.SHARDS: '"zero_optimization": {{"overlap_comm": true, "stage3_prefetch_bucket_size": 5e8}}    # in the DeepSpeed config',
    Change.NO_SYNC: '"gradient_accumulation_steps": steps    # in the DeepSpeed config: one reduction for all',
    Change.BUCKETS: '"zero_optimization": {{"overlap_comm": true, "reduce_bucket_size": 5e8}}    # in the '
    "DeepSpeed config",
    Change.SCALER: '"bf16": {{"enabled": true}}    # instead of fp16, whose scaler reads once a step',
}
_ACCELERATE = {
    Change.AUTOCAST: 'accelerator = Accelerator(mixed_precision="{short}")',
    Change.NO_SYNC: "with accelerator.accumulate(model):    # Accelerator(gradient_accumulation_steps=steps); "
    "forward and backward inside",
    Change.BUCKETS: "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb={megabytes}, "
    "gradient_as_bucket_view=True)])",
    Change.BROADCASTS: "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)])",
    Change.PROCESSES: "accelerate launch --num_processes {devices} train.py    # one process for each GPU",
    Change.PREFETCH: "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))    # and "
    "pin_memory=True in the DataLoader",
    Change.SCALER: 'Accelerator(mixed_precision="bf16")    # instead of "fp16": needs no scaler, which reads once '
    "a step",
}
_MEGATRON = {
    Change.COLLECTOR: "--manual-gc --manual-gc-interval 100",
    Change.AUTOCAST: "--bf16",
    Change.GRAPHS: "--cuda-graph-impl local    # CUDA graphs of the layers",
    Change.MARK_STEP: "",
    Change.BATCH: "--micro-batch-size: twice as large    # {why}",
    Change.SMALLER_BATCH: "--micro-batch-size: half as large    # the same global batch",
    Change.ACCUMULATION: "",
    Change.WORKERS: "--num-workers {workers}",
    Change.ATTENTION: "--attention-backend flash",
    Change.RECOMPUTE_LESS: "# without --recompute-granularity, or with selective",
    Change.RECOMPUTE: "--recompute-granularity selective",
    Change.BUCKETS: "--overlap-grad-reduce --overlap-param-gather    # with --use-distributed-optimizer",
    Change.NO_SYNC: "",
    Change.OPTIMIZER: "",
    Change.ZERO_GRAD: "",
    Change.LOSS: "--cross-entropy-loss-fusion",
    Change.LOG_LESS: "--log-interval 100",
    Change.SAVE_LESS: "--save-interval 1000 --async-save",
    Change.EIGHT_BITS_TRAINING: "--fp8-format hybrid    # needs Transformer Engine",
}
_TRANSFORMERS = {
    Change.ATTENTION: 'AutoModel.from_pretrained(name, attn_implementation="sdpa")    # or "flash_attention_2", '
    "in 16 bits",
    Change.WEIGHTS: "AutoModel.from_pretrained(name, dtype=torch.{dtype})    # before 4.56: torch_dtype",
    Change.STATIC_CACHE: 'model.generate(..., cache_implementation="static")    # writes in place, and compiles',
    Change.DECODE_GRAPHS: 'model.generate(..., cache_implementation="static")    # a cache of fixed size; '
    "generate() then compiles the model",
    Change.RECOMPUTE_LESS: "model.gradient_checkpointing_disable()",
    Change.RECOMPUTE: "model.gradient_checkpointing_enable()    # computes activations again",
}
_PIPELINE = {
    Change.ATTENTION: 'pipeline(task, model=name, model_kwargs={{"attn_implementation": "sdpa"}})',
    Change.WEIGHTS: "pipeline(task, model=name, dtype=torch.{dtype})    # before 4.56: torch_dtype",
    Change.BATCH: "pipe(inputs, batch_size=2 * batch_size)    # {why}",
    Change.ONE_CALL: "pipe(inputs, batch_size=32)    # a list or a generator: one call of the model for 32 inputs",
    Change.WORKERS: "pipe(inputs, num_workers={workers})    # the pipeline makes its own DataLoader",
    Change.COMPILE: "pipe.model = torch.compile(pipe.model)    # fewer kernels, less Python",
    Change.GRAPHS: 'pipe.model = torch.compile(pipe.model, mode="reduce-overhead")    # replays CUDA graphs',
    Change.AUTOTUNE: 'pipe.model = torch.compile(pipe.model, mode="max-autotune-no-cudagraphs")',
    Change.PINNED: "",
}
_DIFFUSERS = {
    Change.WEIGHTS: "DiffusionPipeline.from_pretrained(name, torch_dtype=torch.{dtype})",
    Change.COMPILE: "pipe.transformer.compile_repeated_blocks(fullgraph=True)    # or pipe.unet; one region for "
    "all blocks",
    Change.GRAPHS: 'pipe.transformer = torch.compile(pipe.transformer, mode="reduce-overhead", fullgraph=True)    '
    "# or pipe.unet; replays CUDA graphs",
    Change.AUTOTUNE: 'pipe.transformer = torch.compile(pipe.transformer, mode="max-autotune-no-cudagraphs")    # or '
    "pipe.unet",
    Change.FULL_GRAPH: "pipe.transformer.compile_repeated_blocks(fullgraph=True)    # raises an error at a graph "
    "break",
    Change.BATCH: "pipe(prompts, num_images_per_prompt=2 * number)    # {why}",
    Change.ATTENTION: 'pipe.transformer.set_attention_backend("native")    # scaled_dot_product_attention; or '
    '"flash"',
    Change.CHANNELS_LAST: "pipe.vae.to(memory_format=torch.channels_last)    # and pipe.unet, where there is one",
}
_TIMM = {
    Change.ATTENTION: "TIMM_FUSED_ATTN=1 python train.py    # or timm.layers.set_fused_attn(True), before the "
    "model is created",
}
_VLLM = {
    Change.AUTOCAST: "vllm serve MODEL --dtype {dtype}",
    Change.WEIGHTS: "vllm serve MODEL --dtype {dtype}",
    Change.EIGHT_BITS: "vllm serve MODEL --quantization fp8",
    Change.COMPILE: "vllm serve MODEL    # without --enforce-eager, or LLM(..., enforce_eager=False)",
    Change.GRAPHS: "vllm serve MODEL --compilation-config "
    '\'{{"cudagraph_mode": "FULL_AND_PIECEWISE"}}\'    # and no --enforce-eager',
    Change.BATCH: "vllm serve MODEL --max-num-seqs 512 --max-num-batched-tokens 16384    # more work in an "
    "iteration; needs enough requests",
    Change.MORE_REQUESTS: "vllm serve MODEL --max-num-seqs 512    # more requests at once: the weights are read "
    "once for all of them",
    Change.SMALLER_BATCH: "vllm serve MODEL --max-num-seqs 128 --gpu-memory-utilization 0.85",
    Change.ATTENTION: "vllm serve MODEL    # without VLLM_ATTENTION_BACKEND or --attention-backend: it chooses "
    "the fastest",
    Change.DECODE_GRAPHS: "vllm serve MODEL    # without --enforce-eager, or LLM(..., enforce_eager=False)",
    Change.CAPTURE_SIZES: "vllm serve MODEL --cudagraph-capture-sizes {sizes}    # one just above each usual "
    "number of requests",
    Change.SCHEDULE_AHEAD: "vllm serve MODEL --async-scheduling    # default since 0.14; no "
    "--no-async-scheduling",
    Change.SAMPLER: "VLLM_USE_FLASHINFER_SAMPLER=1 vllm serve MODEL    # with flashinfer installed",
    Change.CUSTOM_ALL_REDUCE: "vllm serve MODEL    # without --disable-custom-all-reduce",
    Change.FEWER_RANKS: "vllm serve MODEL --tensor-parallel-size 2 --data-parallel-size 4    # more copies, fewer GPUs for each",
    Change.LINKS: "NCCL_DEBUG=INFO vllm serve MODEL 2>&1 | grep ' via '    # P2P is right, SHM and NET are slow",
    Change.FUSED_ALL_REDUCE: '--compilation-config \'{{"pass_config": {{"fuse_allreduce_rms": true}}}}\'',
}
_SGLANG = {
    Change.AUTOCAST: "python -m sglang.launch_server ... --dtype {dtype}",
    Change.WEIGHTS: "python -m sglang.launch_server ... --dtype {dtype}",
    Change.EIGHT_BITS: "python -m sglang.launch_server ... --quantization fp8",
    Change.COMPILE: "python -m sglang.launch_server ... --enable-torch-compile    # and no --disable-cuda-graph",
    Change.GRAPHS: "python -m sglang.launch_server ... --cuda-graph-max-bs {requests}  # no --disable-cuda-graph",
    Change.BATCH: "python -m sglang.launch_server ... --max-running-requests 512 --chunked-prefill-size 16384    "
    "# more work in an iteration; needs enough requests",
    Change.MORE_REQUESTS: "python -m sglang.launch_server ... --max-running-requests 512    # more requests at "
    "once: the weights are read once for all of them",
    Change.SMALLER_BATCH: "python -m sglang.launch_server ... --max-running-requests 128 --mem-fraction-static 0.8",
    Change.ATTENTION: "python -m sglang.launch_server ...    # without --attention-backend: it chooses by device "
    "and model",
    Change.DECODE_GRAPHS: "python -m sglang.launch_server ... --cuda-graph-max-bs {requests}  # no "
    "--disable-cuda-graph",
    Change.CAPTURE_SIZES: "python -m sglang.launch_server ... --cuda-graph-bs {sizes}    # one just above each "
    "usual number of requests",
    Change.SCHEDULE_AHEAD: "python -m sglang.launch_server ...    # without --disable-overlap-schedule",
    Change.SAMPLER: "python -m sglang.launch_server ... --sampling-backend flashinfer",
    Change.CUSTOM_ALL_REDUCE: "python -m sglang.launch_server ... --enable-symm-mem    # and no "
    "--disable-custom-all-reduce",
    Change.FEWER_RANKS: "python -m sglang.launch_server ... --tp 2 --dp 4    # more copies, fewer GPUs for each",
    Change.LINKS: "NCCL_DEBUG=INFO python -m sglang.launch_server ... 2>&1 | grep ' via '    # P2P is right",
    Change.FUSED_ALL_REDUCE: "--flashinfer-allreduce-fusion-backend auto    # older: "
    "--enable-flashinfer-allreduce-fusion",
}
_TENSORRT_LLM = {
    Change.DECODE_GRAPHS: "LLM(model, cuda_graph_config=CudaGraphConfig(enable_padding=True))",
    Change.MORE_REQUESTS: "LLM(model, max_batch_size=512)    # more requests at once",
    Change.BATCH: "LLM(model, max_batch_size=512, max_num_tokens=16384)    # needs enough requests",
}

VARIANTS: dict[tuple[Change, Framework], str] = {
    (change, framework): text
    for framework, ways in (
        (Framework.VLLM, _VLLM),
        (Framework.SGLANG, _SGLANG),
        (Framework.TENSORRT_LLM, _TENSORRT_LLM),
        (Framework.HF_TRAINER, _TRAINER),
        (Framework.LIGHTNING, _LIGHTNING),
        (Framework.MEGATRON, _MEGATRON),
        (Framework.DEEPSPEED, _DEEPSPEED),
        (Framework.ACCELERATE, _ACCELERATE),
        (Framework.DIFFUSERS, _DIFFUSERS),
        (Framework.HF_PIPELINE, _PIPELINE),
        (Framework.TRANSFORMERS, _TRANSFORMERS),
        (Framework.TIMM, _TIMM),
    )
    for change, text in ways.items()
}
"""What a framework has in place of a line."""

_TUNED = (
    "PYTORCH_TUNABLEOP_ENABLED=1 TORCH_BLAS_PREFER_HIPBLASLT=1 python train.py    # tries all kernels of "
    "hipBLASLt and rocBLAS once for each shape, and keeps the fastest"
)
_AITER = {
    Framework.VLLM: "VLLM_ROCM_USE_AITER=1 vllm serve MODEL    # kernels of AITER for attention, experts and products",
    Framework.SGLANG: "SGLANG_USE_AITER=1 python -m sglang.launch_server ...    # kernels of AITER",
}
_PRODUCTS = (Change.AUTOCAST, Change.EIGHT_BITS, Change.AUTOTUNE)

EXTRAS: dict[tuple[Change, Vendor, Framework | None], str] = {
    **{(change, Vendor.AMD, None): _TUNED for change in _PRODUCTS},
    **{
        (change, Vendor.AMD, framework): text
        for change in (*_PRODUCTS, Change.ATTENTION)
        for framework, text in _AITER.items()
    },
    (
        Change.ATTENTION,
        Vendor.AMD,
        Framework.DIFFUSERS,
    ): 'pipe.transformer.set_attention_backend("aiter")    # AITER\'s flash attention, once it is installed',
}
"""What the maker of a device has for a change, with a framework or without."""
