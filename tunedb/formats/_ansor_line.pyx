# cython: language_level=3, boundscheck=False, wraparound=False
"""Splitter for lines of auto_scheduler in their usual form: one pass, no JSON parser.

A log has few tasks, and few lists of steps that differ in more than numbers. A line is split into
the text of the task, the *template* of the steps (their text without the numbers that
:mod:`tunedb.programs.ansor` separates), these numbers, packed, and the text of the result. Task and
template repeat: the reader parses and checks them once and then looks them up.

Lines of any other form go to the JSON parser.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

#: Placeholder of a number in a template; no JSON text contains this byte.
DEF PLACE = 1

#: Digits of the longest number: 18 digits are 60 bits, or nine bytes of LEB128.
DEF MOST_DIGITS = 18


cdef struct Cut:
    const unsigned char* at
    const unsigned char* end
    unsigned char* template_
    size_t n_template
    unsigned char* numbers
    size_t n_numbers


cdef inline bint expect(Cut* cut, const char* text, size_t size) noexcept:
    """Skip a fixed text; False if the line has another one."""
    if <size_t>(cut.end - cut.at) < size or memcmp(cut.at, text, size) != 0:
        return False
    cut.at += size
    return True


cdef inline bint keep(Cut* cut, const char* text, size_t size) noexcept:
    """Copy a fixed text to the template."""
    if not expect(cut, text, size):
        return False
    memcpy(cut.template_ + cut.n_template, text, size)
    cut.n_template += size
    return True


cdef inline bint keep_digits(Cut* cut) noexcept:
    """Copy digits to the template."""
    cdef const unsigned char* start = cut.at
    while cut.at < cut.end and 48 <= cut.at[0] <= 57:
        cut.template_[cut.n_template] = cut.at[0]
        cut.n_template += 1
        cut.at += 1
    return cut.at > start


cdef inline bint take_number(Cut* cut) noexcept:
    """Pack a JSON integer; the template gets a placeholder."""
    cdef const unsigned char* start = cut.at
    cdef uint64_t value = 0
    while cut.at < cut.end and 48 <= cut.at[0] <= 57:
        if cut.at - start == MOST_DIGITS:
            return False
        value = value * 10 + (cut.at[0] - 48)
        cut.at += 1
    if cut.at == start or (start[0] == 48 and cut.at - start > 1):
        return False
    while value >= 128:
        cut.numbers[cut.n_numbers] = <unsigned char>(128 | (value & 127))
        cut.n_numbers += 1
        value >>= 7
    cut.numbers[cut.n_numbers] = <unsigned char>value
    cut.n_numbers += 1
    cut.template_[cut.n_template] = PLACE
    cut.n_template += 1
    return True


cdef bint cut_split(Cut* cut) noexcept:
    """Split the rest of ``["SP", stage, iter, extent, [lengths], inner_to_outer]``."""
    if not (keep(cut, b", ", 2) and keep_digits(cut) and keep(cut, b", ", 2)):
        return False
    if not (keep_digits(cut) and keep(cut, b", ", 2) and take_number(cut)):
        return False
    if not keep(cut, b", [", 3):
        return False
    if not keep(cut, b"]", 1):
        while True:
            if not take_number(cut):
                return False
            if keep(cut, b"]", 1):
                break
            if not keep(cut, b", ", 2):
                return False
    return keep(cut, b", ", 2) and keep_digits(cut) and keep(cut, b"]", 1)


cdef bint cut_other(Cut* cut, bint pragma) noexcept:
    """Split the rest of any other step; packs the number after ``$`` in a pragma."""
    cdef int depth = 1
    cdef bint text = False
    cdef unsigned char c
    while cut.at < cut.end:
        c = cut.at[0]
        if c < 32 or c == 92:  # control characters and escapes are for the JSON parser
            return False
        cut.template_[cut.n_template] = c
        cut.n_template += 1
        cut.at += 1
        if c == 34:
            text = not text
        elif text:
            if c == 36 and pragma:
                return depth == 1 and take_number(cut) and keep(cut, b'"]', 2)
        elif c == 91:
            depth += 1
        elif c == 93:
            depth -= 1
            if depth == 0:
                return True
    return False


cdef bint cut_steps(Cut* cut) noexcept:
    """Split a list of steps, including its brackets."""
    if not keep(cut, b"[", 1):
        return False
    if keep(cut, b"]", 1):
        return True
    while True:
        if keep(cut, b'["SP"', 5):
            if not cut_split(cut):
                return False
        elif keep(cut, b'["PR"', 5):
            if not cut_other(cut, True):
                return False
        elif keep(cut, b'["', 2):
            # The quote of the step's code is open; cut_other must see it to track the text.
            cut.at -= 1
            cut.n_template -= 1
            if not cut_other(cut, False):
                return False
        else:
            return False
        if keep(cut, b"]", 1):
            return True
        if not keep(cut, b", ", 2):
            return False


cdef bint skip_list(Cut* cut) noexcept:
    """Skip a list of any content; texts may hold brackets."""
    cdef int depth = 0
    cdef bint text = False
    cdef unsigned char c
    if cut.at >= cut.end or cut.at[0] != 91:
        return False
    while cut.at < cut.end:
        c = cut.at[0]
        cut.at += 1
        if text:
            if c == 92:
                cut.at += 1
            elif c == 34:
                text = False
        elif c == 34:
            text = True
        elif c == 91:
            depth += 1
        elif c == 93:
            depth -= 1
            if depth == 0:
                return True
    return False


def cut_line(bytes line):
    """Split a line into task, template, numbers, result and version.

    Parameters
    ----------
    line : bytes
        The line, without its line break.

    Returns
    -------
    tuple of bytes or None
        ``(task, template, numbers, result, version)``: the texts of the task and of the result as
        JSON, the template, the numbers as :mod:`tunedb.programs.ansor` packs them, and the version's
        text. None for a line of another form.
    """
    cdef Py_ssize_t size = PyBytes_GET_SIZE(line)
    cdef Cut cut
    cdef const unsigned char* start
    cdef bytes task, result, version
    cdef unsigned char* room
    cut.at = <const unsigned char*>PyBytes_AS_STRING(line)
    cut.end = cut.at + size
    if not expect(&cut, b'{"i": [', 7):
        return None
    start = cut.at
    if not skip_list(&cut):
        return None
    task = PyBytes_FromStringAndSize(<const char*>start, cut.at - start)
    if not expect(&cut, b", [[], ", 7):
        return None
    # A number takes at most nine bytes for at most 18 digits; neither part outgrows the line.
    room = <unsigned char*>malloc(2 * size)
    if room == NULL:
        raise MemoryError
    try:
        cut.template_ = room
        cut.numbers = room + size
        cut.n_template = cut.n_numbers = 0
        if not cut_steps(&cut) or not expect(&cut, b']], "r": ', 9):
            return None
        start = cut.at
        if not skip_list(&cut):
            return None
        result = PyBytes_FromStringAndSize(<const char*>start, cut.at - start)
        if not expect(&cut, b', "v": "', 8):
            return None
        start = cut.at
        while cut.at < cut.end and cut.at[0] != 34:
            if cut.at[0] < 32 or cut.at[0] == 92:
                return None
            cut.at += 1
        version = PyBytes_FromStringAndSize(<const char*>start, cut.at - start)
        if not expect(&cut, b'"}', 2) or cut.at != cut.end:
            return None
        return (
            task,
            PyBytes_FromStringAndSize(<const char*>cut.template_, cut.n_template),
            PyBytes_FromStringAndSize(<const char*>cut.numbers, cut.n_numbers),
            result,
            version,
        )
    finally:
        free(room)
