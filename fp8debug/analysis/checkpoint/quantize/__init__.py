"""Writing quantised checkpoints: test material, and a reference of how each convention is written."""

from fp8debug.analysis.checkpoint.quantize.choosing import Kept
from fp8debug.analysis.checkpoint.quantize.forms import Form, ScaleForm, forms
from fp8debug.analysis.checkpoint.quantize.quantizing import quantize_checkpoint
from fp8debug.analysis.checkpoint.quantize.written import QuantisedTensor, Written

__all__ = ["Form", "Kept", "QuantisedTensor", "ScaleForm", "Written", "forms", "quantize_checkpoint"]
