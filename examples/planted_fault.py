"""From a fault to a plan that is proven to help, in one command: plant, record, report, plan, verify.

    python examples/planted_fault.py                  # a channel grows in the last Linear: it ruins the loss
    python examples/planted_fault.py --fault middle   # in one layer in the middle: the residual stream absorbs it
    python examples/planted_fault.py --steps 60 --batch 4 --seq 32      # smaller

The GPT of `train_gpt.py` is trained in BF16 while one channel of a layer's input grows to 2**20 times the others,
exactly compensated in the layer's weight: BF16 does not feel it, one FP8 scale per tensor cannot hold both. Every
command that is run is printed, so that it can be run again by hand. At the end stands what it proved, in figures; the
exit code is that of `fp8debug verify`. About three minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

TRAINING = Path(__file__).with_name("train_gpt.py")
FAULTS = ("head", "middle")


def fp8debug(*words: str) -> None:
    """Run one command of the tool, shown as one would type it."""
    print(f"\n$ fp8debug {shlex.join(words)}", flush=True)
    # The model is too small for two threads, which would wait for each other on a busy machine.
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    done = subprocess.run([sys.executable, "-m", "fp8debug", *words], env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="head")
    parser.add_argument("--recipe", default="current", help="the recipe that the FP8 training uses")
    parser.add_argument("--out", type=Path, default=Path("fp8debug-runs/planted-fault"), help="folder for the runs")
    parser.add_argument("--steps", default="100")
    parser.add_argument("--batch", default="8")
    parser.add_argument("--seq", default="64")
    parser.add_argument("--seeds", default="3", help="BF16 trainings whose losses say what noise is")
    args = parser.parse_args()
    run, plan = str(args.out / args.fault / "bf16"), str(args.out / args.fault / "plan.toml")
    size = ("--steps", args.steps, "--batch", args.batch, "--seq", args.seq)
    training = (str(TRAINING), *size, "--growing-outlier", args.fault)

    fp8debug("attach", "--every", "10", "--recipe", args.recipe, "--force", "--out", run, *training)
    fp8debug("report", run, "--top", "3")
    fp8debug("plan", run, "--recipe", args.recipe, "-o", plan, "--force")
    verified = str(args.out / args.fault / "verify")
    verify = ("verify", "--plan", plan, "--seeds", args.seeds, "--out", verified, "--force")
    fp8debug(*verify, *training, "--seed", "{seed}")


if __name__ == "__main__":
    main()
