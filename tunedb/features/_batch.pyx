# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The rows of many scheduled modules with one release of the GIL.

A program takes some ten microseconds from TVM's objects to its rows, less than handing the GIL from
thread to thread costs; so each thread releases it once for all of its programs.
"""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

from tunedb.features._memory cimport grown
from tunedb.features._nest cimport Nest
from tunedb.features._per_store cimport Options, PerStore, TVM, standard_options
from tunedb.features._reader cimport Reader
from tunedb.features._scheduled cimport Scheduler


cdef class Batch:
    """Works through modules and keeps its memory. Each thread needs its own object.

    Parameters
    ----------
    reader : Reader
        A reader for the TVM of the modules.
    """

    cdef Reader reader
    cdef Nest nest
    cdef Scheduler scheduler
    cdef PerStore kernel
    cdef double* rows
    cdef int32_t room

    def __init__(self, Reader reader not None):
        self.reader = reader
        self.nest = Nest()
        self.scheduler = Scheduler()
        self.kernel = PerStore()

    def __dealloc__(self):
        free(self.rows)

    def rows_of(self, modules, bint gpu):
        """Return the rows of ``tunedb.scheduled`` for each module.

        Parameters
        ----------
        modules : list of tvm.IRModule
            Scheduled modules; they must not be changed meanwhile.
        gpu : bool
            Whether the target is a GPU.

        Returns
        -------
        list of ndarray of float64 (n_rows, 164), or None
            Views of one array; None for a module that the slower way has to explain: it is damaged,
            or has nodes of unknown types.
        """
        cdef Options options = standard_options(TVM, gpu)
        cdef int32_t count = <int32_t>len(modules), i, columns = 0
        cdef int32_t used = 0
        cdef double[::1] view
        cdef uintptr_t* roots = <uintptr_t*>malloc((count + 1) * sizeof(uintptr_t))
        cdef int32_t* sizes = <int32_t*>malloc((count + 1) * sizeof(int32_t))
        try:
            if roots == NULL or sizes == NULL:
                raise MemoryError
            for i in range(count):
                known = isinstance(modules[i], self.reader.object_type)
                roots[i] = <uintptr_t>modules[i].__chandle__() if known else 0
            with nogil:
                for i in range(count):
                    sizes[i] = self.work(roots[i], &options, used)
                    if sizes[i] > 0:
                        used += sizes[i] * self.kernel.n_columns
                    if sizes[i] >= 0:
                        columns = self.kernel.n_columns
            held = np.empty(used)
            if used:
                view = held
                memcpy(&view[0], self.rows, <size_t>used * sizeof(double))
            return self._parted(held, sizes, count, columns)
        finally:
            free(roots)
            free(sizes)

    cdef _parted(self, held, int32_t* sizes, int32_t count, int32_t columns):
        cdef int32_t i, start = 0
        found = []
        for i in range(count):
            if sizes[i] < 0:
                found.append(None)
                continue
            found.append(held[start:start + sizes[i] * columns].reshape(sizes[i], columns))
            start += sizes[i] * columns
        return found

    cdef int32_t work(self, uintptr_t root, const Options* options, int32_t used) noexcept nogil:
        """Append the rows of a module to those of others; return their number, or -1."""
        cdef void* moved
        cdef int64_t size
        if root == 0 or self.reader.read_root(self.nest, root):
            return -1
        if self.reader.has_unknown(self.nest) or self.scheduler.run(self.nest) != 0:
            return -1
        if self.kernel.run(self.scheduler.out, options) != 0:
            return -1
        size = <int64_t>self.kernel.n_rows * self.kernel.n_columns
        moved = grown(self.rows, &self.room, used + size + 1, sizeof(double))
        if moved == NULL:
            return -1
        self.rows = <double*>moved
        memcpy(self.rows + used, self.kernel.rows, <size_t>size * sizeof(double))
        return self.kernel.n_rows
