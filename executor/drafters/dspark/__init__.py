"""DSpark: DFlash's block with a Markov head; its network, files and recipe stand in `executor.drafters.dflash`."""

from executor.drafters.dflash import DSPARK

ENTRY = DSPARK
