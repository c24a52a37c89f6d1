"""Training on more feature rows than memory holds, in external memory.

The rows are read from the database once, in batches of programs, and written to a file in the form
of the row model. From there XGBoost bins them page by page, and writes the bins to disk, where each
round of boosting reads them again (``ExtMemQuantileDMatrix``, since XGBoost 3.0). Labels, scores
and gradients stay in memory, about 150 bytes for each program and 30 for each row.

The bounds of the bins come from the same sample of rows as in memory, and the division into pages
changes no bin and no tree. So the model equals that of :func:`tunedb.models.training.fit`, to the
byte, with samples of rows and columns too. Limits of XGBoost: only ``hist``, only on the CPU unless
the arrays are on the GPU, and one ``max_bin`` for matrix and booster.
"""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StorageError, UsageError
from ..system.temporary import TemporaryFolder
from ._xgboost import import_xgboost, interrupt_later
from .boosting import BINS, Matrix, sample
from .dataset import with_rows
from .training import Fitted, fit

if TYPE_CHECKING:
    from ..storage.store import Store
    from .base import RowModel
    from .dataset import Dataset
    from .recipe import Recipe
    from .training import OnRound

#: Bytes of feature rows in memory at a time. The bins of a page take half of that. Small pages cost
#: time: with pages of 3 MiB a round takes three times as long.
PAGE_BYTES = 64 * 2**20

#: Bits on disk of each value: XGBoost stores its bin twice, by rows and by columns, and a flag for
#: missing values. In addition, bytes for each row, and in each page for each bound of a bin.
_VALUE_BITS, _ROW_BYTES, _BOUND_BYTES, _PAGE_BYTES = 17, 8, 9, 1024

_FLOAT = np.dtype(np.float32)


def fit_external(
    store: Store,
    examples: Dataset,
    recipe: Recipe,
    *,
    page_bytes: int = PAGE_BYTES,
    cache_dir: str | Path | None = None,
    threads: int | None = None,
    on_round: OnRound | None = None,
) -> Fitted:
    """Train a model on rows that stay on disk, with the same result as in memory.

    Parameters
    ----------
    store : Store
        Store that the examples were loaded from.
    examples : Dataset
        Examples without rows (``load(..., rows=False)``).
    recipe : Recipe
        Recipe of the model.
    page_bytes : int
        Bytes of feature rows in memory at a time; a program is never divided.
    cache_dir : path, optional
        Parent of the folder with the files, which is removed at the end, also after an error or
        interruption; by default the system's folder for temporary files. The files take six bytes
        for each value, and two once boosting begins.
    threads, on_round
        As for :func:`tunedb.models.training.fit`.

    Raises
    ------
    UsageError
        As :func:`tunedb.models.training.fit`; or the folder does not exist.
    FormatError
        A row has NaN or an infinity.
    StorageError
        The rows of the examples changed in the database, or the disk is full.
    """
    try:
        folder = TemporaryFolder("training", None if cache_dir is None else Path(cache_dir))
    except OSError as error:
        raise UsageError(
            f"{cache_dir or tempfile.gettempdir()}: feature rows cannot be written there "
            f"({error.strerror}); choose another folder"
        ) from None
    with folder:
        paging = Paging(store, folder.path, page_bytes)
        try:
            return fit(
                examples, recipe, threads=threads, on_round=on_round, make_matrix=paging.matrix
            )
        except BaseException as error:
            # Frames of the traceback hold the matrix, which must be freed before its files.
            traceback.clear_frames(error.__traceback__)
            raise


def check_any_rows(examples: Dataset) -> None:
    """Raise UsageError if no program has a row."""
    if not examples.starts[-1]:
        raise UsageError(
            f"{len(examples)} programs have no rows of features {examples.feature_set}; "
            f"run: tunedb extract --set {examples.feature_set}"
        )


@dataclass(frozen=True, slots=True)
class Paging:
    """A builder of matrices with pages on disk.

    Parameters
    ----------
    store : Store
        Store of the rows.
    folder : Path
        Folder of the files.
    page_bytes : int
        Bytes of rows in memory at a time.
    """

    store: Store
    folder: Path
    page_bytes: int

    def matrix(self, examples: Dataset, row_model: RowModel, threads: int, seed: int) -> Matrix:
        """Return the matrix of training programs (:data:`tunedb.models.training.MakeMatrix`)."""
        check_any_rows(examples)
        width = len(row_model.columns(examples.columns))
        rows = _RowFile(self.folder / "rows", width, self._rows_of(width))
        try:
            sizes = []
            for batch in self._batches(examples):
                tree_rows, starts = row_model.rows(batch.rows, batch.starts)
                rows.append(tree_rows)
                sizes.append(np.diff(starts))
            starts = np.concatenate(([0], np.cumsum(np.concatenate(sizes))))
            self._check_space(rows, int(starts[-1]))
            chosen = rows.take(sample(int(starts[-1]), seed))
            with interrupt_later():
                bins = import_xgboost().QuantileDMatrix(chosen, max_bin=BINS, nthread=threads)
            data = _paged(rows, self.folder / "bins", bins, threads)
        except OSError as error:
            raise _unwritable(self.folder, error.strerror) from None
        finally:
            rows.path.unlink(missing_ok=True)
        if data.num_row() != starts[-1]:
            # ctypes dropped a Ctrl-C that came during XGBoost's callback, outside of Python code.
            raise KeyboardInterrupt
        return Matrix(data, starts)

    def _batches(self, examples: Dataset) -> Iterator[Dataset]:
        """Yield the programs in batches, with their rows."""
        most = self._rows_of(len(examples.columns))
        first = 0
        while first < len(examples):
            # As many programs as fit into `most` rows, and at least one.
            end = int(np.searchsorted(examples.starts, examples.starts[first] + most, "right")) - 1
            end = max(end, first + 1)
            yield with_rows(self.store, examples.take(np.arange(first, end)))
            first = end

    def _check_space(self, rows: _RowFile, count: int) -> None:
        """Raise StorageError if the disk is too small for the bins; XGBoost would abort."""
        pages = count // rows.page + 1
        needed = count * rows.width * _VALUE_BITS // 8 + count * _ROW_BYTES
        needed += pages * (rows.width * BINS * _BOUND_BYTES + _PAGE_BYTES)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise _unwritable(
                self.folder, f"{needed >> 20} MiB are needed, but {free >> 20} are free"
            )

    def _rows_of(self, width: int) -> int:
        return max(1, self.page_bytes // (_FLOAT.itemsize * max(1, width)))


@dataclass(frozen=True, slots=True)
class _RowFile:
    """A file of rows of equal width, read in pages of `page` rows."""

    path: Path
    width: int
    page: int

    def append(self, rows: NDArray[np.float32]) -> None:
        """Add rows."""
        with self.path.open("ab") as file:
            # ndarray.tofile does not notice that a disk is full.
            file.write(np.ascontiguousarray(rows, _FLOAT).data)

    def pages(self) -> Iterator[NDArray[np.float32]]:
        """Yield all rows, page by page."""
        with self.path.open("rb") as file:
            while len(read := np.fromfile(file, _FLOAT, self.page * self.width)):
                yield read.reshape(-1, self.width)

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows with the given numbers, which ascend."""
        taken, first = [], 0
        for page in self.pages():
            low, high = np.searchsorted(numbers, (first, first + len(page)))
            taken.append(page[numbers[low:high] - first])
            first += len(page)
        return np.concatenate(taken)


def _paged(rows: _RowFile, prefix: Path, bins: Any, threads: int) -> Any:
    """Return an ExtMemQuantileDMatrix of the rows, with the bins of matrix `bins`."""
    xgboost = import_xgboost()

    class Pages(xgboost.DataIter):  # type: ignore[misc, name-defined]
        """XGBoost's data iterator; keeps an exception until XGBoost has returned."""

        def __init__(self) -> None:
            super().__init__(cache_prefix=str(prefix))
            self.failed: BaseException | None = None
            self.reset()

        def reset(self) -> None:
            self.pages = rows.pages()

        def next(self, input_data: Callable[..., None]) -> bool:
            if self.failed is not None or caught:
                return False
            try:
                page = next(self.pages, None)
                if page is None:
                    return False
                input_data(data=page)
            except BaseException as error:  # ctypes would print and drop a KeyboardInterrupt
                self.failed = error
                return False
            return True

    reader = Pages()
    try:
        with interrupt_later() as caught:
            data = xgboost.ExtMemQuantileDMatrix(reader, max_bin=BINS, nthread=threads, ref=bins)
    except xgboost.core.XGBoostError as error:
        if reader.failed is None:
            raise _unwritable(prefix.parent, str(error).partition("\n")[0]) from None
    if reader.failed is not None:
        raise reader.failed
    return data


def _unwritable(folder: Path, reason: str | None) -> StorageError:
    return StorageError(
        f"{folder}: feature rows cannot be written there ({reason}); choose another folder"
    )
