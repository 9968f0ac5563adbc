"""Views of one's own, by torchvision's transforms.

rayfed-ssl run fedsimclr training.views=examples.my_views:mild
"""

import torch
from torch import Tensor
from torchvision.transforms import v2


def mild(images: Tensor, size: int) -> Tensor:
    """Crop, blur and change the brightness of uint8 images [N, C, H, W]; gives floats in [0, 1], [N, C, size, size].

    A transform draws once for all that it is given, so each image passes alone.
    """
    transform = v2.Compose(
        [
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomResizedCrop(size, scale=(0.5, 1)),
            v2.RandomApply([v2.GaussianBlur(3)], p=0.5),
            v2.ColorJitter(brightness=0.4, contrast=0.4),
        ]
    )
    return torch.stack([transform(image) for image in images])
