"""Own PyTorch modules at the parties: a small convolutional network for each half of an image.

A bottom module takes a party's features as interlace prepares them, here images of shape
(n, 1, 8, 4), and gives embeddings (n, d). The top module takes all embeddings side by side and
gives one logit a class. A bottom module stays with its party; the others learn only its width d.
"""

from torch import nn

from interlace import ActiveAlone, Federation, Party, SplitVFL
from interlace.data.datasets import digits


def convolutional(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 2, width),
    )


tables = digits().tables
left = Party("left", tables["left"], label="digit", bottom=convolutional(24))
right = Party("right", tables["right"], bottom=convolutional(16))
top = nn.Sequential(nn.ReLU(), nn.Linear(24 + 16, 32), nn.ReLU(), nn.Linear(32, 10))

train, test = Federation.simulate([left, right]).split(test=0.25)
joint = SplitVFL(epochs=15, top=top).fit(train)
alone = ActiveAlone(epochs=15).fit(train)
print(f"the left half alone names {alone.score(test):.1%} of the digits")
print(f"both halves together name {joint.score(test):.1%}")
assert joint.score(test) > alone.score(test)
