"""ribbit.progress: what is shown, when, at what cost; no draw depends on it."""

import functools
import io
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit import datasets, progress
from ribbit.progress import Progress, format_line, render_table
from ribbit.samplers import HMC


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that stands still unless told otherwise."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "perf_counter", lambda: self.now)


def stats(chains=2, acceptance=0.8, diverging=False, step_size=0.1, n_steps=10):
    return {
        "acceptance_rate": np.full(chains, acceptance),
        "diverging": np.full(chains, diverging),
        "step_size": np.full(chains, step_size),
        "n_steps": np.full(chains, n_steps),
        "lp": np.zeros(chains),
    }


def small_target():
    x, y = datasets.toy_regression(20, seed=0)
    model = rb.mlp(1, (4,), 1)
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))


def test_counts_and_phases(monkeypatch):
    clock = Clock(monkeypatch)
    seen = []

    def draws(done):
        return max(0, done - 4) // 2

    with Progress(seen.append, total=10, chains=2, warmup=4, draws=draws) as bar:
        for i in range(10):
            clock.now += 1.0
            warm = i < 4
            bar.update(
                i + 1,
                stats(
                    acceptance=0.5 if warm else 0.9,
                    diverging=i in (1, 6, 7),
                    step_size=0.1 * (i + 1),
                ),
            )
    first, last = seen[0], seen[-1]
    assert first["phase"] == "warmup"
    assert first["done"] == 1
    assert first["acceptance_rate"] == [0.5, 0.5]
    assert first["eta"] == pytest.approx(9.0)
    middle = next(s for s in seen if s["done"] == 4)
    assert middle["phase"] == "sampling"  # warmup is over, its sums are gone
    assert middle["diverging"] == [0, 0]
    assert last["done"] == last["total"] == 10
    assert last["draws"] == 3
    assert last["acceptance_rate"] == pytest.approx([0.9, 0.9])
    assert last["diverging"] == [2, 2]
    assert last["step_size"] == [1.0, 1.0]
    assert last["chain_gradients_per_second"] == pytest.approx([10.0, 10.0])
    assert last["gradients_per_second"] == pytest.approx(20.0)
    assert last["eta"] == 0.0


def test_rate_limit(monkeypatch):
    clock = Clock(monkeypatch)
    seen = []

    def draws(done):
        return max(0, done - 4) // 2

    with Progress(seen.append, total=1000, chains=2) as bar:
        for i in range(1000):
            clock.now += 0.01
            bar.update(i + 1, stats())
    assert 45 <= len(seen) <= 52  # 10 s at five a second, and the end
    assert seen[-1]["done"] == 1000
    assert np.mean(seen[-1]["acceptance_rate"]) == pytest.approx(0.8)


def test_slow_refreshes_become_rare(monkeypatch):
    """A sink that needs 40 ms is called every 10 s: under 0.5 % of the run."""
    clock = Clock(monkeypatch)
    calls = []

    def slow(snapshot):
        clock.now += 0.04
        calls.append(snapshot)

    bar = Progress(slow, total=10_000, chains=1)
    begin = clock.now
    for i in range(10_000):
        clock.now += 0.1
        bar.update(i + 1)
    assert bar.seconds_spent < 0.005 * (clock.now - begin)
    assert len(calls) > 50


def test_every_step_counts_once(monkeypatch):
    """Across the edges of the buffer, and although the arrays of a step are used again."""
    Clock(monkeypatch)
    bar = Progress(None, total=10**6, chains=2)
    one = stats()
    for i in range(5000):
        one["acceptance_rate"][:] = i
        one["diverging"][:] = [i % 7 == 0, False]
        bar.update(i + 1, one)
        if i % 999 == 0:
            bar.snapshot()
    snapshot = bar.snapshot()
    assert snapshot["acceptance_rate"] == pytest.approx([2499.5, 2499.5])
    assert snapshot["diverging"] == [715, 0]


def test_eta_follows_the_present_rate(monkeypatch):
    clock = Clock(monkeypatch)
    seen = []
    bar = Progress(seen.append, total=120, chains=1)
    for i in range(100):
        clock.now += 10.0 if i < 20 else 1.0  # the first steps are slow
        bar.update(i + 1)
    assert seen[-1]["eta"] == pytest.approx(20.0)


@pytest.mark.parametrize("option", [False, None])
def test_silence(monkeypatch, capsys, option):
    """False never speaks; None does not speak of a run of no time, in a log or a terminal."""
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(option, total=5, chains=2) as bar:
            for i in range(5):
                bar.update(i + 1, stats())
        assert stream.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_lines_in_a_log(monkeypatch):
    clock = Clock(monkeypatch)
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with Progress(None, total=12, chains=2, warmup=4) as bar:
        for i in range(12):
            clock.now += 1.0
            bar.update(i + 1, stats(diverging=i == 9))
    lines = log.getvalue().splitlines()
    assert len(lines) == 3  # at 5 s, at 10 s, at the end
    assert lines[0] == (
        "HMC: sampling 5/12 (42 %), 2 chains, acceptance 0.80, 0 divergences, step size 0.1, "
        "20 gradients/s, 5 s elapsed, 7 s left"
    )
    assert lines[-1].startswith("HMC: sampling 12/12 (100 %), 2 chains, acceptance 0.80, 2 div")
    assert "\x1b" not in log.getvalue()


def test_line_at_the_end_when_asked_for(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with Progress(True, total=1, chains=1) as bar:
        bar.update(1, stats(1))
    assert len(log.getvalue().splitlines()) == 1


def test_table_in_a_terminal(monkeypatch):
    pytest.importorskip("rich")
    clock = Clock(monkeypatch)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    threads = threading.active_count()
    with Progress(None, total=6, chains=2, warmup=4) as bar:
        for i in range(6):
            clock.now += 0.6
            bar.update(i + 1, stats(diverging=i == 5))
            assert threading.active_count() == threads
    text = terminal.getvalue()
    for word in ("HMC", "warmup", "6/6", "draws", "acceptance", "divergences", "step size"):
        assert word in text
    assert "gradients/s" in text
    assert "\x1b[" in text


def test_lines_in_a_terminal_without_rich(monkeypatch):
    clock = Clock(monkeypatch)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name in [m for m in sys.modules if m.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    with Progress(None, total=4, chains=1) as bar:
        for i in range(4):
            clock.now += 1.0
            bar.update(i + 1, stats(1))
    assert "4/4 (100 %)" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_many_chains_are_summed_up():
    console = pytest.importorskip("rich.console")
    bar = Progress(None, total=10, chains=40)
    bar.update(1, stats(40, diverging=True))
    snapshot = bar.snapshot()
    out = console.Console(file=io.StringIO(), width=120)
    out.print(render_table(snapshot))
    text = out.file.getvalue()
    assert "+24" in text
    assert len(text.splitlines()) < 22
    assert "40 chains, acceptance 0.80, 40 divergences, " in format_line(snapshot)
    assert ", 1 divergence, " in format_line(snapshot | {"diverging": [0, 1]})


def ended(monkeypatch, option, stream, reason):
    """What is shown of a run that ends at step 4 of 10."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(option, total=10, chains=2) as bar:
        for i in range(4):
            clock.now += 1.0
            bar.update(i + 1, stats())
        bar.reason = reason


def test_a_run_that_stops_early_says_so(monkeypatch):
    log = io.StringIO()
    ended(monkeypatch, True, log, "max_seconds")
    assert log.getvalue().splitlines() == [
        "HMC: stopped early (max_seconds) 4/10 (40 %), 2 chains, acceptance 0.80, 0 divergences, "
        "step size 0.1, 20 gradients/s, 4 s elapsed"
    ]
    seen = []
    ended(monkeypatch, seen.append, log, "")
    assert seen[-1]["stopped"] == ""
    assert not any("stopped" in snapshot for snapshot in seen[:-1])
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=120)
    for snapshot in seen[-2:]:
        console.print(render_table(snapshot))
    before, after = console.file.getvalue().split("HMC")[1:]
    assert before.startswith(" sampling")
    assert after.startswith(" stopped early")
    assert "left" in before
    assert "left" not in after


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_only_a_run_that_ends_early_has_stopped():
    hmc, seen = HMC(small_target(), step_size=1e-3, num_leapfrog_steps=2), []
    draws = hmc.sample(10**7, warmup=0, progress=seen.append, max_seconds=0.3)
    assert seen[-1]["stopped"] == draws.settings["stopped"]["reason"] == "max_seconds"
    whole = hmc.sample(5, warmup=0, progress=seen.append)
    assert whole.complete
    assert "stopped" not in seen[-1]


def last(sampler, count, **options):
    """The last dict of a run, and its draws."""
    seen = []
    draws = sampler.sample(count, progress=seen.append, **options)
    return {key: seen[-1][key] for key in ("done", "total", "warmup", "draws")}, draws


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")
def test_counts_of_resumed_runs(tmp_path):
    """With resume= a run of its own begins; the same call with store= is the same run."""
    hmc = HMC(small_target(), step_size=1e-3, num_leapfrog_steps=2)
    found, draws = last(hmc, 5, warmup=4, thin=3)
    assert found == {"done": 19, "total": 19, "warmup": 4, "draws": 5}
    found, draws = last(hmc, 2, thin=4, resume=draws)  # draws at steps 16 and 20 after warmup
    assert found == {"done": 5, "total": 5, "warmup": 0, "draws": 2}
    options = {"warmup": 4, "thin": 3, "store": tmp_path / "run"}
    found, draws = last(hmc, 10**6, max_seconds=0.2, **options)
    assert found["draws"] == len(draws)
    assert found["total"] == 3_000_004
    again, more = last(hmc, 10**6, max_seconds=0.2, **options)
    assert again["draws"] == len(more) > len(draws)
    assert again["done"] == more.state.step > found["done"]
    assert (again["total"], again["warmup"]) == (3_000_004, 4)


def test_counts_of_a_cyclical_schedule(monkeypatch):
    """Its draws come at the end of each cycle of 80 steps."""
    schedule = rb.schedules.cyclical(4, 80, draws_per_cycle=3)
    sgld = rb.SGLD(small_target(), step_size=1e-4, schedule=schedule, batch_size=10)
    for name in ("_INTERVAL", "_COST_FACTOR"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr("ribbit.sample._SECONDS", 0.0)
    seen = []
    first = sgld.sample(5, warmup=0, chains=2, progress=seen.append)
    begun = first.state.step
    sgld.sample(7, resume=first, progress=seen.append)
    places = [80 * cycle + place for cycle in range(4) for place in (67, 74, 80)]
    assert begun == places[4] == 154
    assert len(seen) > 8
    for snapshot in seen:
        low = begun if snapshot["total"] == 320 - begun else 0
        assert snapshot["total"] in (begun, 320 - begun)
        assert snapshot["draws"] == sum(low < step <= low + snapshot["done"] for step in places)


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_the_total_of_a_run_with_a_rule_follows_what_it_finds():
    seen = []
    hmc = HMC(small_target(), step_size=0.02, num_leapfrog_steps=3)
    rule = rb.Converged(rhat=1.05, ess=40)
    draws = hmc.sample(until=rule, max_draws=3_000, warmup=30, progress=seen.append)
    assert seen[-1]["done"] == seen[-1]["total"] == 30 + len(draws)
    for snapshot in seen[:-1]:
        assert snapshot["done"] < snapshot["total"] <= 3_030 or snapshot["done"] == seen[-1]["done"]


def test_fits_call_their_rate_by_its_name(monkeypatch):
    seen = []
    rb.DeepEnsemble(small_target(), members=2, learning_rate=0.01).fit(3, progress=seen.append)
    rb.EnsembleStart(max_steps=40).fit(small_target(), 2, progress=seen.append)
    for snapshot in seen[1:]:
        assert "step_size" not in snapshot
        assert len(snapshot["learning_rate"]) == 2
        assert ", learning rate " in format_line(snapshot)
    assert ", learning rate 0.01, " in format_line(seen[1])


class Display:
    """IPython's display of a notebook: cells that are updated in place."""

    def __init__(self):
        self.cells, self.updates = [], 0

    def display(self, cell, *, display_id):
        assert display_id is True
        self.cells.append(cell)
        return SimpleNamespace(update=functools.partial(self.put, len(self.cells) - 1))

    def put(self, place, cell):
        self.cells[place] = cell
        self.updates += 1


@pytest.mark.parametrize("kernel", [True, False])
def test_a_cell_of_a_notebook(monkeypatch, kernel):
    shown, log = Display(), io.StringIO()
    shell = SimpleNamespace(kernel=object()) if kernel else object()
    module = SimpleNamespace(get_ipython=lambda: shell, display=shown)
    monkeypatch.setitem(sys.modules, "IPython", module)
    ended(monkeypatch, None, log, "interrupted")
    ended(monkeypatch, False, log, "")
    if not kernel:  # IPython in a terminal, or in another program
        assert not shown.cells
        return
    assert log.getvalue() == ""
    (cell,) = shown.cells
    assert shown.updates == 4  # of 4 steps and the end; the first made the cell
    assert repr(cell).startswith("HMC: stopped early (interrupted) 4/10 (40 %), 2 chains, acc")
    html = cell._repr_html_()
    assert '<progress value="4" max="10"' in html
    assert "<caption>HMC: stopped early (interrupted)</caption>" in html
    assert html.count("<tr>") == 3  # names, and two chains
    assert "left" not in html.rpartition("</table>")[2]


def test_a_broken_notebook_costs_the_display_alone(monkeypatch):
    def fail(*args, **named):
        raise OSError("gone")

    module = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=1), display=SimpleNamespace(display=fail)
    )
    monkeypatch.setitem(sys.modules, "IPython", module)
    with pytest.warns(rb.errors.RibbitWarning, match="expected to show the progress, got OSError"):
        ended(monkeypatch, None, io.StringIO(), "")


def test_errors():
    hmc = HMC(small_target(), step_size=1e-3, num_leapfrog_steps=2)
    for wrong in ("yes", 1, int):
        with pytest.raises(TypeError, match=r"\[HMC.sample\] expected progress as bool"):
            hmc.sample(5, progress=wrong)


def test_an_error_of_the_callable_is_the_users(monkeypatch):
    error = RuntimeError("mine")

    def call(snapshot):
        raise error

    with pytest.raises(RuntimeError) as caught:
        HMC(small_target(), step_size=1e-3, num_leapfrog_steps=2).sample(5, progress=call)
    assert caught.value is error


def test_an_error_inside_ends_the_display_quietly(monkeypatch):
    pytest.importorskip("rich")
    clock = Clock(monkeypatch)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    seen = []

    def run():
        with (
            Progress(True, total=5, chains=1) as bar,
            Progress(seen.append, total=5, chains=1) as other,
        ):
            for i in range(2):
                clock.now += 5.0
                bar.update(i + 1, stats(1))
                other.update(i + 1, stats(1))
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is back
    assert len(seen) == 2


# the same draws twice: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_draws_do_not_depend_on_it(capsys):
    target = small_target()
    hmc = HMC(target, step_size=0.01, num_leapfrog_steps=5)
    silent = hmc.sample(30, warmup=5, chains=3, seed=4, progress=False)
    seen = []
    for option in (None, True, seen.append):
        loud = hmc.sample(30, warmup=5, chains=3, seed=4, progress=option)
        np.testing.assert_array_equal(loud.positions, silent.positions)
        for name, values in silent.stats.items():
            np.testing.assert_array_equal(loud.stats[name], values)
    last = seen[-1]
    assert last["done"] == last["total"] == 35
    assert last["draws"] == 30
    np.testing.assert_allclose(
        last["acceptance_rate"], silent.stats["acceptance_rate"].mean(axis=1), rtol=1e-12
    )


def test_update_costs_next_to_nothing():
    """Under 20 us even on a loaded machine; about 1 us on a free one. Control: a real refresh."""
    bar = Progress(None, total=10**6, chains=4)
    one = stats(4)
    begin = time.perf_counter()
    for i in range(20_000):
        bar.update(i + 1, one)
    cost = (time.perf_counter() - begin) / 20_000
    begin = time.perf_counter()
    for _ in range(50):
        format_line(bar.snapshot())
    assert cost < 20e-6
    assert (time.perf_counter() - begin) / 50 > cost
