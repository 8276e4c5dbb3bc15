"""Read and write every file of the project: atomic writes, strict JSON, JSON lines, provenance."""
