"""The devices that training can use: GPUs, and slices of the CPU with a memory budget.

Needs no torch, and imports nothing else of Onyx. Start with `device.py`, the value that describes one device; `gpus.py`
lists the visible GPUs by NVML (`nvml.py`) or nvidia-smi, `cpu.py` reads and enforces the CPU's budget. `heap.py` and
`peak_memory.py` control and measure the memory of a training process.
"""
