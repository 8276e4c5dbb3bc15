"""The device: free memory, uploads, clocks."""
