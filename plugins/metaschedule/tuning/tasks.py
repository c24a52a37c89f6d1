"""Tasks of a tuning run: the functions of its networks, or PrimFuncs alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

from ....errors import PluginError, TuneDBError, UsageError
from ....search.scheduling import NetworkGoal
from ..deploy.network import (
    Lowered,
    Lowering,
    bind_sizes,
    bindings,
    lower,
    lower_algorithms,
    symbolic_sizes,
)
from ..module_source import as_module, is_relax, prim_funcs
from ..modules import modules_equal, structural_hash
from ..targets import first_line
from .options import TuneOptions

__all__ = ["Network", "Task", "modules_of", "tasks_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A network of a run, for one combination of its sizes.

    Parameters
    ----------
    given : str
        Name that the user gives.
    mod : tvm.IRModule
        Its Relax program.
    lowered : Lowered
        The same, lowered.
    goal : NetworkGoal
        Weight, and latency that suffices.
    operators : tuple of tvm ExtractedTask
        TVM's tasks of its functions.
    algorithms : sequence
        For each operator that several algorithms compute, a label of each but the first, and TVM's
        tasks of the network with it.
    """

    given: str
    mod: Any
    lowered: Lowered
    goal: NetworkGoal
    operators: tuple[Any, ...] = ()
    algorithms: Sequence[Sequence[tuple[str, Sequence[Any]]]] = ()

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of each symbolic size."""
        return self.lowered.lowering.bind or {}

    @property
    def name(self) -> str:
        """Name with the sizes."""
        return _label(self.given, self.sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A function to tune.

    Parameters
    ----------
    name : str
        Name of the function.
    mod : tvm.IRModule
        Module of that function alone, normalised for the search.
    extracted : tvm ExtractedTask or None
        Its task in a Relax program.
    calls : tuple of int
        Number of calls in one run of each network, with the first algorithm of each operator.
    weight : float
        Sum over the networks of weight times calls, with the algorithms of the task; 1 for a
        PrimFunc.
    """

    name: str
    mod: Any
    extracted: Any = None
    calls: tuple[int, ...] = ()
    weight: float = 1.0


def modules_of(options: TuneOptions) -> dict[str, Any]:
    """Return the modules of a run by name, with their parameters as constants.

    Raises
    ------
    UsageError
        There is no module, one of several is no Relax program, or a name of another argument is
        not that of a module.
    PluginError
        TVM cannot bind the parameters.
    """
    if isinstance(options.mod, Mapping):
        mods = {name: as_module(mod) for name, mod in options.mod.items()}
        params = options.params or {}
        _require_names("params", params, mods)
    else:
        mods, params = {"network": as_module(options.mod)}, {"network": options.params}
    if len(mods) > 1:
        for name, mod in mods.items():
            if not is_relax(mod):
                raise UsageError(f"{name} is no Relax program: tune its functions in a run alone")
    return {name: _with_params(mod, params.get(name)) for name, mod in mods.items()}


def _with_params(mod: Any, params: Mapping[str, Any] | None) -> Any:
    if not (params and is_relax(mod)):
        return mod
    try:
        return relax.transform.BindParams("main", dict(params))(mod)
    except Exception as error:  # whatever the pass raises
        raise PluginError(f"TVM cannot bind the parameters: {first_line(error)}") from error


def tasks_of(
    mods: Mapping[str, Any], target: Any, options: TuneOptions, module_equality: str
) -> tuple[list[Task], list[Network]]:
    """Return the tasks of modules.

    Parameters
    ----------
    mods : mapping of str to tvm.IRModule
        Relax programs, or one module of PrimFuncs.
    target : tvm.target.Target
        Target of the run.
    options : TuneOptions
        Arguments of the run.
    module_equality : str
        Module equality under which equal operators are one task.

    Returns
    -------
    tasks : list of Task
        Functions to tune, in TVM's order.
    networks : list of Network
        The Relax programs, for each combination of sizes; empty for PrimFuncs.

    Raises
    ------
    UsageError
        The modules have no function to tune, a symbolic size has no number, or a weight or latency
        target is invalid.
    PluginError
        TVM cannot lower a Relax program.
    """
    networks: list[Network] = []
    if all(map(is_relax, mods.values())):
        networks = list(_networks(mods, target, options, module_equality))
        tasks, networks = _network_tasks(networks, options.op_names or (), module_equality)
    else:
        (mod,) = mods.values()
        tasks = _function_tasks(mod, options)
    if not tasks:
        raise UsageError("nothing to tune: the module has no unscheduled function")
    return tasks, networks


def _function_tasks(mod: Any, options: TuneOptions) -> list[Task]:
    """Return the tasks of a module of PrimFuncs."""
    if options.weights or options.latency_target is not None:
        raise UsageError("weights and latency targets are for Relax programs")
    if Lowering(algorithms=options.algorithms).algorithms != "exact":
        raise UsageError("algorithms are for convolutions of Relax programs")
    for sizes in bindings(options.bind):
        bind_sizes(mod, sizes)
    special = options.special_space or {}
    skipped = {name for name, space in special.items() if space is None}
    functions = prim_funcs(mod).items()
    return [Task(name, _normalize_mod(f)) for name, f in functions if name not in skipped]


def _networks(
    mods: Mapping[str, Any], target: Any, options: TuneOptions, module_equality: str
) -> Iterator[Network]:
    """Yield the networks of a run, lowered; a size is bound in each that has it."""
    bind, symbols = options.bind or {}, {name: symbolic_sizes(mod) for name, mod in mods.items()}
    known = set().union(*symbols.values())
    # A single program refuses names that it does not have.
    if len(mods) > 1 and (unknown := sorted(bind.keys() - known)):
        names = ", ".join(sorted(known)) or "none"
        raise UsageError(f"bind: no network has a symbolic size {unknown[0]!r}; there are: {names}")
    chosen = [
        (name, Lowering(options.layout, options.prepack, sizes, options.algorithms))
        for name, own in symbols.items()
        for sizes in bindings({k: n for k, n in bind.items() if k in own or k not in known})
    ]
    goals = _goals([(name, _label(name, lowering.bind)) for name, lowering in chosen], options)
    for (name, lowering), goal in zip(chosen, goals, strict=True):
        try:
            lowered = lower(mods[name], target, lowering)
            operators = lowered.tasks(target, module_equality)
            algorithms = [
                [
                    (each.label(tile), other.tasks(target, module_equality))
                    for tile, other in several.items()
                ]
                for each, several in lower_algorithms(lowered, target).items()
            ]
        except TuneDBError:
            raise
        except Exception as error:  # whatever a pass raises
            program = "this program" if len(mods) == 1 else name
            raise PluginError(f"TVM cannot lower {program}: {first_line(error)}") from error
        yield Network(name, mods[name], lowered, goal, operators, algorithms)


def _goals(networks: Sequence[tuple[str, str]], options: TuneOptions) -> list[NetworkGoal]:
    """Return the goals of networks, which are given by name, or by name with sizes."""
    names = dict.fromkeys(name for pair in networks for name in pair)
    weights, targets = options.weights or {}, options.latency_target
    if not isinstance(targets, Mapping):
        targets = {} if targets is None else dict.fromkeys(names, targets)
    _require_names("weights", weights, names)
    _require_names("latency_target", targets, names)
    goals = []
    for name, label in networks:
        weight = weights.get(label, weights.get(name, 1.0))
        try:
            goals.append(NetworkGoal(weight, targets.get(label, targets.get(name))))
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
    return goals


def _require_names(argument: str, given: Iterable[str], names: Iterable[str]) -> None:
    """Raise UsageError for a name that is no network's."""
    if unknown := [name for name in given if name not in names]:
        raise UsageError(f"{argument}: no network {unknown[0]!r}; there are: {', '.join(names)}")


def _label(name: str, sizes: Mapping[str, int] | None) -> str:
    """Return the name of a network with its sizes."""
    return " ".join([name, *(f"{key}={size}" for key, size in (sizes or {}).items())])


@dataclass(slots=True, eq=False)
class _Operator:
    """A function of one network or of several."""

    network: Network
    extracted: Any
    name: str
    #: Calls in one run of each network, with the first algorithm of each operator.
    calls: list[int]
    #: Most calls in one run of each network.
    most: list[int]

    @property
    def mod(self) -> Any:
        return self.extracted.dispatched[0]


class _Operators:
    """The different functions of networks."""

    def __init__(self, networks: int, module_equality: str) -> None:
        self.all: list[_Operator] = []
        self._by_hash: dict[int, list[_Operator]] = defaultdict(list)
        self._networks = networks
        self._equality = module_equality

    def counted(
        self, network: Network, extracted: Iterable[Any], label: str = ""
    ) -> list[tuple[_Operator, int]]:
        """Return the functions of a network, each once, and their numbers of calls."""
        found = []
        for task in extracted:
            mod = task.dispatched[0]
            same = self._by_hash[structural_hash(mod, self._equality)]
            for operator in same:
                if modules_equal(operator.mod, mod, self._equality):
                    break
            else:
                name = str(task.task_name) + (f"_{label}" if label else "")
                none = [0] * self._networks
                self.all.append(operator := _Operator(network, task, name, none, none.copy()))
                same.append(operator)
            found.append((operator, int(task.weight)))
        return found


def _network_tasks(
    networks: Sequence[Network], words: Sequence[str], module_equality: str
) -> tuple[list[Task], list[Network]]:
    """Return the tasks of networks, and the networks with the algorithms of their operators.

    :func:`compile` looks up the same functions. Words select tasks with one of them in the name,
    and with a part of an algorithm all algorithms of its operator.
    """
    operators = _Operators(len(networks), module_equality)
    algorithms = []
    for number, network in enumerate(networks):
        exact: Counter[_Operator] = Counter()
        for operator, calls in operators.counted(network, network.operators):
            operator.calls[number] += calls
            operator.most[number] += calls
            exact[operator] += calls
        own = []
        for several in network.algorithms:
            options = [Counter(dict(operators.counted(network, e, label))) for label, e in several]
            for option in options:
                for operator, calls in option.items():
                    operator.most[number] = max(operator.most[number], calls)
            own.append([exact - options[0], *(option - exact for option in options)])
        algorithms.append(own)
    names = _names(operators.all, networks)
    selected = {
        operator
        for operator, name in names.items()
        if not words or any(word in name for word in words)
    }
    for choice in (choice for own in algorithms for choice in own):
        parts = {operator for option in choice for operator in option}
        selected |= parts if parts & selected else set()
    if words and not selected:
        known = ", ".join(sorted(names.values()))
        raise UsageError(f"no operator has {' or '.join(words)} in its name: {known}")
    weights = [network.goal.weight for network in networks]
    tasks: list[Task] = []
    index: dict[_Operator, int] = {}
    for operator, name in names.items():
        if operator in selected:
            index[operator] = len(tasks)
            given, calls = operator.extracted, sum(operator.most)
            renamed = ms.ExtractedTask(name, given.mod, given.target, [operator.mod], calls)
            weight = sum(w * n for w, n in zip(weights, operator.most, strict=True))
            tasks.append(Task(name, operator.mod, renamed, tuple(operator.calls), weight))
    chosen = [
        replace(network, goal=replace(network.goal, choices=_numbered(own, index)))
        for network, own in zip(networks, algorithms, strict=True)
    ]
    return tasks, chosen


def _names(operators: Sequence[_Operator], networks: Sequence[Network]) -> dict[_Operator, str]:
    """Return the names of tasks: of the functions, with network and sizes where these are equal."""
    counts = Counter(operator.name for operator in operators)
    several = len({network.given for network in networks}) > 1
    names = {}
    for operator in operators:
        name, network = operator.name, operator.network
        if counts[name] > 1:
            name += f"_{network.given}" if several else ""
            name += "".join(f"_{key}{size}" for key, size in network.sizes.items())
        names[operator] = re.sub(r"\W", "_", name)  # TVM names a log file after it
    return names


def _numbered(
    algorithms: Sequence[Sequence[Mapping[_Operator, int]]], index: Mapping[_Operator, int]
) -> tuple[tuple[Mapping[int, float], ...], ...]:
    """Return the algorithms of operators that are tuned, by the numbers of tasks."""
    return tuple(
        tuple({index[each]: float(calls) for each, calls in option.items()} for option in several)
        for several in algorithms
        if all(each in index for option in several for each in option)
    )
