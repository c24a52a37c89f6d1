"""``tunedb apply``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..layers import (
    layer_name,
    layer_option,
    layered_target,
    prior_of,
    prior_options,
    resolve_layers,
)
from ..module import (
    bind_words,
    compile_target_option,
    label,
    lowering_of,
    lowering_options,
    lowering_words,
)
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...plugins.metaschedule.deploy.apply import Use
    from ...plugins.metaschedule.deploy.network import Lowering
    from ...records import Target

#: Place of predictions where there is no database.
_NO_DATABASE = ":memory:"

COLUMNS = (
    Column("function", "function", flexible=True),
    Column("kind", "program"),
    Column("share", "share of the best", text.percent, right=True),
    Column("record", "record", right=True),
    Column("workload_id", "workload", right=True),
    Column("mean", "mean", text.seconds, right=True),
    Column("layer", "layer", layer_name, flexible=True),
    Column("doubt"),
    Column("threads"),
    Column("file"),
    Column("target"),
)


@click.command()
@click.argument("module")
@click.option(
    *("-o", "--output", "output"),
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write: a library (.so, .dylib, .dll, .tar), or TVMScript (.py).",
)
@click.option("--script", is_flag=True, help="Write TVMScript regardless of the file's suffix.")
@click.option("--function", metavar="NAME", help="Use only this PrimFunc of the module.")
@compile_target_option
@click.option(
    "--all", "all_", is_flag=True, help="Write nothing unless every function has a record."
)
@click.option(
    "--predict",
    is_flag=True,
    help="Where there is no record, predict a program from those of others; measure nothing.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare the results of each program with those of the unscheduled function.",
)
@lowering_options
@layer_option
@prior_options
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    module: str,
    output: Path,
    script: bool,
    function: str | None,
    target: str | None,
    compatible: bool,
    all_: bool,
    predict: bool,
    verify: bool,
    layout: str,
    no_prepack: bool,
    bind: dict[str, Any],
    algorithms: str,
    layers: tuple[str, ...],
    prior: str | None,
    no_prior: bool,
) -> None:
    """Compile a module with the best stored programs, or write its scheduled TVMScript.

    MODULE is a TVMScript file, package.module:name, or an .onnx or .pt2 file; Python files are run.
    A function without a record is compiled unscheduled, on a GPU with TVM's default schedules. The
    file appears complete or not at all; if no function has a record, nothing is written. --script
    writes the scheduled module as TVMScript, a Relax program lowered and fused.
    A network that was tuned with --layout, --no-prepack or --algorithms needs them here, too, and
    one with symbolic sizes a --bind for each.
    Where the database has no record for a function, the first layer that has one answers.
    --predict measures nothing: a function without a record gets the best of many drafts by a model
    of the stored programs. The table has the share of the best that such predictions reached when
    they were measured. The default target is this processor then, if no record names one.
    --verify runs each program and its unscheduled function with equal random arguments. A function
    whose program computes something else is compiled without it, and a line names it.

    Example:
      tunedb apply model.py -o model.so
      tunedb apply my.kernels:matmul -o matmul_scheduled.py
      tunedb apply net.onnx -o net.so --target llvm --all
      tunedb apply bert.onnx -o bert.so --bind batch=1 --bind length=128
      tunedb apply model.py -o model.so --layer team.db
      tunedb apply net.onnx -o net.so --predict --verify
    """
    layers = resolve_layers(settings, layers)
    url, device = _database_and_target(settings, target, layers, predict=predict)
    lowering = lowering_of(layout, no_prepack, bind, algorithms)
    options = _CompileOptions(
        *(url, device.attributes, compatible, all_, predict, verify),
        *(layers, prior_of(prior, no_prior), lowering),
    )
    uses = _write(settings, module, output, script, function, options)
    rows = [
        {
            "function": use.function,
            "kind": use.kind,
            "share": use.share,
            "record": use.record_id,
            "workload_id": use.workload_id,
            "mean": use.mean,
            "layer": use.layer,
            "doubt": use.doubt,
            "threads": use.threads,
            "file": str(output),
            "target": label(device),
        }
        for use in uses
    ]
    hidden = {"layer"} if all(use.layer is None for use in uses) else set()
    hidden |= set() if predict else {"kind", "share"}
    columns = tuple(Column(c.key) if c.key in hidden else c for c in COLUMNS)
    print_rows(settings, columns, rows)
    missing = sum(use.kind == "default" for use in uses)
    unknown = sum(use.kind == "predicted" and use.share is None for use in uses)
    settings.note(f"Wrote {output} for {label(device)}")
    if verify:
        verified = sum(use.kind != "default" and use.doubt is None for use in uses)
        settings.note(
            f"{text.count(verified, 'program')} verified against the unscheduled functions"
        )
    if unknown:
        settings.note(
            f"the share of the best is unknown for {text.count(unknown, 'function')}: no stored "
            "workload is as like them as in measured predictions"
        )
    if device.is_cpu:
        _note_threads(settings, uses)
    if missing:
        settings.note(
            f"{text.count(missing, 'function')} without a record; "
            f"for the reason, run: tunedb explain module {module}{bind_words(bind)}"
        )


def _database_and_target(
    settings: Settings, words: str | None, layers: tuple[str, ...], *, predict: bool
) -> tuple[str, Target]:
    """Return the URL of the database, and the target that `words` name.

    A prediction needs no database, and takes this processor as target if no record names one.
    """
    from ...errors import NotFoundError, SchemaError

    url = settings.locate().url
    try:
        with reading(settings) as store:
            return url, layered_target(settings, store, words, layers)
    except (NotFoundError, SchemaError) as error:
        is_missing = isinstance(error, NotFoundError) or url == _NO_DATABASE
        if not (predict and is_missing):
            raise
    from ...plugins.metaschedule.modules import to_target
    from ...plugins.metaschedule.tuning.defaults import target_of
    from ...storage.engine import parse_url, sqlite_path

    path = sqlite_path(parse_url(url))
    is_there = path is None or path.exists()
    return url if is_there else _NO_DATABASE, to_target(target_of(words, is_remote=False))


def _note_threads(settings: Settings, uses: list[Use]) -> None:
    """Print the number of threads of the records' measurements; layers do not have it."""
    counts = {use.threads for use in uses if use.record_id is not None and use.layer is None}
    if len(counts) == 1 and None not in counts:
        (count,) = counts
        settings.note(
            f"The records were measured with TVM_NUM_THREADS={count}; set it where the file runs"
        )
    elif counts:
        numbers = sorted(map(text.threads, counts))
        settings.note(
            f"The records were measured with {' and '.join(numbers)}; to measure them with one "
            "number, run: tunedb revalidate"
        )


@dataclass(frozen=True, slots=True)
class _CompileOptions:
    """Database, target, sources of records and lowering of a compilation."""

    url: str
    target: Any
    compatible: bool
    all: bool
    predict: bool
    verify: bool
    layers: tuple[str, ...]
    prior: str
    lowering: dict[str, Any]


def _write(
    settings: Settings,
    module: str,
    output: Path,
    script: bool,
    function: str | None,
    options: _CompileOptions,
) -> list[Use]:
    """Compile or schedule the module, write it, and return the record of each function."""
    from ...errors import UsageError
    from ...plugins.metaschedule import Database
    from ...plugins.metaschedule.deploy.apply import (
        better_lowering,
        compile,
        notes_of,
        require_library,
        schedule,
        write_library,
    )
    from ...plugins.metaschedule.deploy.network import Lowering
    from ...plugins.metaschedule.module_source import is_relax, load_module
    from ...system.files import write_whole

    source = Path(module.partition(".py:")[0] + ".py" if ".py:" in module else module)
    if source.exists() and output.exists() and output.samefile(source):
        raise UsageError(f"{output} is the module itself; write to another file")
    as_script = script or output.suffix == ".py"
    if not as_script:
        require_library(output)
    how: dict[str, Any] = options.lowering | {
        "trials": 0 if options.predict else None,
        "verify": options.verify,
    }
    with progress_bar(settings, None) as progress:
        progress.describe("reading")
        mod = load_module(module, function=function)
        with Database(
            options.url,
            target=options.target,
            fallback="compatible" if options.compatible else "exact",
            read_only=options.url != _NO_DATABASE,
            layers=options.layers,
            prior=options.prior,
        ) as database:
            if as_script:
                mod, uses = schedule(mod, database, on_step=progress.show, **how)
            else:
                compiled = compile(mod, database, on_step=progress.show, **how)
                uses = list(compiled.uses)
            hint = ""
            missing = [use.function for use in uses if use.kind == "default"]
            is_other = 2 * len(missing) > len(uses) or any("conv2d" in name for name in missing)
            if is_relax(mod) and is_other:
                progress.describe("comparing layouts")
                lowering = Lowering(**options.lowering)
                hint = _hint(better_lowering(mod, database, None, lowering))
    notes = notes_of(uses, predicts=options.predict) if as_script else compiled.notes
    for note in notes:
        settings.note(note)
    if options.all or not options.predict:
        _require(module + bind_words(options.lowering["bind"]), uses, hint, all_=options.all)
    if as_script:
        write_whole(output, mod.script(show_meta=True) + "\n")
    else:
        with progress_bar(settings, None) as progress:
            progress.describe("linking")
            write_library(compiled.executable, output)
    if hint:
        settings.note(f"{hint[0].upper()}{hint[1:]}")
    return uses


def _hint(lowering: Lowering | None) -> str:
    """Return the options with which more functions have a record; empty for none."""
    if lowering is None:
        return ""
    words = lowering_words(
        str(lowering.layout),
        no_prepack=lowering.prepack is False,
        algorithms=lowering.algorithms,
    )
    options = words.strip() or "none of --layout, --no-prepack and --algorithms"
    return f"more functions have a record with {options}"


def _require(module: str, uses: list[Use], hint: str, *, all_: bool) -> None:
    """Raise NotFoundError if too few functions have a record."""
    from ...errors import NotFoundError

    missing = [use.function for use in uses if use.kind == "default"]
    if missing and (all_ or len(missing) == len(uses)):
        names = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
        raise NotFoundError(
            f"no record for {names}; nothing was written; {hint}{'; ' if hint else ''}"
            f"for the reason, run: tunedb explain module {module}"
        )
