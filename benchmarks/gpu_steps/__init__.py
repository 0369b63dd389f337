"""The steps of `benchmarks/gpu_all.py`."""
