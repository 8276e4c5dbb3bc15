"""Estimates with intervals, and fitted curves; knows no trees."""
