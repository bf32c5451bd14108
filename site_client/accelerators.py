"""Which device trains: the accelerator that torch finds, or the CPU; a fact that is recorded, never a promise.

Only the trainer calls this; importing torch in the daemon would keep a device open for a process that never trains.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def choose_device(accelerators: int) -> "torch.device":
    """Return the current accelerator if the plan may use one and there is one, else the CPU.

    Args:
        accelerators: How many accelerators the plan asked for and the site lends; 0 is the CPU.
    """
    import torch

    if accelerators > 0 and torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        if found is not None:
            return found
    return torch.device("cpu")


def describe(device: "torch.device") -> str:
    """Return `device` with its model name where it has one, as the log shows it."""
    import torch

    if device.type == "cuda":
        return f"{device.type} ({torch.cuda.get_device_name(device)})"[:100]
    return device.type


def release_memory(device: "torch.device") -> None:
    """Give memory that no tensor uses back to the device, so that the next process finds it."""
    import torch

    if device.type != "cpu" and torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def main() -> int:
    """Write device, count and version of torch to standard output, for `machine`, which doesn't load torch."""
    import json
    import sys

    import torch

    found = {
        "device": describe(choose_device(1)),
        "count": torch.accelerator.device_count(),
        "torch": torch.__version__,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
