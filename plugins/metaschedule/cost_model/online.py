"""Online model: :class:`CostModel` in plain Python, which TVM calls through function objects."""

from __future__ import annotations

import logging
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from ....models.aggregation import stacked
from ....models.base import LabelPolicy, recipe_part
from ....models.dataset import FAILURES, ExampleWorkload
from ....models.failures import penalty
from ....models.model import Model
from ....models.run_trials import RunTrial
from ....programs.workload_info import signature_of
from ....records import FailureKind, Phase, Program, Status
from ....results import NewModel
from ....run_times import NO_TIME, is_cut_short, status_of
from ....system.files import read_regular, write_whole
from .. import modules, trace_codec
from ..failures import classify
from ..features.candidate_features import CandidateRows, CandidateTask, ScoredCandidate
from ..measure.measure_callback import run_secs_of
from .learner import CostModelOptions, Learner, scorer_of
from .ledger import Ledger, Scorer

if TYPE_CHECKING:
    from ....records import Workload
    from ..database.handle import Handle

# ---- Saved cost models (``save`` and ``load`` of TVM's interface): one file, no pickle -----------
#
# Layout: magic with a version byte, BLAKE2b digest of the rest (16 bytes), length of the header
# (4 bytes, little-endian), header as canonical JSON, the model as ``Model.to_bytes`` made it. The
# header is the row of the model, so that its predictions can be traced; a cost model without a
# model yet has neither.

_MAGIC = b"tunedb-cost-model\x01"
_LENGTH = struct.Struct("<I")
_BEFORE = len(_MAGIC) + identity.DIGEST_BYTES


def save(path: Path, scorer: Scorer | None) -> None:
    """Write a model to a file, which others see as a whole or not at all.

    Parameters
    ----------
    path : Path
        Path of the file; an existing one is replaced.
    scorer : Scorer or None
        The model; None for a cost model that has none yet.

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
    header_bytes = identity.canonical_json(header)
    payload = b"".join((_LENGTH.pack(len(header_bytes)), header_bytes, body))
    data = b"".join((_MAGIC, identity.digest("cost model", payload), payload))
    write_whole(path, data)


def load(path: Path) -> Scorer | None:
    """Return the model of a file; None if the saved cost model had none yet.

    XGBoost trusts the bytes that it reads, so load only files that you saved yourself; the digest
    reveals damage, not malice.

    Parameters
    ----------
    path : Path
        Path of the file.

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
    """Predictions for a search, by models that are trained again on its measurements.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    options : CostModelOptions
        Options of the user.
    threads : int or None
        Threads that extract, score and train; None for those of the tuning context.
    """

    def __init__(self, handle: Handle, options: CostModelOptions, threads: int | None) -> None:
        self.lock: Final = threading.RLock()
        self.rows: Final = CandidateRows(options.features)
        # The measure callback need not extract the rows of scored candidates again.
        handle.features.remembered[options.features.name] = weakref.ref(self.rows)
        handle.models.add(self)
        self.ledger: Final = Ledger(handle.store)
        self._handle = handle
        self._store = handle.store
        self._options = options
        self._threads = threads
        self._learners: dict[bytes, Learner] = {}
        self._loaded: Scorer | None = None
        # Address → (module, its stored form and number): a run has one module for each task.
        self._workloads: dict[int, tuple[Any, Workload, ExampleWorkload]] = {}
        seed = 0 if options.recipe is None else options.recipe.seed
        self._random = np.random.default_rng(seed)
        # Time of the last prediction: programs stored since were measured since.
        self._predicted_at = _now()
        self._warned = False

    # ------------------------------------------------------------------ TVM's interface

    def predict(self, context: Any, candidates: Sequence[Any]) -> Floats:
        """Return a score for each candidate; the higher, the faster."""
        with self.lock:
            self.ledger.write()
            self._predicted_at = _now()
            task = self._task(context)
            learner = self._learner(task)
            scored = self.rows.scored(task, candidates)
            scores = np.full(len(scored), np.nan)
            has_rows = np.array([each.rows is not None for each in scored], bool)
            scores[has_rows] = self._score(
                learner, task, [each for each in scored if each.rows is not None]
            )
            if not has_rows.all():
                self._warn_without_rows(scored)
                # Finite, because it may be averaged; TVM takes scores below 0 for 0.
                scores[~has_rows] = scores[has_rows].min(initial=0.0) - 1
            self.rows.remember(scored, scores)
            return scores

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Train on candidates that were measured."""
        with self.lock:
            task = self._task(context)
            learner = self._learner(task)
            workload = self._workload(context.mod)[1]
            programs = [self._program(task, candidate) for candidate in candidates]
            ids = self._store.programs.ids([p.digest if p else b"" for p in programs])
            measured = self._measured(task, candidates, ids)
            known = self._store.training.measured_before(
                [id_ for id_ in ids if id_], self._predicted_at
            )
            new = [None if i in known else p for i, p in zip(ids, programs, strict=True)]
            self._add_predictions(learner, task, measured, new)
            self.ledger.write()
            trials = []
            for each, program, id_, result in zip(measured, programs, ids, results, strict=True):
                if program is not None and each.rows is not None:
                    trial = trial_of(each.rows, program, id_ or 0, result, learner.recipe.label)
                    trials += [] if trial is None else [trial]
            learner.add(workload, trials, known, task.threads)
            self.rows.release(measured)
            self._predicted_at = _now()

    def not_built(self, failed: Sequence[tuple[Program, Any]], began: int) -> None:
        """Learn from candidates that failed to build, which TVM leaves out.

        Their predictions are stored, and they calibrate the model of failures. Candidates that no
        search has seen are left out. An error is logged once.

        Parameters
        ----------
        failed : sequence of Program and tvm MeasureCandidate
            Programs of a batch that failed to build, for a reason of their own.
        began : int
            Time when the first candidate of the batch was stored, in microseconds since 1970:
            programs that were measured before are no predictions, as in :meth:`update`.
        """
        with self.lock:
            recalled = [(program, self.rows.recall(candidate)) for program, candidate in failed]
            seen = [
                (program, candidate) for program, candidate in recalled if candidate is not None
            ]
            if not seen:
                return
            try:
                ids = self._store.programs.ids([program.digest for program, _ in seen])
                known = self._store.training.measured_before([id_ for id_ in ids if id_], began)
            except TuneDBError as error:
                self._warn("predictions left out", error)
                return
            rows: dict[bytes, list[Any]] = {}
            for (program, candidate), id_ in zip(seen, ids, strict=True):
                if id_ in known:
                    continue
                if candidate.scorer is not None:
                    self.ledger.add(candidate.scorer, program.digest, candidate.score)
                if candidate.rows is not None:
                    rows.setdefault(program.target.digest, []).append(candidate.rows)
            for target, of_target in rows.items():
                if target in self._learners:
                    self._learners[target].calibrate(of_target, [True] * len(of_target))
            self.rows.release([candidate for _, candidate in seen])
            self.ledger.write()

    def save(self, path: str) -> None:
        """Write the model of the target that predictions were made for last."""
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
                scorer.model.check(self._options.features)
            except TuneDBError as error:
                raise type(error)(f"{path}: {error}") from None
            self._loaded = scorer
            for learner in self._learners.values():
                learner.use(scorer)

    def flush(self) -> None:
        """Write predictions whose programs were stored since."""
        with self.lock:
            self.ledger.write()

    # ------------------------------------------------------------------ tasks and candidates

    def _task(self, context: Any) -> CandidateTask:
        if context.target is None:
            raise PluginError("the tuning context has no target; give TuneContext one")
        # Threads beyond these would stall each other (tunedb.models._xgboost).
        threads = self._threads or min(int(context.num_threads), threads_to_use())
        target = self._handle.targets.stored(context.target)
        return CandidateTask(context, target, lambda: self._workload(context.mod)[0], threads)

    def _learner(self, task: CandidateTask) -> Learner:
        """Return the learner of a target, ready for the workload of a task."""
        learner = self._learners.pop(task.target.digest, None)
        if learner is None:
            groups = self._handle.targets.groups(task.target)
            learner = Learner(self._store, self._options, task.target, groups)
            learner.begin(self._loaded)
        self._learners[task.target.digest] = learner
        learner.prepare_for(self._workload(task.context.mod)[1], task.threads)
        return learner

    def _workload(self, mod: Any) -> tuple[Workload, ExampleWorkload]:
        """Return the stored form of a task's module."""
        known = self._workloads.get(mod.__chandle__())
        if known is None:
            record = modules.to_workload(mod)
            id_ = self._store.workloads.id_of(record.digest) or 0
            example = ExampleWorkload.from_signature(
                id_, record.digest, record.name, signature_of(record)
            )
            known = self._workloads[mod.__chandle__()] = (mod, record, example)
        return known[1], known[2]

    def _program(self, task: CandidateTask, candidate: Any) -> Program | None:
        """Return the stored form of a candidate; None if it cannot be stored."""
        try:
            trace = trace_codec.encode(candidate.sch.trace)
        except trace_codec.UnknownInstructionError:
            return None
        return Program(task.workload(), task.target, trace)

    # Only a MeasureCallback stores rows by itself.
    def _measured(
        self, task: CandidateTask, candidates: Sequence[Any], ids: Sequence[int | None]
    ) -> list[ScoredCandidate]:
        """Return measured candidates with remembered, stored or new rows; store the new ones."""
        known = [id_ for id_ in ids if id_]
        rows = self._store.features.rows(self._options.features, known)
        stored = dict(zip(known, rows, strict=True))
        recalled: list[ScoredCandidate | None] = []
        for candidate, id_ in zip(candidates, ids, strict=True):
            scored = self.rows.recall(candidate)
            own_rows = stored.get(id_) if id_ else None
            if scored is None and own_rows is not None:
                scored = self.rows.checked(candidate.sch.trace, own_rows)
            recalled.append(scored)
        missing = [c for c, scored in zip(candidates, recalled, strict=True) if scored is None]
        computed = iter(self.rows.scored(task, missing) if missing else [])
        measured = [next(computed) if scored is None else scored for scored in recalled]
        self._store_rows(
            {
                id_: scored.rows
                for id_, scored in zip(ids, measured, strict=True)
                if id_ and stored[id_] is None and scored.rows is not None
            }
        )
        return measured

    def _store_rows(self, rows: dict[int, Any]) -> None:
        if not rows or self._store.read_only:
            return
        try:
            self._store.features.add(self._options.features, rows.items())
        except Exception as error:
            self._warn("features left out", error)

    def _score(
        self, learner: Learner, task: CandidateTask, candidates: Sequence[ScoredCandidate]
    ) -> Floats:
        """Return scores of candidates with rows for a search; keep the model's own on each."""
        if not candidates:
            return np.zeros(0)
        rows = [each.rows for each in candidates if each.rows is not None]
        scoring = learner.scoring
        if scoring is None:
            scores = self._random.random(len(candidates))
        else:
            own = scoring.scores(rows, task.threads)
            for each, score in zip(candidates, own.tolist(), strict=True):
                each.score, each.scorer = score, scoring.scorer
            workload = self._workload(task.context.mod)[1].digest
            scores = scoring.for_search(workload, rows, own)
        if learner.failures is not None:
            learner.failures.model.use_threads(task.threads)
            stack = stacked(rows, len(self._options.features.columns))
            expected = learner.failures.by_kind(*stack, cautious=True)
            share = np.clip(penalty(expected, learner.failures.costs), 0, 1)
            # A share, because losses without a scale have no unit; near the best it is the same.
            scores = scores - np.abs(scores) * share
        return scores

    # `programs` has None for those that were measured before, which may be in the training set.
    # Candidates that were never scored, as where a search draws at random, are scored now.
    def _add_predictions(
        self,
        learner: Learner,
        task: CandidateTask,
        candidates: Sequence[ScoredCandidate],
        programs: Sequence[Program | None],
    ) -> None:
        """Add the predictions for new programs to the ledger, before a model is trained on them."""
        unscored = [c for c in candidates if c.scorer is None and c.rows is not None]
        if unscored:
            self._score(learner, task, unscored)
        for candidate, program in zip(candidates, programs, strict=True):
            if program is not None and candidate.scorer is not None:
                self.ledger.add(candidate.scorer, program.digest, candidate.score)

    def _warn_without_rows(self, candidates: Sequence[ScoredCandidate]) -> None:
        errors = [each.error for each in candidates if each.error is not None]
        self._warn(f"{len(errors)} of {len(candidates)} candidates come last", errors[0])

    def _warn(self, consequence: str, error: Any) -> None:
        """Log an error, as a warning the first time."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        reason = " ".join(str(error).split())[:300]
        _log.log(level, "%s: %s: %s", self._store.location, consequence, reason)


def trial_of(
    rows: NDArray[np.float32], program: Program, program_id: int, result: Any, label: str
) -> RunTrial | None:
    """Return a measured candidate as a trial; None if it is no example.

    Parameters
    ----------
    rows : ndarray of float32, shape (k, columns)
        Features of the candidate.
    program, program_id : Program, int
        Its program, and the local number of that or 0.
    result : tvm RunnerResult
        Result of its run. TVM's cost models do not see candidates that failed to build.
    label : str
        Name of the label policy.
    """
    if result.error_msg is not None:
        kind = classify(Phase.RUN, str(result.error_msg)).kind
        if kind == FailureKind.INFRASTRUCTURE:  # no fault of the program
            return None
        return RunTrial(program.digest, program_id, rows, float("nan"), FAILURES.index(kind))
    run_secs = run_secs_of(result)
    times = np.array(run_secs, np.float64)
    times = times[(times > 0) & (times < np.inf) & (times != NO_TIME)]
    if not len(times):
        if status_of(run_secs) == Status.OK:
            return None
        unknown = FAILURES.index(FailureKind.UNKNOWN)
        return RunTrial(program.digest, program_id, rows, float("nan"), unknown)
    policy: LabelPolicy = recipe_part("label", label)[0]
    seconds = float(policy.seconds(times, np.array([0, len(times)]))[0])
    return RunTrial(program.digest, program_id, rows, seconds, cut_short=is_cut_short(run_secs))


def _now() -> int:
    """Return microseconds since 1970, UTC, as measurements have them."""
    return time.time_ns() // 1000
