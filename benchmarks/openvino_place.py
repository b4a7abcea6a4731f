"""How OpenVINO computes on this machine, for both of its workers; runs where `openvino` is installed."""

import openvino


def place(threads: int) -> dict[str, str | int]:
    """Settings for a model on the CPU: bf16 where it has such arithmetic, else fp32, since OpenVINO's attention knows
    no other cache there that keeps what was computed. Weights are bf16 in both."""
    capable = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision = "bf16" if capable else "f32"
    return {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision, "INFERENCE_NUM_THREADS": threads}
