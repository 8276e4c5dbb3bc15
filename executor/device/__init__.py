"""The device that models run on: its clock, its free memory, uploads to it.

* `clock`: timestamps on the host or on a CUDA stream.
* `free_memory`: free memory of the device or the machine, within the limits of containers.
* `upload`: copies from the host to the device without waiting.
"""
