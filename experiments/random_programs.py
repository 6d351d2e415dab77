"""Do random plans of random programs compute what the programs compute?

    python -m experiments.random_programs --programs 2000 --seed 0 --jobs 2 --json FILE

Composes programs of 3 to 30 ops of jax's lax, numpy and nn (tests/random_maker.py),
traces each, draws two candidates of its space of plans, and applies them on 8 host
devices. Results must be those of one device, and arrays must lie as planned. Programs
run in chunks, each a process of its own: where XLA ends the process, the program at
work counts as a crash. About a second and a half per program on one core.

The outcomes of a program:

- right: all plans gave the results of one device.
- named: lts refused to trace it, by an error of its own that says what to do.
- wrong: results or layouts were others. Must not happen.
- crash: any other error. Must not happen.

Programs that fail are printed, shrunk; number N of seed S is
`random_program(RandomDraw(S, N), OPS)`.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from tests.random_maker import RandomDraw, random_program
from tests.random_plans import Verdict, judged, primitives
from tests.random_programs import Program
from tests.random_regions import OPS
from tests.random_shrink import shrunk

CHUNK = 50
"""Programs of one process: what XLA compiled stays in memory until it ends."""

SECONDS = 60
"""What a program may take before its chunk is ended; the average is two."""


def the_program(seed: int, number: int) -> Program:
    """A program by its seed and number."""
    return random_program(RandomDraw(seed, number), OPS)


def shrunk_text(program: Program, verdict: Verdict, seed: int) -> str:
    """Text of a small program that fails alike."""

    def fails(candidate: Program) -> bool:
        found = judged(candidate, seed, plans=4)
        return (found.outcome, found.head) == (verdict.outcome, verdict.head)

    return shrunk(program, fails, tries=60).text


def run_chunk(seed: int, numbers: Sequence[int], plans: int) -> None:
    """Judge programs; prints lines of JSON before and after each."""
    for number in numbers:
        _say(number=number, text="")
        program = the_program(seed, number)
        _say(number=number, text=program.text)
        verdict = judged(program, number, plans)
        text = ""
        if verdict.outcome in ("wrong", "crash"):
            text = shrunk_text(program, verdict, number)
        _say(
            number=number,
            outcome=verdict.outcome,
            message=verdict.message,
            plans=verdict.plans,
            ops=len(program.kinds()),
            primitives=primitives(program),
            text=text,
        )


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def judged_chunk(seed: int, start: int, stop: int, plans: int) -> Iterator[dict]:
    """Outcomes of programs `[start, stop)` from processes of their own."""
    while start < stop:
        command = [sys.executable, "-m", "experiments.random_programs"]
        command += ["--seed", str(seed), "--plans", str(plans)]
        command += ["--chunk", str(start), str(stop)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            timer = threading.Timer(SECONDS * (stop - start), process.kill)
            timer.start()
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                found = json.loads(line)
                if "outcome" in found:
                    yield found
                start = found["number"] + ("outcome" in found)
                text = found["text"]
            timer.cancel()
        if start < stop:
            yield {
                "number": start,
                "outcome": "crash",
                "message": f"the process ended by {process.returncode}",
                "plans": 0,
                "ops": 0,
                "primitives": {},
                "text": text,
            }
            start += 1


def report(found: Sequence[dict], seed: int, seconds: float) -> dict[str, Any]:
    """Totals of all outcomes, and what failed."""
    outcomes = Counter(one["outcome"] for one in found)
    primitives = sum((Counter(one["primitives"]) for one in found), Counter())
    named = Counter(one["message"] for one in found if one["outcome"] == "named")
    failed = [one for one in found if one["outcome"] in ("wrong", "crash")]
    return {
        "jax": jax.__version__,
        "seed": seed,
        "programs": len(found),
        "ops": sum(one["ops"] for one in found),
        "plans": sum(one["plans"] for one in found),
        "right": outcomes["right"],
        "nothing_to_shard": outcomes["nothing"],
        "named_errors": dict(named.most_common()),
        "wrong": outcomes["wrong"],
        "crashes": outcomes["crash"],
        "minutes": round(seconds / 60),
        "kinds_of_primitives": len(primitives),
        "primitives": dict(sorted(primitives.items())),
        "failed": [
            {key: one[key] for key in ("number", "outcome", "message", "text")}
            for one in failed
        ],
    }


def main() -> None:
    """Parse the knobs, judge, print, write; exits with 1 if anything failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plans", type=int, default=2, help="of each program")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--json", type=Path, help="where the totals go")
    parser.add_argument("--chunk", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # each runs once
    jax.config.update("jax_traceback_filtering", "off")  # whose error it is shows
    if args.chunk:
        run_chunk(args.seed, range(*args.chunk), args.plans)
        return
    began, found = time.time(), []

    def judged_from(start: int) -> list[dict]:
        stop = min(start + CHUNK, args.programs)
        return list(judged_chunk(args.seed, start, stop, args.plans))

    with ThreadPoolExecutor(args.jobs) as pool:
        for chunk in pool.map(judged_from, range(0, args.programs, CHUNK)):
            found += chunk
            for one in chunk:
                if one["outcome"] in ("wrong", "crash"):
                    print(f"{one['number']}: {one['outcome']}: {one['message']}")
                    print(one["text"])
            seconds = time.time() - began
            print(f"{len(found)} programs, {seconds:.0f} s", flush=True)
    totals = report(found, args.seed, time.time() - began)
    text = json.dumps(totals, indent=1)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(text + "\n")
    print(text)
    sys.exit(bool(totals["failed"]))


if __name__ == "__main__":
    main()
