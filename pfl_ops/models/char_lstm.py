"""CharLSTM, the FedAvg2Rep paper's network for Shakespeare: the next character of a line."""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from pfl_ops.errors import PflOpsError
from pfl_ops.models.base import Network, Shape, register


class Codes(nn.Embedding):
    """Character codes, whole numbers 0 … `num_embeddings` - 1 that arrive as floats, to vectors of a table.

    [B, length] -> [B, length, width]. A number in between counts as the nearest code, one below as 0.

    Raises:
        PflOpsError: a code beyond the table.

    >>> codes = Codes.from_pretrained(torch.tensor([[0.0], [10.0], [20.0]]))
    >>> codes(torch.tensor([[1.0, 2.0, 1.2]])).tolist()
    [[[10.0], [20.0], [10.0]]]
    """

    def forward(self, input: Tensor) -> Tensor:
        codes = input.round().clamp(min=0).long()
        if codes.numel() and int(codes.max()) >= self.num_embeddings:
            raise PflOpsError(f"model 'char_lstm' knows the codes 0 to {self.num_embeddings - 1}, got {codes.max()}")
        return super().forward(codes)


class LastState(nn.LSTM):
    """The state of the top layer after the whole line: [B, length, width] -> [B, units].

    >>> tuple(LastState(8, 16, num_layers=2, batch_first=True)(torch.zeros(3, 80, 8)).shape)
    (3, 16)
    """

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]  # one tensor, as a body gives
        states: Tensor = super().forward(input)[0]
        return states[:, -1]


@register("char_lstm")
class CharLSTM(Network):
    """An embedding of 8 per character, two LSTM layers of 256 units, and a classifier on the last state.

    A sample is a line of character codes; classes are the same characters. Parameters: 819,920 with 80 characters.
    Recurrent layers can't be stacked: clients train one at a time.

    >>> network = CharLSTM((80,), n_classes=80)
    >>> sum(p.numel() for p in network.parameters())
    819920
    >>> 80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 256 * 80 + 80  # four gates, two biases each
    819920

    Source: FedAvg2Rep paper, Sec. 3.2.2, after McMahan et al., AISTATS 2017, Sec. 3, and LEAF (Caldas et al., 2018).
    Deviations: PyTorch's LSTM has two bias vectors a layer, whose sum is all that acts: 2,048 more parameters than the
    equations need. Initialisation is not stated: as PyTorch's layers draw it.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        characters: Annotated[int, Field(ge=1, le=100_000, description="size of the alphabet")] = 80,
        embedding: Annotated[int, Field(ge=1, le=100_000, description="numbers a character")] = 8,
        hidden: Annotated[int, Field(ge=1, le=100_000, description="units of each LSTM layer")] = 256,
    ) -> None:
        if len(shape) != 1:
            raise PflOpsError(f"model 'char_lstm' needs lines of character codes, but a sample here has shape {shape}")
        body = {
            "embedding": Codes(characters, embedding),
            "lstm": LastState(embedding, hidden, num_layers=2, batch_first=True),
        }
        super().__init__(body, hidden, n_classes)
