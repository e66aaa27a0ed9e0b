"""Parts of 01.2, 01.7, 01.8: where the peak is, the largest batch that fits, and when autocast holds less."""

from gpucourse.catalog import Job, shape
from gpucourse.evidence import INSTANTS
from gpucourse.exercises.kinds import Pick
from gpucourse.predict import memory

PEAKS = {
    "fp32, 1 × 16 tokens": (shape("gpt2"), Job(1, 16)),
    "fp32, 8 × 1024 tokens": (shape("gpt2"), Job(8, 1024)),
    "fp32, 8 × 1024 tokens, vocabulary 256": (shape("gpt2").but(vocab=256), Job(8, 1024)),
    "fp32, 8 × 1024 tokens, vocabulary 256, recompute": (
        shape("gpt2").but(vocab=256), Job(8, 1024, recompute="full")),
    "fp32, 1 × 16 tokens, fused": (shape("gpt2"), Job(1, 16, foreach=False, fused=True)),
}
WHY_NOT = {
    "forward": "Forward only adds. What comes right after its end has everything that forward left, and more.",
    "loss": "Three tensors of tokens × vocabulary lead only where the vocabulary is large and the tokens are many.",
    "last block": "All activations, hardly a gradient. That leads where activations are kept and outweigh the states.",
    "first block": "Hardly an activation, and all gradients but the embedding's and one block's. That leads where "
                   "every block is made again and the gradients have come to outweigh the blocks' inputs.",
    "embedding": "The table's gradient is made here, and added to the head's. That leads where tokens are few and "
                 "step() makes nothing.",
    "step": "All states, and what the optimizer makes for itself. Does it make anything here, and do few tokens stand "
            "against it?",
}


def peak_part(where) -> Pick:
    return Pick(options={name: name for name in INSTANTS}, right=lambda: memory(*where).peak_at, why=WHY_NOT)


ON_ONE = Job(seq=1024, precision="bf16-autocast", recompute="full", foreach=False, fused=True)


def largest_batch(fits) -> int:
    return max(batch for batch in range(1, 200) if fits(memory(shape("gpt2-xl"), ON_ONE.but(micro_batch=batch))))


def autocast_pays() -> int:
    """Tokens of one sequence from which GPT-2 holds less for backward under bf16 autocast than in fp32."""
    def held(tokens: int, precision: str) -> int:
        return memory(shape("gpt2"), Job(1, tokens, precision=precision)).memory().at["forward"]["activations"]

    few, many = 1, 1024  # at few it costs, at many it pays
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if held(middle, "bf16-autocast") < held(middle, "fp32") else (middle, many)
    return many
