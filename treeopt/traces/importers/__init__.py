"""What people already have, brought in: acceptance figures as traces, other programs' trees; files, never models."""
