"""The memory of one training step on one device, in closed form."""

from itertools import pairwise

from gpucourse.catalog.jobs import OPTIMIZERS, Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput
from gpucourse.evidence import INSTANTS
from gpucourse.predict import network, tape
from gpucourse.predict.ledger import Ledger, Line
from gpucourse.predict.parameters import parameters
from gpucourse.predict.sizes import Size, formula, size

CPU_EAGER = "PyTorch eager, derivatives.yaml"
LACKING = ("experts", "latent", "parallel", "qk_norm", "qkv_bias", "other")  # parts that our networks do not have


def memory(shape: Shape, job: Job) -> Ledger:
    """A ledger of one optimizer step, in the steady state: the optimizer's state exists, gradients start as None.

    Bytes are those of eager PyTorch on our networks (gpucourse.models). Raises BadInput for a shape they lack.
    """
    check(shape, job)
    step = Step(shape, job)
    lines = [*states(step), *activations(step), *gradients_in_flight(step), *optimizer_step(step)]
    return Ledger(f"{shape.name} {step.count.total / 1e6:,.0f}M · {job} · {job.layout}",
                  tuple(line for line in lines if line.bytes), step.where())


def check(shape: Shape, job: Job) -> None:
    if job.seq > shape.context:
        raise BadInput(f"seq {job.seq} is longer than the context of {shape.name}: {shape.context}")
    lacking = [name for name in LACKING if getattr(shape, name)]
    if lacking or shape.heads * shape.head_size != shape.hidden:
        raise BadInput(f"{shape.name} has {', '.join(lacking) or 'heads × head size other than hidden'}: "
                       "its memory is not predicted yet; use a GPT-2 or Llama style shape")
    partly = job.recompute not in ("none", "full")
    awaited = {f"{job.layout}": job.layout != Layout(), f"recompute {job.recompute}": partly,
               "adamw-8bit": job.optimizer == "adamw-8bit", "chunked-loss": job.chunked_loss, "offload": job.offload,
               "lora": job.lora}
    for name, used in awaited.items():
        if used:
            raise BadInput(f"the memory of {name} is not predicted yet; leave it out")


class Step:
    """What the lines are computed from: dimensions, counts, and the highest moments of a block and of the head."""

    def __init__(self, shape: Shape, job: Job):
        self.shape, self.job, self.bytes = shape, job, job.bytes
        self.count = parameters(shape)
        self.dims = dict(n=job.tokens, h=shape.hidden, k=shape.kv_hidden, f=shape.ffn, a=shape.heads,
                         V=shape.vocab)
        self.stream = size("n h", self.bytes.weights)
        given = {network.STREAM: self.stream}
        block, head = network.block(shape, self.bytes), network.head(shape, self.bytes)
        again = job.accumulate > 1
        recompute = job.recompute == "full"
        self.block_kept, self.head_kept = tape.kept(block, given), tape.kept(head, given)
        self.layer_kept = self.stream if recompute else self.block_kept
        self.block_forward = tape.forward(block, self.dims, keep=not recompute)
        self.block_backward = tape.backward(block, self.dims, given, again)
        self.head_forward = tape.forward(head, self.dims)
        self.head_backward = tape.backward(head, self.dims, given, again)
        self.block_keeps_stream = any(network.STREAM in op.keeps for op in block)

    def at(self, of: Size) -> int:
        return of.at(self.dims)

    def where(self) -> str:
        names = dict(n="tokens", h="hidden", k="kv hidden", f="ffn", a="heads", V="vocabulary")
        return " · ".join(f"{letter} {name} {self.dims[letter]:,}" for letter, name in names.items())


def states(step: Step) -> list[Line]:
    """Weights, gradients, optimizer state and the batch."""
    b, count, shape = step.bytes, step.count, step.shape
    moments, tokens = OPTIMIZERS[step.job.optimizer], step.job.tokens

    def constant(name, category, text, amount):
        return Line(name, category, text, dict.fromkeys(INSTANTS, amount))

    lines = [constant("weights", "weights", f"{b.weights} × {count.total:,}", b.weights * count.total)]
    if shape.positions == "rope":
        lines.append(constant("rotary tables", "weights", f"2 × 4 × {shape.context} × {shape.head_size}",
                              8 * shape.context * shape.head_size))
    if b.master:
        lines.append(constant("master weights", "optimizer", f"{b.master} × {count.total:,}", b.master * count.total))
    if moments:
        each = b.moments
        lines.append(constant("optimizer moments", "optimizer", f"{moments} × {each} × {count.total:,}",
                              moments * each * count.total))
    if step.job.optimizer == "adamw":
        tensors = len(tensors_of(shape))
        lines.append(constant("optimizer step counts", "optimizer", f"4 × {tensors} tensors", 4 * tensors))
    lines.append(constant("batch", "activations", f"tokens and targets, 2 × 8 × {tokens:,}", 16 * tokens))
    lines.append(gradients(step))
    return lines


def gradients(step: Step) -> Line:
    """Gradients that exist at each instant; with accumulation all of them exist from the first micro-batch on."""
    width, count = step.bytes.gradients, step.count
    text = f"{width} × {count.total:,}"
    if step.job.accumulate > 1:
        return Line("gradients", "gradients", text, dict.fromkeys(INSTANTS, width * count.total))
    head = count.final_norm + count.head
    blocks = head + (count.layers - 1) * count.block
    at = {"last block": head, "first block": blocks, "embedding": blocks + count.block + count.positions,
          "step": count.total}
    return Line("gradients", "gradients", f"{text} once all exist", {i: width * n for i, n in at.items()})


def tensors_of(shape: Shape) -> list[int]:
    """Elements of each parameter tensor, in the order of `model.parameters()`."""
    h, k, f = shape.hidden, shape.kv_hidden, shape.ffn
    norm = [h] if shape.norm == "rmsnorm" else [h, h]

    def linear(inner: int, outer: int) -> list[int]:
        return [inner * outer, outer] if shape.bias else [inner * outer]

    attention = [*linear(h, h), *linear(h, k), *linear(h, k), *linear(h, h)]
    mlp = linear(h, f) * (2 if shape.mlp == "swiglu" else 1) + linear(f, h)
    ends = ([shape.context * h] if shape.positions == "learned" else []), ([] if shape.tied else [shape.vocab * h])
    return [shape.vocab * h, *ends[0], *(norm + attention + norm + mlp) * shape.layers, *norm, *ends[1]]


def activations(step: Step) -> list[Line]:
    """What forward leaves for backward: in the blocks, and in the head."""
    layers, kept = step.shape.layers, step.at(step.layer_kept)
    stream = step.at(step.stream)
    head_kept = step.at(step.head_kept)
    what = "inputs of the blocks" if step.job.recompute == "full" else "saved by the blocks"
    position_ids = 8 * step.job.seq if step.shape.positions == "learned" else 0
    lines = [
        Line(what, "activations", f"{layers} × [{formula(step.layer_kept)}]",
             {"forward": (layers - 1) * kept + stream + position_ids, "loss": layers * kept + position_ids,
              "last block": layers * kept + position_ids, "first block": kept + position_ids}, CPU_EAGER),
    ]
    cast, cached = cast_cache(step)
    lines.append(Line("autocast's copies of the weights", "activations", cast, {"forward": (layers - 1) * cached}))
    lines.append(Line("last block, forward", "activations", f"at {step.block_forward.at}",
                      {"forward": step.block_forward.bytes}))
    of_forward = stream + step.head_forward.bytes + layers * cached
    if head_kept + step.head_backward.bytes < of_forward:
        text = f"at {step.head_forward.at}"
        return [*lines, Line("head and loss, forward", "activations", text, {"loss": of_forward})]
    return [*lines, Line("saved by the head", "activations", formula(step.head_kept), {"loss": head_kept}, CPU_EAGER),
            Line("loss, backward", "temporaries", f"at {step.head_backward.at}", {"loss": step.head_backward.bytes})]


def cast_cache(step: Step) -> tuple[str, int]:
    """Autocast caches each weight's 16-bit copy until it exits; bytes a block, where nothing else keeps the copies."""
    if not step.bytes.autocast or step.job.recompute == "none":
        return "", 0
    matrices = step.count.block - step.count.norms
    return f"2 × {matrices:,} a block, until the loss is known", 2 * matrices


def gradients_in_flight(step: Step) -> list[Line]:
    """Backward through a block: the stream's gradient, and the block's own highest moment."""
    width, count = step.bytes.gradients, step.count
    stream, table = step.at(step.stream), width * count.embedding
    blocks = ("last block", "first block")
    tied = step.shape.tied
    adds = tied and table > stream  # adding the head's gradient is the higher moment, after the stream's is gone
    lines = [Line("gradient of the stream", "temporaries", formula(step.stream),
                  dict.fromkeys(blocks if adds else (*blocks, "embedding"), stream))]
    if tied:
        lines.append(Line("head's gradient, waiting for the embedding's", "temporaries",
                          f"{width} × {count.embedding:,}", dict.fromkeys((*blocks, "embedding"), table)))
    lines.append(block_backward(step))
    text = f"{width} × {count.embedding:,}" + (" made, and added to the head's" if adds else "")
    lines.append(Line("embedding's gradient", "temporaries", text, {"embedding": table * (2 if adds else 1)}))
    return lines


def block_backward(step: Step) -> Line:
    """One block's highest moment in backward; under recomputation everything it keeps is made first."""
    high, name = step.block_backward.bytes, "one block, backward"
    text = f"at {step.block_backward.at}"
    if step.job.recompute == "full":
        high += step.at(step.block_kept) - step.at(step.stream) * step.block_keeps_stream
        name, text = "one block, recomputed and backward", f"{formula(step.block_kept)}, and {text}"
    width, count = step.bytes.gradients, step.count
    # After the first block the positions get their gradient: what the block kept is gone, its gradients are there.
    positions = width * (count.block + count.positions) + step.bytes.weights * step.job.seq * step.shape.hidden
    positions = positions - step.at(step.layer_kept) if count.positions and step.job.accumulate == 1 else 0
    return Line(name, "temporaries", text, {"last block": high, "first block": max(high, positions)})


def optimizer_step(step: Step) -> list[Line]:
    """What the optimizer makes and drops inside step()."""
    job, count = step.job, step.count
    if job.optimizer != "adamw" or job.fused:
        return []
    width = step.bytes.moments
    if job.foreach:
        return [Line("temporaries of step()", "temporaries", f"one list for all tensors, {width} × {count.total:,}",
                     {"step": width * count.total})]
    sizes = tensors_of(step.shape)
    largest = max(before + 2 * now for before, now in pairwise([0, *sizes]))  # the last tensor's result is still there
    text = f"two for a tensor and one of the tensor before, {width} × {largest:,}"
    return [Line("temporaries of step()", "temporaries", text, {"step": width * largest})]
