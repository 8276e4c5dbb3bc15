"""Names of number types and of quantisations of a target, known without loading torch."""

NUMBER_TYPES = ("float32", "bfloat16", "float16", "float64")
QUANTIZED = ("int8", "int4")
