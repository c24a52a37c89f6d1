# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Straight-line arithmetic on the numbers of a program, for many programs in one call.

``tunedb.features.steps`` compiles the steps that many programs share once to a :class:`Formula`:
the places of the numbers among the decisions, a list of operations, and the column of each result.
This module reads the decisions of a program from their stored form and carries out the operations.
NaN is an unknown number, whose column is 0.
"""

from libc.math cimport NAN, ceil, floor, fmax, fmin, isnan, log2
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from tunedb.features._text cimport Text, number, peek, skip, take, value

#: Operations; the order is that of ``tunedb.features.steps.formulas.Op``.
cdef enum:
    CONST = 0
    SLOT = 1
    TAIL = 2
    DEVICE = 3
    TASK = 4
    ADD = 5
    SUB = 6
    MUL = 7
    DIV = 8
    CEILDIV = 9
    GCD = 10
    LEAST = 11  # a list operation takes values lists[a : a + b]
    GREATEST = 12
    SUM = 13
    PRODUCT = 14
    PREFIX = 15  # the product of the first values; value c is their number
    PICK = 16  # one of the values; value c is its index
    WITHIN = 17  # the longest product of first values that is at most value c
    N_OPS = 18

#: Storage forms of decisions, in the order of ``tunedb.features.steps.formulas.Stored``.
cdef enum:
    TRACE = 0  # [[[instruction, value], ...], literals, literals of the tail]
    VARINTS = 1  # unsigned LEB128
    KNOBS = 2  # [value, ...]
    N_STORED = 3

#: Outcomes for a program, in the order of ``tunedb.features.steps.formulas.COMPLAINTS``.
cdef enum:
    DONE = 0
    DAMAGED = 1
    UNEXPECTED = 2
    MISCOUNTED = 3
    NO_MEMORY = 4

cdef double BOUND = 1e30  # of a column, so that float32 holds it
cdef double WHOLE = 2.0**53  # to here float64 holds every whole number

cdef struct Operation:
    int32_t code
    int32_t a
    int32_t b
    int32_t c

cdef struct Output:
    int32_t column
    int32_t value
    int32_t log

cdef struct Decision:
    int64_t instruction
    int32_t slot
    int32_t count  # -1: one number instead of a list

cdef struct Plan:  # the contents of a Formula
    int stored, n_slots, n_decisions, n_literals, n_operations, n_outputs, n_columns
    int n_tail, n_device, n_task
    Decision* decisions
    Operation* operations
    Output* outputs
    double* constants
    int32_t* lists

cdef struct Job:
    const char* data
    size_t size
    const Plan* plan
    double* tail
    double* device
    double* task
    float* row
    int status


cdef class Numbers:
    """Numbers that many programs share: the facts of a tail, a target or a workload."""

    cdef double* data
    cdef readonly int size

    def __cinit__(self, values):
        self.size = len(values)
        self.data = <double*>calloc(self.size + 1, sizeof(double))
        if self.data == NULL:
            raise MemoryError
        cdef int i
        for i in range(self.size):
            self.data[i] = values[i]

    def __dealloc__(self):
        free(self.data)


cdef class Formula:
    """The arithmetic that computes a program's columns from its decisions.

    Parameters
    ----------
    stored : int
        Storage form of the decisions.
    n_slots : int
        Their number: for a trace the numbers of its decisions, then its literals.
    decisions : list of tuple
        ``(instruction, slot, count)`` by instruction, of a trace; a count of -1 is a decision
        that is not a list.
    n_literals : int
        Literals of a trace's sketch; they take the last slots.
    constants, lists : list
        Numbers and lists of values that operations refer to.
    operations : list of tuple
        ``(code, a, b, c)``; each computes the value of its own index from earlier ones.
    outputs : list of tuple
        ``(column, value, log)``; with `log`, ``log2(1 + value)`` is stored, with the value's sign.
    row : bytes
        The whole row as float32, with the columns that all programs share.
    n_tail, n_device, n_task : int
        Numbers of facts of a tail, of a target and of a workload.

    Raises
    ------
    ValueError
        A number refers to a missing value.
    """

    cdef Plan plan
    cdef bytes row

    def __cinit__(
        self, int stored, int n_slots, list decisions, int n_literals, list constants, list lists,
        list operations, list outputs, bytes row, int n_tail, int n_device, int n_task,
    ):
        self.plan.stored, self.plan.n_slots, self.plan.n_literals = stored, n_slots, n_literals
        self.plan.n_tail, self.plan.n_device, self.plan.n_task = n_tail, n_device, n_task
        self.plan.n_decisions, self.plan.n_operations = len(decisions), len(operations)
        self.plan.n_outputs, self.plan.n_columns = len(outputs), len(row) // sizeof(float)
        self.row = row
        self.plan.decisions = <Decision*>calloc(self.plan.n_decisions + 1, sizeof(Decision))
        self.plan.operations = <Operation*>calloc(self.plan.n_operations + 1, sizeof(Operation))
        self.plan.outputs = <Output*>calloc(self.plan.n_outputs + 1, sizeof(Output))
        self.plan.constants = <double*>calloc(len(constants) + 1, sizeof(double))
        self.plan.lists = <int32_t*>calloc(len(lists) + 1, sizeof(int32_t))
        if (
            self.plan.decisions == NULL or self.plan.operations == NULL
            or self.plan.outputs == NULL or self.plan.constants == NULL or self.plan.lists == NULL
        ):
            raise MemoryError
        cdef int i
        for i in range(len(constants)):
            self.plan.constants[i] = constants[i]
        for i in range(len(lists)):
            self.plan.lists[i] = lists[i]
        for i in range(self.plan.n_decisions):
            instruction, slot, count = decisions[i]
            self.plan.decisions[i] = Decision(instruction, slot, count)
        for i in range(self.plan.n_outputs):
            column, result, log = outputs[i]
            self.plan.outputs[i] = Output(column, result, log)
        for i in range(self.plan.n_operations):
            code, a, b, c = operations[i]
            self.plan.operations[i] = Operation(code, a, b, c)
        self._check(len(constants), len(lists))

    def __dealloc__(self):
        free(self.plan.decisions)
        free(self.plan.operations)
        free(self.plan.outputs)
        free(self.plan.constants)
        free(self.plan.lists)

    cdef int _check(self, int n_constants, int n_lists) except -1:
        """Raise ValueError for a number that would read or write outside of the arrays."""
        cdef int i, j, places
        cdef int n_own = self.plan.n_slots - self.plan.n_literals  # without literals
        cdef bint good = 0 <= self.plan.stored < N_STORED
        good &= self.plan.n_literals >= 0 and n_own >= 0
        cdef Operation* op
        for i in range(self.plan.n_decisions):
            places = 1 if self.plan.decisions[i].count < 0 else self.plan.decisions[i].count
            good &= 0 <= self.plan.decisions[i].slot and places <= n_own
            good &= self.plan.decisions[i].slot <= n_own - places
        for i in range(self.plan.n_outputs):
            good &= 0 <= self.plan.outputs[i].column < self.plan.n_columns
            good &= 0 <= self.plan.outputs[i].value < self.plan.n_operations
        for i in range(self.plan.n_operations):
            op = &self.plan.operations[i]
            if op.code < 0 or op.code >= N_OPS or op.a < 0:
                good = False
            elif op.code == CONST:
                good &= op.a < n_constants
            elif op.code == SLOT:
                good &= op.a < self.plan.n_slots
            elif op.code == TAIL:
                good &= op.a < self.plan.n_tail
            elif op.code == DEVICE:
                good &= op.a < self.plan.n_device
            elif op.code == TASK:
                good &= op.a < self.plan.n_task
            elif op.code < LEAST:
                good &= op.a < i and 0 <= op.b < i
            else:
                good &= 0 <= op.b <= n_lists and op.a <= n_lists - op.b
                good &= op.code < PREFIX or 0 <= op.c < i
                for j in range(op.a, op.a + op.b if good else op.a):
                    good &= 0 <= self.plan.lists[j] < i
        if not good:
            raise ValueError("a formula that refers to what is not there")
        return 0


def evaluate(
    list formulas, list decisions, list tails, list devices, list tasks, float[:, ::1] rows
):
    """Compute a row for each program; the GIL is released meanwhile.

    Parameters
    ----------
    formulas : list of Formula
        The formula of each program.
    decisions : list of bytes
        Decisions in their stored form.
    tails, devices, tasks : list of Numbers
        The facts of tail, target and workload.
    rows : memoryview of float32 (n, columns)
        Output. The row of a program that is not :data:`DONE` is undefined.

    Returns
    -------
    bytes
        The outcome for each program.

    Raises
    ------
    ValueError
        The lists have different lengths, or a formula expects other numbers or columns.
    """
    cdef Py_ssize_t n = len(formulas), i
    if not (len(decisions) == len(tails) == len(devices) == len(tasks) == rows.shape[0] == n):
        raise ValueError("lists of different lengths")
    if n == 0:
        return b""
    cdef size_t most = 0
    cdef Job* jobs = <Job*>calloc(n, sizeof(Job))
    cdef double* room = NULL
    if jobs == NULL:
        raise MemoryError
    try:
        for i in range(n):
            fill(&jobs[i], formulas[i], decisions[i], tails[i], devices[i], tasks[i], rows[i])
            most = max(most, <size_t>jobs[i].plan.n_slots + <size_t>jobs[i].plan.n_operations)
        room = <double*>malloc((most + 1) * sizeof(double))
        if room == NULL:
            raise MemoryError
        with nogil:
            for i in range(n):
                run(&jobs[i], room)
        return bytes([jobs[i].status for i in range(n)])
    finally:
        free(room)
        free(jobs)


cdef int fill(
    Job* job, Formula formula, bytes data, Numbers tail, Numbers device, Numbers task,
    float[::1] row,
) except -1:
    """Return a job, valid as long as the objects live."""
    if (
        formula is None or data is None or tail is None or device is None or task is None
        or formula.plan.n_columns != row.shape[0] or formula.plan.n_tail != tail.size
        or formula.plan.n_device != device.size or formula.plan.n_task != task.size
    ):
        raise ValueError("a formula for other numbers or columns")
    job.data, job.size = data, len(data)
    job.plan, job.tail, job.device, job.task = &formula.plan, tail.data, device.data, task.data
    job.row = &row[0]
    memcpy(job.row, <const char*>formula.row, formula.plan.n_columns * sizeof(float))
    return 0


cdef void run(Job* job, double* room) noexcept nogil:
    """Compute the row of one program."""
    cdef const Plan* plan = job.plan
    cdef double* slots = room
    cdef double* values = room + plan.n_slots
    cdef int i
    for i in range(plan.n_slots):
        slots[i] = NAN
    if plan.stored == VARINTS:
        job.status = read_varints(job.data, job.size, slots, plan.n_slots)
    elif plan.stored == KNOBS:
        job.status = read_knobs(job.data, job.size, slots, plan.n_slots)
    else:
        job.status = read_trace(plan, job.data, job.size, slots)
    if job.status != DONE:
        return
    for i in range(plan.n_operations):
        values[i] = value_of(plan, &plan.operations[i], slots, values, job)
    for i in range(plan.n_outputs):
        job.row[plan.outputs[i].column] = column_of(
            values[plan.outputs[i].value], plan.outputs[i].log
        )


cdef inline float column_of(double value, bint log) noexcept nogil:
    if isnan(value):
        return 0.0
    value = fmax(-BOUND, fmin(BOUND, value))
    if not log:
        return <float>value
    return <float>(log2(1.0 + value) if value >= 0 else -log2(1.0 - value))


cdef inline double value_of(
    const Plan* plan, const Operation* op, const double* slots, const double* values,
    const Job* job,
) noexcept nogil:
    """Carry out one operation."""
    cdef int code = op.code
    if code == SLOT:
        return slots[op.a]
    if code == MUL:
        return values[op.a] * values[op.b]
    if code >= LEAST:
        return of_list(code, op, plan.lists + op.a, values)
    if code == CONST:
        return plan.constants[op.a]
    if code == TAIL:
        return job.tail[op.a]
    if code == DEVICE:
        return job.device[op.a]
    if code == TASK:
        return job.task[op.a]
    if code == ADD:
        return values[op.a] + values[op.b]
    if code == SUB:
        return values[op.a] - values[op.b]
    if code == GCD:
        return gcd_of(values[op.a], values[op.b])
    if values[op.b] == 0:
        return NAN
    if code == DIV:
        return values[op.a] / values[op.b]
    return ceil(values[op.a] / values[op.b])


cdef double gcd_of(double a, double b) noexcept nogil:
    """Return the greatest common divisor of whole numbers from 1 on; unknown for other numbers."""
    if not (1 <= a <= WHOLE and 1 <= b <= WHOLE and floor(a) == a and floor(b) == b):
        return NAN
    cdef uint64_t x = <uint64_t>a, y = <uint64_t>b
    while y:
        x, y = y, x % y
    return <double>x


cdef double of_list(
    int code, const Operation* op, const int32_t* items, const double* values
) noexcept nogil:
    """Carry out an operation on a list; all but products skip unknown numbers."""
    cdef double result = NAN, item
    cdef int i, n = op.b
    if code == PICK:
        item = floor(values[op.c])
        return values[items[<int>item]] if 0 <= item < n else NAN
    if code == WITHIN:
        item = 1.0 if not isnan(values[op.c]) else NAN
        for i in range(n):
            result = item * values[items[i]]
            if not result <= values[op.c]:
                break
            item = result
        return item
    if code == PRODUCT or code == PREFIX:
        if code == PREFIX:
            if isnan(values[op.c]):
                return NAN
            n = <int>fmax(0.0, fmin(<double>n, values[op.c]))
        result = 1.0
        for i in range(n):
            result *= values[items[i]]
        return result
    for i in range(n):
        item = values[items[i]]
        if isnan(item):
            continue
        if isnan(result):
            result = item
        elif code == SUM:
            result += item
        elif code == GREATEST:
            result = fmax(result, item)
        else:
            result = fmin(result, item)
    return result


# ---------------------------------------------------------------- decisions in their stored form


cdef int read_varints(const char* data, size_t size, double* slots, int n) noexcept nogil:
    cdef size_t i
    cdef int slot = 0, shift = 0
    cdef uint64_t value = 0
    cdef uint8_t byte
    for i in range(size):
        byte = <uint8_t>data[i]
        if shift > 56:
            return DAMAGED
        value |= <uint64_t>(byte & 127) << shift
        shift += 7
        if byte < 128:
            if slot == n:
                return MISCOUNTED
            slots[slot] = <double>value
            slot += 1
            value = 0
            shift = 0
    if shift:
        return DAMAGED
    return DONE if slot == n else MISCOUNTED


cdef int read_knobs(const char* data, size_t size, double* slots, int n) noexcept nogil:
    cdef Text text
    cdef int status
    text.at, text.end = data, data + size
    status = read_list(&text, slots, n)
    if status == DONE and text.at != text.end:
        return DAMAGED
    return status


cdef int read_trace(
    const Plan* plan, const char* data, size_t size, double* slots
) noexcept nogil:
    cdef Text text
    cdef int status, n_own = plan.n_slots - plan.n_literals
    text.at, text.end = data, data + size
    if not take(&text, b"[") or not take(&text, b"["):
        return DAMAGED
    status = read_decisions(plan, &text, slots)
    if status != DONE:
        return status
    if not take(&text, b","):
        return DAMAGED
    status = read_list(&text, slots + n_own, plan.n_literals)
    if status != DONE:
        return status
    # The tail's literals follow from the decisions of the sketch: skip them.
    if not take(&text, b",") or not peek(&text, b"[") or not skip(&text) or not take(&text, b"]"):
        return DAMAGED
    return DONE if text.at == text.end else DAMAGED


cdef int read_decisions(const Plan* plan, Text* text, double* slots) noexcept nogil:
    """Read ``[index, value], ...]``, in the order of the instructions."""
    cdef int status, at = 0
    cdef double instruction
    cdef Decision* decision
    if take(text, b"]"):
        return DONE
    while True:
        if not take(text, b"[") or not number(text, &instruction) or not take(text, b","):
            return DAMAGED
        while at < plan.n_decisions and plan.decisions[at].instruction < instruction:
            at += 1  # a decision that the trace leaves open
        if at == plan.n_decisions or plan.decisions[at].instruction != instruction:
            return UNEXPECTED
        decision = &plan.decisions[at]
        at += 1
        if decision.count >= 0:
            status = read_list(text, slots + decision.slot, decision.count)
            if status != DONE:
                return status
        elif not value(text, slots + decision.slot):
            return DAMAGED
        if not take(text, b"]"):
            return DAMAGED
        if take(text, b"]"):
            return DONE
        if not take(text, b","):
            return DAMAGED


cdef int read_list(Text* text, double* slots, int n) noexcept nogil:
    """Read a list of exactly `n` values."""
    cdef int i = 0
    if not take(text, b"["):
        return DAMAGED
    if take(text, b"]"):
        return DONE if n == 0 else MISCOUNTED
    while True:
        if i == n:
            return MISCOUNTED
        if not value(text, slots + i):
            return DAMAGED
        i += 1
        if take(text, b"]"):
            return DONE if i == n else MISCOUNTED
        if not take(text, b","):
            return DAMAGED
