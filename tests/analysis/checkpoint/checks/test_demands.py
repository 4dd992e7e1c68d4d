"""What those who read a checkpoint cannot take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fp8debug.analysis.checkpoint.checks.consumer import consumer_named, consumers
from fp8debug.analysis.checkpoint.checks.demands import demands
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.errors import UsageError

SubjectOf = Callable[..., Subject]
ONE = {"a.weight": ("F8_E4M3", (512, 512)), "a.weight_scale_inv": ("F32", (4, 4))}


def hits_of(subject: Subject) -> dict[str, Hit]:
    return {hit.check: hit for hit in demands(subject) if hit.check != "consumer_note"}


def test_scales_rounded_up_to_powers_of_two_inflate_each_block(subject_of: SubjectOf) -> None:
    scales = np.linspace(0.011, 0.0155, 16, dtype=np.float32)
    subject = subject_of(ONE, consumer="deepgemm-blackwell", contents={"a.weight_scale_inv": scales})
    (hit,) = hits_of(subject).values()
    # 2^-6 = 0.015625 is the next power of two of all of them.
    assert hit.place.numbers["gain_max"] == pytest.approx(0.015625 / 0.011)
    assert hit.place.numbers["gain_min"] == pytest.approx(0.015625 / 0.0155)
    assert "16 of 16 numbers" in hit.place.message and "1.01 to 1.42 times too large" in hit.place.message


def test_powers_of_two_are_taken(subject_of: SubjectOf) -> None:
    scales = np.exp2(-np.arange(16, dtype=np.float32))
    assert not hits_of(subject_of(ONE, consumer="deepgemm-blackwell", contents={"a.weight_scale_inv": scales}))


def test_other_blocks_and_layouts(subject_of: SubjectOf) -> None:
    small = {"a.weight": ("F8_E4M3", (512, 512)), "a.weight_scale_inv": ("F32", (8, 8))}
    hit = hits_of(subject_of(small, block=(64, 64), consumer="deepgemm-hopper"))["consumer_scales"]
    assert "has blocks of 64 x 64, DeepGEMM on Hopper (SM90) takes 128 x 128" in hit.place.message
    single = {"a.weight": ("F8_E4M3", (512, 512)), "a.weight_scale": ("F32", ())}
    hit = hits_of(subject_of(single, consumer="deepgemm-hopper"))["consumer_scales"]
    assert "has one number a tensor" in hit.place.message
    assert not hits_of(subject_of(single, consumer="vllm"))
    mx = hits_of(subject_of({"a.weight": ONE["a.weight"], "a.weight_scale": ("F32", (512, 16))}, block=(1, 32),
                            consumer="cublas-mxfp8"))  # fmt: skip
    assert "is F32, cuBLAS MXFP8 takes E8M0" in mx["consumer_scales"].place.message


def test_sizes_that_kernels_do_not_take(subject_of: SubjectOf) -> None:
    odd = {"a.weight": ("F8_E4M3", (512, 520)), "a.weight_scale": ("F32", ())}
    hit = hits_of(subject_of(odd, consumer="torch-scaled-mm"))["consumer_sizes"]
    assert "520 columns are no multiple of 16" in hit.place.message


def test_bytes_of_the_other_kind_of_e4m3(subject_of: SubjectOf) -> None:
    subject = subject_of(ONE, consumer="rocm-fnuz")
    hit = hits_of(subject)["consumer_format"]
    assert hit.place.factor == 0.5
    (codes,) = subject.convention.quantised
    fnuz = replace(subject.convention, quantised=(replace(codes, fmt="E4M3FNUZ"),))
    assert not hits_of(replace(subject, convention=fnuz))
    hit = hits_of(replace(subject, convention=fnuz, consumer="vllm"))["consumer_format"]
    assert hit.place.factor == 2.0


def test_nobody_asked(subject_of: SubjectOf) -> None:
    assert not list(demands(subject_of(ONE)))


def test_a_consumer_that_is_not_known() -> None:
    with pytest.raises(UsageError, match=r"--consumer vlm: no such consumer; did you mean vllm"):
        consumer_named("vlm")
    assert {"deepgemm-blackwell", "vllm", "sglang", "tensorrt-llm", "torch-scaled-mm"} <= consumers().keys()
