"""A small transformer encoder as a torch module: the norm before each part, and nothing that couples rows.

Linear, LayerNorm and Embedding layers only, so that the book-keeping gradient engine applies, and an adapter can stand
at any Linear (`privacy.dpsgd.lora`).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from federation.models.images import flat
from federation.plan_fields import TransformerModel


class EncoderBlock(nn.Module):
    """Attention and two layers, each beside a shortcut. Input and output (B, tokens, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm = nn.LayerNorm(dim)
        self.attend = nn.Linear(dim, 3 * dim)
        self.join = nn.Linear(dim, dim)
        self.second_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return `tokens`, each told of the others in its row."""
        rows, count, dim = tokens.shape
        parts = self.attend(self.first_norm(tokens)).reshape(rows, count, 3, self.heads, dim // self.heads)
        query, key, value = (parts[:, :, place].transpose(1, 2) for place in range(3))
        seen = scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(rows, count, dim)
        tokens = tokens + self.join(seen)
        result: Tensor = tokens + self.narrow(gelu(self.widen(self.second_norm(tokens))))
        return result


class Transformer(nn.Module):
    """An encoder. Input (B, width): tokens one after the other, or indices of words; output (B,) or (B, classes)."""

    def __init__(self, spec: TransformerModel, width: int, outputs: int) -> None:
        super().__init__()
        self.count, self.vocabulary, self.part = spec.tokens, spec.vocabulary, width // spec.tokens
        self.tokens: nn.Module = (
            nn.Linear(width // spec.tokens, spec.dim)
            if spec.vocabulary is None
            else nn.Embedding(spec.vocabulary, spec.dim)
        )
        self.positions = nn.Embedding(spec.tokens, spec.dim)
        self.blocks = nn.ModuleList(EncoderBlock(spec.dim, spec.heads) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.dim)
        self.output = nn.Linear(spec.dim, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the log-odds of `rows`; an index outside the vocabulary counts as the nearest one."""
        places = torch.arange(self.count, device=rows.device).expand(len(rows), -1)
        if self.vocabulary is None:
            parts = rows.reshape(len(rows), self.count, self.part)
        else:
            parts = rows.round().long().clamp(0, self.vocabulary - 1)
        tokens = self.tokens(parts) + self.positions(places)
        for block in self.blocks:
            tokens = block(tokens)
        return flat(self.output(self.norm(tokens).mean(1)))
