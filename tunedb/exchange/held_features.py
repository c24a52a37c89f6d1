"""Features of an exchange until it ends: a set is taken as a whole, or not at all.

They lie in a temporary file. An exchange with features has no watermark, so those that are lost
when it is killed come again.
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
from ..storage.exchanged import FeatureRows, ForeignSource

if TYPE_CHECKING:
    from ..extraction.verify import Sample
    from ..features.base import StepFeatures
    from ..storage.store import Store

#: Which set and which program; which source; rows, columns and bytes of the frame that follows.
_HEAD = struct.Struct(f"<I{identity.DIGEST_BYTES}sIIIQ")

#: Bytes that are held in memory; more lie on the disk.
_HELD_BYTES = 8 * 2**20

#: A feature set's name, version and columns.
_Key = tuple[str, int, tuple[str, ...]]


@dataclass(slots=True)
class _Held:
    """A feature set of which rows came.

    Parameters
    ----------
    number : int
        Its number in the file.
    extractor : StepFeatures or None
        What can compute its rows again.
    sample : Sample
        The programs whose rows are computed again.
    count : int
        How many rows came.
    is_refused : bool
        Whether some of the sample differ.
    """

    number: int
    extractor: StepFeatures | None
    sample: Sample
    count: int = 0
    is_refused: bool = False


class HeldFeatures:
    """The rows of features that an exchange brought so far.

    Parameters
    ----------
    store_key : str
        Key of the database here.

    Attributes
    ----------
    sources : list of ForeignSource
        To which the rows that :meth:`batches` yields refer by position.
    """

    def __init__(self, store_key: str) -> None:
        self.sources: list[ForeignSource] = []
        self._positions: dict[bytes, int] = {}
        self._store_key = store_key
        self._sets: dict[_Key, _Held] = {}
        self._keys: list[_Key] = []
        self._file: IO[bytes] | None = None

    def close(self) -> None:
        """Give back the memory and the disk."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._sets.clear()

    def add(self, one: FeatureRows, source: ForeignSource) -> None:
        """Keep rows.

        Parameters
        ----------
        one : FeatureRows
            Well-formed, and not known; the source that it refers to does not count.
        source : ForeignSource
            With whose record they came.
        """
        held = self._set(one)
        held.count += 1
        held.sample.offer(one.program)
        position = self._positions.setdefault(source.digest, len(self.sources))
        if position == len(self.sources):
            self.sources.append(source)
        head = (held.number, one.program, position, one.n_rows, one.n_columns, len(one.data))
        with _told():
            if self._file is None:
                self._file = _new_file()
            self._file.write(_HEAD.pack(*head) + one.data)

    def _set(self, one: FeatureRows) -> _Held:
        from ..extraction.verify import Sample, computing

        key = one.name, one.version, one.columns
        held = self._sets.get(key)
        if held is None:
            extractor = computing(one.name, one.version)
            sample = Sample(self._store_key, limits.FEATURE_SAMPLE)
            held = self._sets[key] = _Held(len(self._sets), extractor, sample)
            self._keys.append(key)
        return held

    def check(self, store: Store) -> Iterator[tuple[str, int]]:
        """Compute a sample of each set again, and refuse the sets of which some rows differ.

        Sets that no installed package computes of steps alone are not looked at.

        Parameters
        ----------
        store : Store
            Of the database here, which has the programs by now.

        Yields
        ------
        (str, int)
            Why a set is refused, and how many rows of it came.
        """
        for (name, version, _), held in self._sets.items():
            if held.extractor is None:
                continue
            differing, looked_at = self._differing(held, held.extractor, store)
            if differing:
                held.is_refused = True
                yield (
                    f"feature: {name} version {version}: {differing} of {looked_at} programs that "
                    f"were computed again differ; compute them: tunedb extract --set {name}",
                    held.count,
                )

    def _differing(self, held: _Held, extractor: StepFeatures, store: Store) -> tuple[int, int]:
        """Return how many programs of a set's sample differ, and how many were computed again."""
        from ..extraction.verify import differing
        from ..features import blobs

        found: dict[bytes, int] = {}
        for place, (number, program, *_) in self._heads():
            if number == held.number and program in held.sample:
                found.setdefault(program, place)
        # By what is stored: a dry run has nothing else, and no other program gets the rows.
        numbers = store.programs.ids(found)
        places = {id_: place for id_, place in zip(numbers, found.values(), strict=True) if id_}
        programs = store.programs.get(list(places))
        stored = (self._at(places[program.id]) for program in programs)
        said = (blobs.unpack(one.n_rows, one.n_columns, one.data) for one in stored)
        return len(differing(extractor, programs, said)), len(programs)

    def batches(self) -> Iterator[list[FeatureRows]]:
        """Yield the rows of the sets that are taken, as many as one transaction takes."""
        batch: list[FeatureRows] = []
        size = 0
        refused = {held.number for held in self._sets.values() if held.is_refused}
        for place, (number, *_) in self._heads():
            if number in refused:
                continue
            one = self._at(place)
            batch.append(one)
            size += len(one.data)
            if len(batch) >= limits.FEATURE_PROGRAMS or size >= limits.IMPORT_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _heads(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield where each row begins, and its head."""
        if self._file is None:
            return
        place = 0
        while True:
            with _told():
                self._file.seek(place)
                packed = self._file.read(_HEAD.size)
            if not packed:
                return
            head = _HEAD.unpack(packed)
            yield place, head
            place += _HEAD.size + head[-1]

    def _at(self, place: int) -> FeatureRows:
        """Return the row that begins somewhere."""
        assert self._file is not None  # noqa: S101 - a place was found in it
        with _told():
            self._file.seek(place)
            number, program, source, n_rows, n_columns, size = _HEAD.unpack(
                self._file.read(_HEAD.size)
            )
            data = self._file.read(size)
        name, version, columns = self._keys[number]
        return FeatureRows(program, name, version, columns, n_rows, n_columns, data, source)


def _new_file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_HELD_BYTES, prefix="tunedb-")


@contextmanager
def _told() -> Iterator[None]:
    """Raise StorageError where the temporary file cannot be used."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{tempfile.gettempdir()}: no room for the features of the exchange "
            f"({error.strerror}); name another folder in TMPDIR, or leave out --features"
        ) from error
