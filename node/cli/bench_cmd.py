"""`p2ptrain bench`: measurements, each a table on the terminal, JSON lines, or a picture."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import options
from node.cli.telling import Telling
from node.cli.waiting import Waiting

if TYPE_CHECKING:
    from node.bench.base import Benchmark, Row

app = typer.Typer(help="Measure codecs, aggregators, learning rules and the network on this machine.")

Json = options.Json
FULL_NUMEL, QUICK_NUMEL = 25_000_000, 1 << 22
"""Parameters: byte-lm `small`, and enough to be larger than a core's caches."""

QUICK_TURNS, TURNS = 5, 15
"""Odd, so that the median is one of them; fifteen hold it within a few percent."""
COMPOSED = "all,nnm+krum,nnm+trimmed_mean,bucketing+trimmed_mean,clipping+nnm+trimmed_mean"
"""All rules, and some with a stage before them."""

FULL_BLOB_MIB, FULL_TENSOR_MIB, QUICK_MIB = 256, 64, 16
"""MiB: a snapshot of a 64M-parameter model, byte-lm `small` in fp32, and enough that the first round trips are few."""
REPETITIONS, QUICK_REPETITIONS = 5, 3
"""Odd, so that the median is one of them."""

RACE_STEPS, QUICK_RACE_STEPS, RACE_HOSTS, QUICK_RACE_HOSTS = 400, 40, 4, 2
RACE_LIMIT_S = 60.0
"""Four hosts on two cores do 400 steps of a nano model in less."""
RACE_LINKS, QUICK_RACE_LINKS = "5,20,100,1000", "20,1000"

GRAPH_NODES, QUICK_GRAPH_NODES = "8,10,25,32", "8,10"
"""Two powers of two, and two numbers that no grid of twos or fours fills."""

Plot = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw a picture (needs matplotlib).")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: under a minute.")]


Jobs = Annotated[int, typer.Option(min=1, max=256, help="Runs at a time, a process and a thread each.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Torch's threads. (default: 2, or as many cores as there are)")
]
Turns = Annotated[int | None, typer.Option(min=1, help="Times that each is measured. (default: 15; quick: 5)")]
Seed = Annotated[int, typer.Option(min=0, help="Of the random vectors.")]


@app.callback(invoke_without_command=True)
def every(context: typer.Context, json: Json = False) -> None:
    """Measure codecs, aggregators, learning rules and the network. Without a name: each at small sizes, in some three
    minutes."""
    if context.invoked_subcommand is None:
        from node.bench.timing import cores

        codecs(quick=True, json=json)
        aggregators(quick=True, json=json)
        graphs_(quick=True, json=json)
        for name in SWARM_HELP:
            _study(name, {}, quick=True, json=json, jobs=cores())
        quality(quick=True, json=json, jobs=cores())
        blob(quick=True, json=json)
        average(quick=True, json=json)
        metrics(quick=True, json=json)


@app.command()
def codecs(
    compressor: Annotated[str, typer.Option(metavar="A,B", help="Compressors, or all.")] = "all",
    numel: Annotated[int | None, typer.Option(min=1, help="Parameters. (default: 25M; quick: 4M)")] = None,
    threads: Threads = None,
    turns: Turns = None,
    seed: Seed = 0,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure speed, size and error of the compressors, against a copy, plain torch, and hivemind where it is
    installed."""
    from node.bench.benchmarks import BENCHMARKS
    from node.bench.codecs import VARIANTS
    from node.bench.lists import names_in
    from p2ptrain import compress

    benchmark = BENCHMARKS.get(
        "codecs",
        compressors=names_in(compressor, [*compress.names(), *VARIANTS], "--compressor"),
        **_on_vectors(numel, threads, turns, seed=seed, quick=quick),
    )
    _carry_out(benchmark, json=json, plot=plot)


@app.command()
def aggregators(
    aggregator: Annotated[str, typer.Option(metavar="A,B", help="Aggregators, or all.")] = COMPOSED,
    numel: Annotated[int | None, typer.Option(min=1, help="Parameters of a vector. (default: 25M; quick: 4M)")] = None,
    vectors: Annotated[str, typer.Option(metavar="4,8", help="How many are aggregated.")] = "8",
    f: Annotated[str, typer.Option("--f", metavar="1,2", help="Liars to withstand, where n allows.")] = "2",
    threads: Threads = None,
    device: Annotated[str, typer.Option(help="cpu, or a GPU: cuda.")] = "cpu",
    turns: Turns = None,
    seed: Seed = 0,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure time and memory of the aggregators, in plain means; against plain torch, and byzfl where it is
    installed."""
    from node.bench.benchmarks import BENCHMARKS
    from node.bench.lists import names_in, numbers_in
    from p2ptrain import aggregate

    benchmark = BENCHMARKS.get(
        "aggregators",
        aggregators=names_in(aggregator, aggregate.names(), "--aggregator"),
        vectors=numbers_in(vectors, "--vectors", minimum=1),
        f=numbers_in(f, "--f"),
        device=device,
        **_on_vectors(numel, threads, turns, seed=seed, quick=quick),
    )
    _carry_out(benchmark, json=json, plot=plot)


@app.command(name="graphs")
def graphs_(
    nodes: Annotated[
        str | None, typer.Option(metavar="8,10", help="Numbers of nodes. (default: 8,10,25,32; quick: 8,10)")
    ] = None,
    group: Annotated[str, typer.Option(metavar="2,4", help="Most members that average with each other.")] = "2,4",
    copies: Annotated[str, typer.Option(metavar="1,2", help="Copies sent, after which is looked.")] = "1,2,4,8",
    draws: Annotated[int, typer.Option(min=1, max=1000, help="Orders of the members to average over.")] = 8,
    seed: Seed = 0,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Compute how near to their mean members come for the copies that they send, by graph. No training, no network."""
    from node.bench.benchmarks import BENCHMARKS
    from node.bench.lists import decimals_in, numbers_in

    benchmark = BENCHMARKS.get(
        "graphs",
        nodes=numbers_in(nodes or (QUICK_GRAPH_NODES if quick else GRAPH_NODES), "--nodes", minimum=1),
        groups=numbers_in(group, "--group", minimum=1),
        copies=decimals_in(copies, "--copies"),
        draws=draws,
        seed=seed,
    )
    _carry_out(benchmark, json=json, plot=plot)


@app.command()
def gpu(
    device: Annotated[str, typer.Option(help="cuda, cuda:1; cpu runs the same code.")] = "cuda",
    numel: Annotated[int | None, typer.Option(min=1, help="Parameters of a vector. (default: 25M; quick: 4M)")] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Of the byte-lm whose steps are timed: pico, nano, micro, small. (default: small; quick: nano)"
        ),
    ] = None,
    compiled: Annotated[bool, typer.Option(help="Also time steps through torch.compile.")] = True,
    threads: Threads = None,
    turns: Turns = None,
    seed: Seed = 0,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure what the swarm's work costs a machine that trains on a GPU, and which of it pays there: copies, codecs,
    aggregation, steps, memory."""
    from node.bench.benchmarks import BENCHMARKS

    benchmark = BENCHMARKS.get(
        "gpu",
        device=device,
        size=size or ("nano" if quick else "small"),
        compile=compiled,
        **_on_vectors(numel, threads, turns, seed=seed, quick=quick),
    )
    _carry_out(benchmark, json=json, plot=plot)


def _on_vectors(
    numel: int | None, threads: int | None, turns: int | None, *, seed: int, quick: bool
) -> dict[str, object]:
    """The options that measurements of plain vectors have in common, with their defaults."""
    from node.bench.timing import cores

    return {
        "numel": numel or (QUICK_NUMEL if quick else FULL_NUMEL),
        "threads": threads or min(2, cores()),
        "seed": seed,
        "rounds": turns or (QUICK_TURNS if quick else TURNS),
    }


Repetitions = Annotated[int | None, typer.Option(min=1, max=1000, help="Times it is done. (default: 5; quick: 3)")]


@app.command()
def blob(
    mib: Annotated[
        int | None, typer.Option(min=1, max=4096, help="MiB of random bytes. (default: 256; quick: 16)")
    ] = None,
    repetitions: Repetitions = None,
    seed: Seed = 0,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure sending a blob from one process to another, by gossip over libp2p; against bare noise+yamux, and TCP."""
    from node.bench.benchmarks import BENCHMARKS

    benchmark = BENCHMARKS.get(
        "blob",
        mib=mib or (QUICK_MIB if quick else FULL_BLOB_MIB),
        repetitions=repetitions or (QUICK_REPETITIONS if quick else REPETITIONS),
        seed=seed,
    )
    _carry_out(benchmark, json=json, plot=plot)


@app.command()
def average(
    peers: Annotated[int, typer.Option(min=2, max=16, help="Processes that average.")] = 4,
    mib: Annotated[
        int | None, typer.Option(min=1, max=1024, help="MiB of fp32 a peer. (default: 64; quick: 16)")
    ] = None,
    codec: Annotated[str, typer.Option(help="How tensors travel: none (fp32) or q2.")] = "none",
    hivemind: Annotated[
        Path | None, typer.Option(metavar="PYTHON", help="One that has hivemind, to average in turns with.")
    ] = None,
    repetitions: Repetitions = None,
    seed: Seed = 0,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure peers that average a tensor each, by gossip over libp2p, a process each; against hivemind where it is
    installed."""
    from node.bench.benchmarks import BENCHMARKS

    benchmark = BENCHMARKS.get(
        "average",
        peers=peers,
        mib=mib or (QUICK_MIB if quick else FULL_TENSOR_MIB),
        codec=codec,
        hivemind=hivemind,
        repetitions=repetitions or (QUICK_REPETITIONS if quick else REPETITIONS),
        seed=seed,
    )
    _carry_out(benchmark, json=json, plot=plot)


@app.command()
def metrics(
    peers: Annotated[int, typer.Option(min=1, max=100_000, help="Peers that the node knows.")] = 200,
    size: Annotated[str, typer.Option(help="Of the byte-lm whose step is timed: pico, nano, micro, small.")] = "nano",
    repetitions: Repetitions = None,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure what a node's metrics cost: a scrape, its size, a round's event, and all of it against a training
    step."""
    from node.bench.benchmarks import BENCHMARKS

    count = repetitions or (QUICK_REPETITIONS if quick else TURNS)
    _carry_out(BENCHMARKS.get("metrics", peers=peers, size=size, repetitions=count), json=json, plot=plot)


CALIBRATE_S, QUICK_CALIBRATE_S = 10.0, 2.0
"""Seconds of steps: some hundred of byte-lm nano on a core."""


@app.command()
def calibrate(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write what `plan` and `simulate` read by --calibration.")
    ] = None,
    task: Annotated[str, typer.Option(help="Whose step is timed.")] = "byte-lm",
    size: Annotated[str, typer.Option(help="Of the byte-lm: pico, nano, micro, small.")] = "nano",
    batch: Annotated[int, typer.Option(min=1, help="Of its steps.")] = 16,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Trainers at once: nodes that share this machine.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long steps are timed. (default: 10; quick: 2)")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or a GPU: cuda.")] = "cpu",
    network: Annotated[bool, typer.Option(help="Also send blobs to another process, over libp2p.")] = True,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure this machine for `p2ptrain plan` and `p2ptrain simulate`: a step, codecs, averaging, signatures, libp2p
    on loopback, and with --processes rounds of real nodes."""
    from node.bench.benchmarks import BENCHMARKS

    benchmark = BENCHMARKS.get(
        "calibrate",
        task=task,
        size=size,
        batch=batch,
        processes=processes,
        seconds=seconds or (QUICK_CALIBRATE_S if quick else CALIBRATE_S),
        numel=1 << 18 if quick else 1 << 22,
        repetitions=QUICK_REPETITIONS if quick else TURNS,
        device=device,
        network=network,
        out=out,
    )
    _carry_out(benchmark, json=json, plot=plot)


@app.command()
def race(
    links: Annotated[
        str | None,
        typer.Option(
            metavar="5,20", help="Speeds of the hosts' links, Mbit/s. (default: 5,20,100,1000; quick: 20,1000)"
        ),
    ] = None,
    to: Annotated[str, typer.Option(metavar="2.0,1.9", help="Held-out losses to reach.")] = "2.0,1.9",
    contestants: Annotated[str, typer.Option(metavar="A,B", help="Who races, or all.")] = "all",
    hosts: Annotated[
        int | None,
        typer.Option(min=2, max=16, help="Network namespaces, a process each. (default: 4; quick: 2)"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=4, help="Of every host; learning rates end with the last. (default: 400; quick: 40)"),
    ] = None,
    limit_s: Annotated[float, typer.Option(min=1, help="Seconds for each, on each link.")] = RACE_LIMIT_S,
    size: Annotated[
        str | None, typer.Option(help="Of the byte-lm: pico, nano, micro, small. (default: nano; quick: pico)")
    ] = None,
    data: options.Data = None,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak, of all.")] = 3e-3,
    hivemind: Annotated[
        Path | None, typer.Option(metavar="PYTHON", help="One that has hivemind and safetensors: it then races, too.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write race.json and curves.csv there, as it goes on.")
    ] = None,
    seed: Seed = 0,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure the time to a loss on slow and fast links, in network namespaces: swarms of ours against torch's
    DistributedDataParallel, and hivemind where it is installed. Needs root (Linux)."""
    from node.bench.benchmarks import BENCHMARKS
    from node.bench.lists import decimals_in, names_in
    from node.bench.race.contestants import CONTESTANTS
    from node.bench.race.spec import RaceSpec

    names = names_in(contestants, CONTESTANTS.names(), "--contestants")
    given = {"hivemind": {"python": hivemind}}
    spec = RaceSpec(
        hosts=hosts or (QUICK_RACE_HOSTS if quick else RACE_HOSTS),
        steps=steps or (QUICK_RACE_STEPS if quick else RACE_STEPS),
        size=size or ("pico" if quick else "nano"),
        data=None if data is None else str(data.expanduser().absolute()),
        learning_rate=learning_rate,
        seed=seed,
    )
    benchmark = BENCHMARKS.get(
        "race",
        contestants=[CONTESTANTS.get(name, **given.get(name, {})) for name in names],
        links=decimals_in(links or (QUICK_RACE_LINKS if quick else RACE_LINKS), "--links"),
        to=decimals_in(to, "--to"),
        spec=spec,
        limit_s=limit_s,
        out=out,
    )
    _carry_out(benchmark, json=json, plot=plot)


@app.command()
def quality(
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Data, methods, predictions: configs/studies/quality.toml.")
    ] = None,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Keep runs.jsonl and rows.parquet there; runs found there are not repeated."
        ),
    ] = None,
    plot: Plot = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Final loss against bits sent, after a plan: all methods are tuned alike and reported on other data, with
    predictions made first. One process, no network."""
    from node.bench import plot as pictures
    from node.bench.benchmarks import BENCHMARKS
    from node.bench.quality import parquet
    from node.bench.quality.quality_plan import quick_plan, read_plan
    from node.system.errors import UsageError

    if quick == (plan is not None):
        raise UsageError("bench quality takes a plan", "give --plan FILE.toml, or --quick for a small one of its own")
    found = quick_plan() if plan is None else read_plan(plan)
    pictures.check(plot)
    parquet.check(out)
    with Waiting() as say:
        benchmark = BENCHMARKS.get("quality", plan=found, out=out, jobs=jobs, say=say)
        rows = _resumable(benchmark, json=json, out=out, say=say)
    _show(benchmark, rows, json=json, plot=plot)


def _study(
    name: str,
    given: dict[str, object],
    *,
    quick: bool,
    json: bool,
    baselines: bool = True,
    averaged: bool = False,
    jobs: int = 1,
    out: Path | None = None,
    plot: Path | None = None,
) -> None:
    from node.bench import plot as pictures
    from node.bench.benchmarks import BENCHMARKS
    from node.bench.swarm.presets import asked
    from node.bench.swarm.study import Study, with_baselines

    pictures.check(plot)
    refused: dict[str, str] = {}
    recipes = asked(name, given, quick=quick).recipes(refused)
    if baselines and name == "strategies":
        recipes = with_baselines(recipes)
    extra = {"averaged": averaged} if name == "robust" else {}
    with Waiting() as say:
        study = Study(benchmark=name, recipes=recipes, out=out, jobs=jobs, say=say, refused=refused)
        benchmark = BENCHMARKS.get(name, study=study, **extra)
        rows = _resumable(benchmark, json=json, out=out, say=say)
    _show(benchmark, rows, json=json, plot=plot)


def _resumable(benchmark: "Benchmark", *, json: bool, out: Path | None, say: Waiting) -> list["Row"]:
    try:
        return _measured(benchmark, json=json)
    except KeyboardInterrupt:
        if out is not None:
            say(0, 0, f"Interrupted. The same command goes on: finished runs are in {out}")
        raise


def _carry_out(benchmark: "Benchmark", *, json: bool, plot: Path | None) -> None:
    from node.bench import plot as pictures

    pictures.check(plot)
    with Telling(f"measuring {benchmark.name}", quiet=json) as tell:
        rows = _measured(benchmark, json=json, tell=tell)
    _show(benchmark, rows, json=json, plot=plot)


def _measured(benchmark: "Benchmark", *, json: bool, tell: Callable[[str], None] = lambda line: None) -> list["Row"]:
    from node.bench import output

    rows = []
    for row in benchmark.run():
        rows.append(row)
        tell(f"measuring {benchmark.name}: {len(rows)} done, {next(iter(row.values()), '')} the last")
        if json:
            typer.echo(output.to_line(benchmark.name, row))
    return rows


def _show(benchmark: "Benchmark", rows: list["Row"], *, json: bool, plot: Path | None) -> None:
    from node.bench import output
    from node.bench import plot as pictures
    from node.events.lines import LastingConsole

    if not json:
        output.show(LastingConsole(), benchmark.summaries(rows))
    if plot is not None:
        pictures.write(plot, lambda figure: benchmark.draw(rows, figure))


SWARM_HELP = {
    "strategies": "Final loss against bits sent: every strategy with every compressor. One process, no network.",
    "robust": "Every attack against every aggregator: who holds, who falls. One process, no network.",
}


def _swarm_command(name: str) -> Callable[..., None]:
    """The two commands take the same options, and differ in what they do when these are not given."""

    def command(
        strategy: Annotated[str | None, typer.Option(metavar="A,B", help="Sync strategies, or all.")] = None,
        compressor: Annotated[str | None, typer.Option(metavar="A,B", help="Compressors, or all.")] = None,
        aggregator: Annotated[str | None, typer.Option(metavar="A,B", help="Aggregators, or all.")] = None,
        attack: Annotated[str | None, typer.Option(metavar="A,B", help="What liars do; none; all.")] = None,
        byzantine: Annotated[str | None, typer.Option(metavar="1,2", help="How many of the nodes lie.")] = None,
        seeds: Annotated[str | None, typer.Option(metavar="0,1", help="Runs of each, for mean and spread.")] = None,
        vary: Annotated[
            list[str] | None,
            typer.Option(metavar="KEY=A,B", help="Any other setting's values: train.learning_rate=1e-3,3e-3."),
        ] = None,
        nodes: Annotated[int | None, typer.Option(help="Nodes of the swarm.")] = None,
        degree: Annotated[int | None, typer.Option(help="Neighbours of each.")] = None,
        graph: Annotated[str | None, typer.Option(help="regular, or dumbbell: two halves and one edge.")] = None,
        rounds: options.Rounds = None,
        inner_steps: options.InnerSteps = None,
        steps: Annotated[
            int | None, typer.Option(min=1, help="Inner steps of a run, in place of rounds: for several inner-steps.")
        ] = None,
        late_steps: Annotated[
            int | None, typer.Option(help="Steps taken between publishing and a round's end.")
        ] = None,
        task: options.TaskName = None,
        size: Annotated[str | None, typer.Option(help="Of byte-lm: pico, nano, micro, small, base.")] = None,
        data: options.Data = None,
        partition: Annotated[
            str | None, typer.Option(metavar="A,B", help="How data are dealt out: iid, dirichlet, label, domain.")
        ] = None,
        config: options.Files = None,
        set_: options.Sets = None,
        baselines: Annotated[bool, typer.Option(help="Also one node alone, and all as one (strategies).")] = True,
        averaged: Annotated[bool, typer.Option("--averaged", help="Judge the nodes' average (robust).")] = False,
        jobs: Jobs = 1,
        out: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Append each finished run; what is found there is not run again."),
        ] = None,
        plot: Plot = None,
        quick: Quick = False,
        json: Json = False,
    ) -> None:
        given: dict[str, object] = {
            "strategy": strategy,
            "compressor": compressor,
            "aggregator": aggregator,
            "attack": attack,
            "byzantine": byzantine,
            "seeds": seeds,
            "vary": vary,
            "nodes": nodes,
            "degree": degree,
            "graph": graph,
            "rounds": rounds,
            "inner_steps": inner_steps,
            "steps": steps,
            "late_steps": late_steps,
            "task": task,
            "size": size,
            "data": None if data is None else str(data.expanduser().absolute()),
            "partition": partition,
            "config": config,
            "set_": set_,
        }
        _study(
            name,
            given,
            quick=quick,
            json=json,
            baselines=baselines,
            averaged=averaged,
            jobs=jobs,
            out=out,
            plot=plot,
        )

    return command


for _name, _help in SWARM_HELP.items():
    app.command(_name, help=_help)(_swarm_command(_name))
