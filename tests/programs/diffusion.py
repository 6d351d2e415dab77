"""A U-Net that predicts the noise of an image, with the parts of a diffusion model.

Strided convolutions down, attention at the bottom, resizing or transposed convolutions
up, skips by concatenation, and the time of the step added in every block.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from tests.programs.program import Program, shape

SIDE, BATCH = 16, 8


def time_embedding(steps: jax.Array, features: int) -> jax.Array:
    """Sines and cosines of the time: [batch] -> [batch, features]."""
    rates = jnp.exp(-jnp.linspace(0.0, 9.0, features // 2))
    angles = steps[:, None].astype(jnp.float32) * rates[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class ResidualBlock(nn.Module):
    """Two convolutions, the time between them, and a residual."""

    features: int

    @nn.compact
    def __call__(self, x, time):
        """x [batch, height, width, channels]; time [batch, features]."""
        y = nn.silu(nn.GroupNorm(num_groups=4)(x))
        y = nn.Conv(self.features, (3, 3))(y)
        y = y + nn.Dense(self.features)(nn.silu(time))[:, None, None, :]
        y = nn.silu(nn.GroupNorm(num_groups=4)(y))
        y = nn.Conv(self.features, (3, 3))(y)
        if x.shape[-1] != self.features:
            x = nn.Conv(self.features, (1, 1))(x)
        return x + y


class UNet(nn.Module):
    """Images [batch, SIDE, SIDE, 3] and steps [batch] to noise of the images' shape.

    `up`: "resize" (nearest neighbours, then a convolution) or "transpose".
    """

    up: str = "resize"
    widths: tuple[int, ...] = (8, 16)
    num_heads: int = 4

    @nn.compact
    def __call__(self, images, steps):
        """The noise."""
        time = time_embedding(steps, self.widths[-1])
        time = nn.Dense(2 * self.widths[-1])(time)
        x, skips = nn.Conv(self.widths[0], (3, 3))(images), []
        for width in self.widths:
            x = ResidualBlock(width)(x, time)
            skips.append(x)
            x = nn.Conv(width, (3, 3), strides=(2, 2))(x)
        x = self.attend(ResidualBlock(self.widths[-1])(x, time))
        for width in reversed(self.widths):
            x = jnp.concatenate([self.enlarge(x, width), skips.pop()], axis=-1)
            x = ResidualBlock(width)(x, time)
        return nn.Conv(3, (3, 3))(nn.silu(nn.GroupNorm(num_groups=4)(x)))

    def attend(self, x):
        """Attention over all places of an image."""
        batch, height, width, channels = x.shape
        y = nn.GroupNorm(num_groups=4)(x).reshape(batch, height * width, channels)
        y = nn.MultiHeadDotProductAttention(num_heads=self.num_heads)(y)
        return x + y.reshape(x.shape)

    def enlarge(self, x, width: int):
        """Twice the height and width."""
        if self.up == "transpose":
            return nn.ConvTranspose(width, (4, 4), strides=(2, 2))(x)
        batch, height, wide, channels = x.shape
        shape = (batch, 2 * height, 2 * wide, channels)
        return nn.Conv(width, (3, 3))(jax.image.resize(x, shape, "nearest"))


def unet(up: str, **sizes) -> Program:
    """The forward pass of `UNet`."""
    model = UNet(up=up, **sizes)
    images, steps = shape(BATCH, SIDE, SIDE, 3), np.arange(BATCH, dtype=np.int32) * 100

    def denoise(params, images, steps):
        return model.apply({"params": params}, images, steps)

    params = jax.eval_shape(model.init, jax.random.key(0), images, steps)["params"]
    return Program(function=denoise, args=(params, images, steps))
