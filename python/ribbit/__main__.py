"""Command line: ``ribbit demo | doctor | summary | versions | watch``, or ``python -m ribbit``."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from ribbit._arrays.threads import version
from ribbit.results.summary import CONVERGED

_LONGEST = 86_400.0  # seconds between looks: sleeping has a limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # 0: success; 1: a failed self-test, a missing package or an unwanted outcome; 2: bad usage or a
    # summary that cannot be made; 130: Ctrl-C.
    parser = argparse.ArgumentParser(
        prog="ribbit",
        description="Ribbit: a native sampler for Bayesian neural networks.",
    )
    parser.add_argument("--version", action="version", version=f"ribbit {version()}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    demo = commands.add_parser(
        "demo",
        help="sample two networks by HMC: a table and a picture",
        description="Sample two networks by HMC: a curve with a gap in the data, and the heating "
        "load of buildings next to linear regression. Prints a table and saves a picture.",
    )
    demo.add_argument("--quick", action="store_true", help="take fewer draws")
    demo.add_argument(
        "--out",
        default="ribbit-demo.png",
        metavar="PATH",
        help="file of the picture (default: %(default)s)",
    )
    demo.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the chains (default: 0)"
    )
    commands.add_parser(
        "doctor",
        help="print versions and run a self-test; exit code 0 or 1",
        description="Print versions, compare random numbers, a gradient and a run with known "
        "answers, and look for a GPU. Exit code 1 if a check fails.",
    )
    saved = commands.add_parser(
        "summary",
        help="whether a run in a folder has converged, or a fit has ended",
        description="Print draws.summary() or fit.summary() of the folder of a run (also while it "
        "runs), or of a file that save wrote. Exit code 2 if it cannot be read.",
    )
    saved.add_argument("path", metavar="PATH", help="folder of a run, file of draws or of a fit")
    saved.add_argument(
        "--require",
        choices=("converged", "predictions"),
        help="exit with 1 unless the outcome is 'converged' (predictions: or 'predictions "
        "converged, weights did not')",
    )
    watched = commands.add_parser(
        "watch",
        help="a run in a folder, while it runs",
        description="Print progress, acceptance, divergences and time left of the run in a folder, "
        "and its summary at the end.",
    )
    watched.add_argument("path", metavar="FOLDER", help="folder given as store=")
    watched.add_argument(
        "--every", type=float, default=5.0, metavar="SECONDS", help="default: %(default)s"
    )
    watched.add_argument("--once", action="store_true", help="look once")
    commands.add_parser(
        "versions",
        help="print versions and facts about the machine",
        description="Print versions and facts about the machine, for a bug report.",
    )
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "versions":
        from ribbit._cli.versions import show_versions

        show_versions()
        return 0
    if options.command == "doctor":
        return doctor()
    if options.command == "summary":
        return summary(options.path, options.require)
    if options.command == "watch":
        return watch(options.path, every=options.every, once=options.once)
    from ribbit._cli.demo import run_demo

    try:
        run_demo(quick=options.quick, out=options.out, seed=options.seed)
    except (ImportError, OSError, ValueError) as error:
        print(f"ribbit demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ribbit demo: interrupted", file=sys.stderr)
        return 130
    return 0


def summary(path: str, require: str | None = None) -> int:
    """Print the summary of a saved run or fit; 1 if it is not what is required, 2 on errors."""
    from ribbit.store import load

    try:
        found = load(path).summary()
    except (ImportError, OSError, MemoryError, ValueError) as error:
        print(f"ribbit summary: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(found.text)
    met = {None: True, "converged": found.outcome == CONVERGED, "predictions": found.converged}
    return 0 if met[require] else 1


def watch(path: str, *, every: float, once: bool) -> int:
    """Show the run in a folder until it ends; 1 where there is none, 130 after Ctrl-C."""
    from ribbit._cli import watch as watching
    from ribbit.store import load

    try:
        if not 0.0 < every <= _LONGEST:
            raise ValueError(f"expected --every > 0 and <= {_LONGEST:g}, got {every:g}")
        if Path(path).is_file():
            raise ValueError(f"[watch] expected the folder of a run, got a file: {path}")
        read = functools.partial(load, verify=False)  # again and again
        watching.watch(Path(path), read, every=every, once=once)
    except BrokenPipeError:
        raise
    except (ImportError, OSError, MemoryError, ValueError) as error:
        print(f"ribbit watch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def doctor() -> int:
    """Print versions, run the self-test, and return the exit code: 0 when all checks pass."""
    from ribbit._cli.doctor import run_checks
    from ribbit._cli.versions import device_status, show_versions

    show_versions()
    print("\nself-test")
    checks = run_checks()
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = "ok  " if check.passed else "FAIL"
        print(f"  {mark}  {check.name:<{width}}  {check.detail}")
    missing = device_status()
    if missing:
        print(f"  device: not checked ({missing})")
    failed = sum(not check.passed for check in checks)
    seconds = sum(check.seconds for check in checks)
    text = f"{failed} of {len(checks)} checks FAILED" if failed else "all checks passed"
    print(f"\n{text} ({seconds:.1f} s)")
    return 1 if failed else 0


def _plain(message: Warning | str, category: type[Warning], *_: object, **__: object) -> str:
    """Format a warning without a line of a program: the user has none."""
    return f"{category.__name__}: {message}\n"


def command() -> None:
    """Run the command line and exit; with 141 if the reader of its output, as `head`, has ended."""
    warnings.formatwarning = _plain
    try:
        status = main()
        print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        status = 141  # 128 + SIGPIPE, as the shell says of other programs
    sys.exit(status)


if __name__ == "__main__":
    command()
