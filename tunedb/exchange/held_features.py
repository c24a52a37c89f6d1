"""Features received in an exchange, held until its end: a set is accepted as a whole or not at all.

They are kept in a temporary file. An exchange with features has no watermark, so features lost with
a killed process are received again.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from .. import identity, limits
from ..errors import StorageError
from ..storage.exchange_types import ForeignFeatures, ForeignSource

if TYPE_CHECKING:
    from ..extraction.verify import Sample
    from ..features.base import StepFeatures
    from ..storage.store import Store

#: Number of the set, program, position of the source; rows, columns and bytes of the frame.
_HEAD = struct.Struct(f"<I{identity.DIGEST_BYTES}sIIIQ")

#: Bytes held in memory; more are on disk.
_HELD_BYTES = 8 * 2**20

#: A feature set's name, version and columns.
_Key = tuple[str, int, tuple[str, ...]]


@dataclass(slots=True)
class _ReceivedSet:
    """A feature set of which rows were received.

    Parameters
    ----------
    number : int
        Its number in the file.
    extractor : StepFeatures or None
        Computes its rows.
    sample : Sample
        Programs whose rows are computed again.
    count : int
        Number of received rows.
    is_rejected : bool
        True if some rows of the sample differ.
    """

    number: int
    extractor: StepFeatures | None
    sample: Sample
    count: int = 0
    is_rejected: bool = False


class HeldFeatures:
    """Rows of features received so far.

    Parameters
    ----------
    store_key : str
        Key of this database.

    Attributes
    ----------
    sources : list of ForeignSource
        Sources to which the rows of :meth:`batches` refer by position.
    """

    def __init__(self, store_key: str) -> None:
        self.sources: list[ForeignSource] = []
        self._positions: dict[bytes, int] = {}
        self._store_key = store_key
        self._sets: dict[_Key, _ReceivedSet] = {}
        self._keys: list[_Key] = []
        self._file: IO[bytes] | None = None

    def close(self) -> None:
        """Release memory and disk."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._sets.clear()

    def add(self, rows: ForeignFeatures, source: ForeignSource) -> None:
        """Keep rows.

        Parameters
        ----------
        rows : ForeignFeatures
            Well-formed new rows; their `source` is ignored.
        source : ForeignSource
            Source of the record with which they came.
        """
        held = self._set(rows)
        held.count += 1
        held.sample.offer(rows.program)
        position = self._positions.setdefault(source.digest, len(self.sources))
        if position == len(self.sources):
            self.sources.append(source)
        head = (held.number, rows.program, position, rows.n_rows, rows.n_columns, len(rows.data))
        with _file_errors():
            if self._file is None:
                self._file = _new_file()
            self._file.write(_HEAD.pack(*head) + rows.data)

    def _set(self, rows: ForeignFeatures) -> _ReceivedSet:
        from ..extraction.verify import Sample, computing

        key = rows.name, rows.version, rows.columns
        held = self._sets.get(key)
        if held is None:
            extractor = computing(rows.name, rows.version)
            sample = Sample(self._store_key, limits.FEATURE_SAMPLE)
            held = self._sets[key] = _ReceivedSet(len(self._sets), extractor, sample)
            self._keys.append(key)
        return held

    def check(self, store: Store) -> Iterator[tuple[str, int]]:
        """Compute a sample of each set again, and reject sets with differing rows.

        Sets that no installed package computes from steps alone are not checked.

        Parameters
        ----------
        store : Store
            This database, which has the programs by now.

        Yields
        ------
        (str, int)
            Reason for the rejection of a set, and number of its rows.
        """
        for (name, version, _), held in self._sets.items():
            if held.extractor is None:
                continue
            differing, checked = self._differing(held, held.extractor, store)
            if differing:
                held.is_rejected = True
                yield (
                    f"feature: {name} version {version}: {differing} of {checked} programs that "
                    f"were computed again differ; compute them: tunedb extract --set {name}",
                    held.count,
                )

    def _differing(
        self, held: _ReceivedSet, extractor: StepFeatures, store: Store
    ) -> tuple[int, int]:
        """Return the numbers of differing and of checked programs in a set's sample."""
        from ..extraction.verify import differing
        from ..features import blobs

        by_digest: dict[bytes, int] = {}
        for place, (number, program, *_) in self._heads():
            if number == held.number and program in held.sample:
                by_digest.setdefault(program, place)
        # Only stored programs: no others get the rows, and a dry run stores none.
        ids = store.programs.ids(by_digest)
        places = {id_: place for id_, place in zip(ids, by_digest.values(), strict=True) if id_}
        programs = store.programs.get(list(places))
        received = (self._at(places[program.id]) for program in programs)
        arrays = (blobs.unpack(rows.n_rows, rows.n_columns, rows.data) for rows in received)
        return len(differing(extractor, programs, arrays)), len(programs)

    def batches(self) -> Iterator[list[ForeignFeatures]]:
        """Yield the rows of accepted sets, as many as one transaction takes."""
        batch: list[ForeignFeatures] = []
        size = 0
        rejected = {held.number for held in self._sets.values() if held.is_rejected}
        for place, (number, *_) in self._heads():
            if number in rejected:
                continue
            rows = self._at(place)
            batch.append(rows)
            size += len(rows.data)
            if len(batch) >= limits.FEATURE_PROGRAMS or size >= limits.IMPORT_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _heads(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the position and the head of each entry in the file."""
        if self._file is None:
            return
        place = 0
        while True:
            with _file_errors():
                self._file.seek(place)
                packed = self._file.read(_HEAD.size)
            if not packed:
                return
            head = _HEAD.unpack(packed)
            yield place, head
            place += _HEAD.size + head[-1]

    def _at(self, place: int) -> ForeignFeatures:
        """Return the rows at a position in the file."""
        assert self._file is not None  # noqa: S101 - the position is from it
        with _file_errors():
            self._file.seek(place)
            number, program, source, n_rows, n_columns, size = _HEAD.unpack(
                self._file.read(_HEAD.size)
            )
            data = self._file.read(size)
        name, version, columns = self._keys[number]
        return ForeignFeatures(program, name, version, columns, n_rows, n_columns, data, source)


def _new_file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_HELD_BYTES, prefix="tunedb-")


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raise StorageError if the temporary file cannot be used."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{tempfile.gettempdir()}: no room for the features of the exchange "
            f"({error.strerror}); name another folder in TMPDIR, or leave out --features"
        ) from error
