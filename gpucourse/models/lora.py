"""Low-rank adapters (LoRA, arXiv 2106.09685) on a transformer whose own weights are frozen."""

from torch import Tensor, nn

from gpucourse.models.transformer import Transformer


class Adapted(nn.Module):
    """A frozen matrix and beside it the product of two narrow ones, which are trained: x·W + (x·A)·B.

    A is [rank, in], drawn at random; B is [out, rank], and begins as zero.
    """

    def __init__(self, frozen: nn.Linear, rank: int):
        super().__init__()
        like = dict(bias=False, device=frozen.weight.device, dtype=frozen.weight.dtype)
        self.frozen = frozen
        self.a = nn.Linear(frozen.in_features, rank, **like)
        self.b = nn.Linear(rank, frozen.out_features, **like)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.b(self.a(x))


def adapt(model: Transformer, rank: int) -> Transformer:
    """Freeze the model and give each matrix of its blocks (q, k, v, out, and all of the MLP) adapters of `rank`.

    Embeddings, norms and head stay as they are. Changes the model and returns it.
    """
    model.requires_grad_(False)
    for block in model.blocks:
        for part in (block.attention, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, Adapted(child, rank))
    return model
