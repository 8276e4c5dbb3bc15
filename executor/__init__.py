"""The live side: models, draft trees and the decoding loop. The only package that imports torch and transformers.

* `device`: the device that models run on: clock, free memory, uploads.
* `kernels/`: CUDA kernels of the verifying forward.
* `prompts/`: prompts and conversations.
* `verification/`: acceptance rules: greedy, sampling, Leviathan, SpecInfer, Sequoia, block verification, typical.
* `target/`: the target model, its key/value cache and its tree attention.
* `drafters/`: Medusa, Hydra, EAGLE, EAGLE-3, language models, n-grams, prompt lookup.
* `models/`: target and drafter as a pair: fingerprints, random weights.
* `checkpoints/`: reading, writing and converting drafter checkpoints.
* `decoding/`: the decoding loop: draft, verify, accept, commit.
* `runners/`: what decodes and is timed: the loop and engines behind one interface.
* `recording/`: recording a trace of a drafter on the target's texts.
* `profiling/`: measuring step times.
* `validation`: comparing predictions with live runs.
* `train/`: training drafters.
"""
