"""A colour for every device: apart for the colour-blind, and light enough for dark ink in light and dark pages."""

from __future__ import annotations

# After Okabe and Ito, lightened.
_FEW = ("#7cc4f4", "#f5b544", "#52c79a", "#f3e571", "#e5a3cb", "#f28c64", "#9aa8f5", "#bcc4cf")
# One hue after the other with growing lightness, so that order survives every colour blindness.
_RAMP = ((0x7B, 0x93, 0xE8), (0x5F, 0xB4, 0xD0), (0x7F, 0xD0, 0xA5), (0xCF, 0xE0, 0x7A), (0xFF, 0xEF, 0xA8))


def device_colours(num_devices: int) -> list[str]:
    """A colour for each device by position, as `#rrggbb`."""
    if num_devices <= len(_FEW):
        return list(_FEW[:num_devices])
    return [_on_ramp(position / (num_devices - 1)) for position in range(num_devices)]


def _on_ramp(share: float) -> str:
    place = share * (len(_RAMP) - 1)
    step = min(int(place), len(_RAMP) - 2)
    mixed = (round(low + (high - low) * (place - step)) for low, high in zip(_RAMP[step], _RAMP[step + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
