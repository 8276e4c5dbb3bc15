"""The live side: models, trees and the decoding loop. The only package that imports torch and transformers."""
