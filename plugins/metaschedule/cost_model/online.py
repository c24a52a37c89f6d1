"""What :class:`CostModel` does, in plain Python; TVM calls it through function objects."""

from __future__ import annotations

import logging
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .... import identity, limits
from ....errors import (
    FormatError,
    LimitError,
    NotFoundError,
    PluginError,
    StorageError,
    TuneDBError,
    UsageError,
)
from ....json_checks import parse_json
from ....models._xgboost import threads_to_use
from ....models.dataset import ExampleWorkload
from ....models.failures import penalty
from ....models.model import Model
from ....programs.workload_info import signature_of
from ....records import Program
from ....results import NewModel
from ....system.files import read_regular, write_whole
from .. import modules, trace_codec
from ..features.candidate_features import CandidateRows, Remembered, Task, stacked
from .learner import Learner, Settings, scorer_of
from .ledger import Ledger, Scorer
from .trials import trial_of

if TYPE_CHECKING:
    from ....records import Workload
    from ..database.handle import Handle

# ---- What TVM's ``save`` and ``load`` of a cost model write and read: no pickle, one file --------
#
# Layout: magic with a version byte, BLAKE2b digest of what follows (16 bytes), length of the header
# (4 bytes, little-endian), header as canonical JSON, the model as ``Model.to_bytes`` made it. The
# header is the row of the model, so that its predictions can be traced; a cost model that has
# learnt nothing yet has neither.

_MAGIC = b"tunedb-cost-model\x01"
_LENGTH = struct.Struct("<I")
_BEFORE = len(_MAGIC) + identity.DIGEST_BYTES


def save(path: Path, scorer: Scorer | None) -> None:
    """Write a model to a file, which others see as a whole or not at all.

    Parameters
    ----------
    path : Path
        Where to; what stands there is replaced.
    scorer : Scorer or None
        The model; None for a cost model that has learnt nothing.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    header: dict[str, Any] | None = None
    body = b""
    if scorer is not None:
        row = scorer.row
        header = {
            "digest": row.digest.hex(),
            "kind": row.kind,
            "parameters": row.parameters.decode(),
            "training_digest": row.training_digest.hex(),
            "card": row.card,
        }
        body = scorer.model.to_bytes()
    told = identity.canonical_json(header)
    payload = b"".join((_LENGTH.pack(len(told)), told, body))
    data = b"".join((_MAGIC, identity.digest("cost model", payload), payload))
    write_whole(path, data)


def load(path: Path) -> Scorer | None:
    """Return the model of a file; None where it had learnt nothing when it was saved.

    XGBoost believes the bytes that it reads, so load only files that you saved yourself; the
    digest tells damage from them, not malice.

    Raises
    ------
    NotFoundError, StorageError
        There is no such file, or it cannot be read.
    FormatError
        It is no cost model of tunedb (TVM's own ``XGBModel`` saves pickles), or damaged.
    LimitError
        It is larger than any model may be.
    UsageError
        A newer tunedb or XGBoost wrote it.
    """
    data = _read(path)
    version = len(_MAGIC) - 1
    if data[:version] != _MAGIC[:version]:
        raise FormatError(f"{path}: not a tunedb cost model; save one with CostModel.save")
    if data[version : version + 1] > _MAGIC[version:]:
        raise UsageError(f"{path}: a newer tunedb saved this; upgrade tunedb, or train again")
    payload = data[_BEFORE:]
    if data[len(_MAGIC) : _BEFORE] != identity.digest("cost model", payload) or len(payload) < 4:
        raise FormatError(f"{path}: the file is damaged; save the cost model again")
    (length,) = _LENGTH.unpack_from(payload)
    header = parse_json(payload[4 : 4 + length])
    if header is None:
        return None
    try:
        row = NewModel(
            digest=bytes.fromhex(header["digest"]),
            kind=header["kind"],
            parameters=header["parameters"].encode(),
            training_digest=bytes.fromhex(header["training_digest"]),
            card=header["card"],
            body=None,
        )
        return scorer_of(Model.from_bytes(payload[4 + length :]), row)
    except (FormatError, UsageError) as error:
        raise type(error)(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise FormatError(f"{path}: the cost model has another header; save it again") from None


def _read(path: Path) -> bytes:
    try:
        data = read_regular(path, limits.MAX_BODY_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file; save a cost model there first") from None
    except OSError as error:
        raise StorageError(f"{path}: the cost model cannot be read: {error.strerror}") from None
    if len(data) > limits.MAX_BODY_BYTES:
        raise LimitError(f"{path}: over {limits.MAX_BODY_BYTES} bytes; it is not a cost model")
    return data


# ---- The cost model of a run ---------------------------------------------------------------------

_log = logging.getLogger("tunedb")

Floats = NDArray[np.float64]


class OnlineModel:
    """Predicts for a search, and learns from what it measured.

    Parameters
    ----------
    handle : Handle
        The database's.
    settings : Settings
        What the user chose.
    threads : int or None
        Threads that extract, score and train; None for those of the tuning context.
    """

    def __init__(self, handle: Handle, settings: Settings, threads: int | None) -> None:
        self.lock = threading.RLock()
        self.rows = CandidateRows(settings.features)
        # What was asked about and is measured is not extracted again by the measure callback.
        handle.features.remembered[settings.features.name] = weakref.ref(self.rows)
        handle.models.add(self)
        self.ledger = Ledger(handle.store)
        self._handle = handle
        self._store = handle.store
        self._settings = settings
        self._threads = threads
        self._learners: dict[bytes, Learner] = {}
        self._loaded: Scorer | None = None
        # Address → (module, its stored form and number): a run has one module for each task.
        self._workloads: dict[int, tuple[Any, Workload, ExampleWorkload]] = {}
        seed = 0 if settings.recipe is None else settings.recipe.seed
        self._random = np.random.default_rng(seed)
        # When candidates were asked about last: what is stored since was measured since.
        self._asked_at = _now()
        self._warned = False

    # ------------------------------------------------------------------ TVM's interface

    def predict(self, context: Any, candidates: Sequence[Any]) -> Floats:
        """Return a score for each candidate; the higher, the faster."""
        with self.lock:
            self.ledger.write()
            self._asked_at = _now()
            task = self._task(context)
            learner = self._learner(task)
            asked = self.rows.of(task, candidates)
            made = np.full(len(asked), np.nan)
            able = np.array([one.rows is not None for one in asked], bool)
            made[able] = self._say(learner, task, [one for one in asked if one.rows is not None])
            if not able.all():
                self._report(asked)
                # Finite, because it may be averaged; TVM takes what is below 0 for 0.
                made[~able] = made[able].min(initial=0.0) - 1
            self.rows.remember(asked, made)
            return made

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from candidates that were measured."""
        with self.lock:
            task = self._task(context)
            learner = self._learner(task)
            workload = self._workload(context.mod)[1]
            programs = [self._program(task, candidate) for candidate in candidates]
            ids = self._store.programs.ids([p.digest if p else b"" for p in programs])
            asked = self._measured_rows(task, candidates, ids)
            known = self._store.training.measured_before(
                [id_ for id_ in ids if id_], self._asked_at
            )
            news = [None if i in known else p for i, p in zip(ids, programs, strict=True)]
            self._note(learner, task, asked, news)
            self.ledger.write()
            trials = []
            for one, program, id_, result in zip(asked, programs, ids, results, strict=True):
                if program is not None and one.rows is not None:
                    trial = trial_of(one.rows, program, id_ or 0, result, learner.recipe.label)
                    trials += [] if trial is None else [trial]
            learner.add(workload, trials, known, task.threads)
            self.rows.release(asked)
            self._asked_at = _now()

    def not_built(self, failed: Sequence[tuple[Program, Any]], began: int) -> None:
        """Note what was said of candidates that failed to build, which TVM does not show.

        Only of those that a search asked about: nothing is scored here. What fails is logged once.

        Parameters
        ----------
        failed : sequence of Program and tvm MeasureCandidate
            What was stored of their batch.
        began : int
            When its first candidate was stored, in microseconds since 1970: programs that were
            measured before are no predictions, as in :meth:`update`.
        """
        with self.lock:
            recalled = [(program, self.rows.recall(candidate)) for program, candidate in failed]
            asked = [(p, one) for p, one in recalled if one is not None and one.scorer is not None]
            if not asked:
                return
            try:
                ids = self._store.programs.ids([program.digest for program, _ in asked])
                known = self._store.training.measured_before([id_ for id_ in ids if id_], began)
            except TuneDBError as error:
                self._warn("predictions left out", error)
                return
            for (program, one), id_ in zip(asked, ids, strict=True):
                if id_ not in known and one.scorer is not None:
                    self.ledger.note(one.scorer, program.digest, one.score)
            self.rows.release([one for _, one in asked])
            self.ledger.write()

    def save(self, path: str) -> None:
        """Write the model of the target that was asked for last."""
        with self.lock:
            self.ledger.write()
            learner = next(reversed(self._learners.values()), None)
            scoring = None if learner is None else learner.scoring
            save(Path(path), self._loaded if scoring is None else scoring.scorer)

    def load(self, path: str) -> None:
        """Predict with a saved model from now on."""
        with self.lock:
            scorer = load(Path(path))
            if scorer is None:
                return
            try:
                scorer.model.check(self._settings.features)
            except TuneDBError as error:
                raise type(error)(f"{path}: {error}") from None
            self._loaded = scorer
            for learner in self._learners.values():
                learner.use(scorer)

    def flush(self) -> None:
        """Write predictions whose programs were stored since."""
        with self.lock:
            self.ledger.write()

    # ------------------------------------------------------------------ parts of it

    def _task(self, context: Any) -> Task:
        if context.target is None:
            raise PluginError("the tuning context has no target; give TuneContext one")
        # Threads beyond these would stall each other (tunedb.models._xgboost).
        threads = self._threads or min(int(context.num_threads), threads_to_use())
        target = self._handle.targets.stored(context.target)
        return Task(context, target, lambda: self._workload(context.mod)[0], threads)

    def _learner(self, task: Task) -> Learner:
        """Return what predicts for a target; it begins when it is first asked for."""
        learner = self._learners.pop(task.target.digest, None)
        if learner is None:
            groups = self._handle.targets.groups(task.target)
            learner = Learner(self._store, self._settings, task.target, groups)
            learner.begin(self._loaded)
        self._learners[task.target.digest] = learner
        learner.prepare_for(self._workload(task.context.mod)[1], task.threads)
        return learner

    def _workload(self, mod: Any) -> tuple[Workload, ExampleWorkload]:
        """Return the stored form of a task's module."""
        met = self._workloads.get(mod.__chandle__())
        if met is None:
            record = modules.to_workload(mod)
            signature = signature_of(record)
            example = ExampleWorkload(
                id=self._store.workloads.id_of(record.digest) or 0,
                digest=record.digest,
                name=record.name,
                family=signature.family,
                shapes=tuple(shape for _, shape in signature.arguments or ()),
                flops=signature.flops,
            )
            met = self._workloads[mod.__chandle__()] = (mod, record, example)
        return met[1], met[2]

    def _program(self, task: Task, candidate: Any) -> Program | None:
        """Return a candidate as the database knows it; None where it cannot be stored."""
        try:
            trace = trace_codec.encode(candidate.sch.trace)
        except trace_codec.UnknownInstructionError:
            return None
        return Program(task.workload(), task.target, trace)

    def _measured_rows(
        self, task: Task, candidates: Sequence[Any], ids: Sequence[int | None]
    ) -> list[Remembered]:
        """Return the rows of measured candidates, as they are remembered or stored.

        What the database lacks it gets: only a :class:`MeasureCallback` stores rows of itself.
        """
        features = self._settings.features
        known = [id_ for id_ in ids if id_]
        stored = dict(zip(known, self._store.features.rows(features, known), strict=True))
        found: list[Remembered | None] = []
        for candidate, id_ in zip(candidates, ids, strict=True):
            one = self.rows.recall(candidate)
            rows = stored.get(id_) if id_ else None
            if one is None and rows is not None:
                one = Remembered(candidate.sch.trace, rows)
            found.append(one)
        missing = [c for c, one in zip(candidates, found, strict=True) if one is None]
        computed = iter(self.rows.of(task, missing) if missing else [])
        asked = [next(computed) if one is None else one for one in found]
        self._store_rows(
            {
                id_: one.rows
                for id_, one in zip(ids, asked, strict=True)
                if id_ and stored[id_] is None and one.rows is not None
            }
        )
        return asked

    def _store_rows(self, rows: dict[int, Any]) -> None:
        if not rows or self._store.read_only:
            return
        try:
            self._store.features.add(self._settings.features, rows.items())
        except Exception as error:
            self._warn("features left out", error)

    def _say(self, learner: Learner, task: Task, asked: Sequence[Remembered]) -> Floats:
        """Return scores for a search of candidates with rows; the model's own are remembered."""
        if not asked:
            return np.zeros(0)
        rows = [one.rows for one in asked if one.rows is not None]
        scoring = learner.scoring
        if scoring is None:
            found = self._random.random(len(asked))
        else:
            scores = scoring.scores(rows, task.threads)
            for one, score in zip(asked, scores.tolist(), strict=True):
                one.score, one.scorer = score, scoring.scorer
            workload = self._workload(task.context.mod)[1].digest
            found = scoring.for_search(workload, rows, scores)
        if learner.failures is not None:
            learner.failures.model.use_threads(task.threads)
            stack = stacked(rows, len(self._settings.features.columns))
            told = learner.failures.by_kind(*stack)
            # Of losses without a scale nothing can be subtracted; near the best it is the same.
            found = found - np.abs(found) * np.clip(penalty(told, learner.failures.costs), 0, 1)
        return found

    def _note(
        self,
        learner: Learner,
        task: Task,
        asked: Sequence[Remembered],
        programs: Sequence[Program | None],
    ) -> None:
        """Note what was said of candidates before they were measured.

        `programs` has None for those that were measured before, from which the model may have
        learnt. Those that nobody asked about, as where a search draws at random, are scored now,
        before anything is learnt from them.
        """
        silent = [one for one in asked if one.scorer is None and one.rows is not None]
        if silent:
            self._say(learner, task, silent)
        for one, program in zip(asked, programs, strict=True):
            if program is not None and one.scorer is not None:
                self.ledger.note(one.scorer, program.digest, one.score)

    def _report(self, asked: Sequence[Remembered]) -> None:
        """Say once that candidates have no features."""
        errors = [one.error for one in asked if one.error is not None]
        self._warn(f"{len(errors)} of {len(asked)} candidates come last", errors[0])

    def _warn(self, what: str, error: Any) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        words = " ".join(str(error).split())[:300]
        _log.log(level, "%s: %s: %s", self._store.location, what, words)


def _now() -> int:
    """Return microseconds since 1970, UTC, as measurements have them."""
    return time.time_ns() // 1000
