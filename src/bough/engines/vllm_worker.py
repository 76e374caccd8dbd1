"""What Bough adds to vLLM's workers: they take over all weights from a folder.

vLLM imports it in its own processes: a file by itself, so that nothing else of Bough is loaded there.
"""

from __future__ import annotations

from typing import Any

NAME = f"{__name__}.WeightsFromFolder"  # for vLLM's `worker_extension_cls`
METHOD = "bough_take_weights"


class WeightsFromFolder:
    """A base class that vLLM gives to its worker."""

    model_runner: Any
    reload_weights: Any

    def bough_take_weights(self, folder: str) -> None:
        """Replaces the model's weights, in place, by those in `folder`."""
        self.reload_weights(weights_path=folder)
        for layer in self.model_runner.get_model().modules():
            # On a CPU a layer computes with a packed copy of its weights. vLLM packs what it has loaded again, but not
            # an output layer that shares the weights of the embedding: that would keep the old ones.
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)
