"""Stand-ins that let SGLang run on a CPU: on the path of its environment alone.

* `sgl_kernel`: its kernels, in torch.
* `sitecustomize`: torchvision, which no text model needs.
"""
