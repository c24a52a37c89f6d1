# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads numbers and lists of numbers from JSON text in C, and skips all other values.

``orjson`` wrote the text, without blanks. Damaged numbers are refused, and no read goes beyond the
end. Skipped values are checked for brackets and quotes alone.
"""

from libc.math cimport NAN, isnan, pow
from libc.string cimport memcmp

cdef enum:
    MAX_DEPTH = 64  # of skipped values

cdef struct Text:
    const char* at
    const char* end


cdef inline bint peek(const Text* text, char wanted) noexcept nogil:
    return text.at < text.end and text.at[0] == wanted


cdef inline bint take(Text* text, char wanted) noexcept nogil:
    if text.at < text.end and text.at[0] == wanted:
        text.at += 1
        return True
    return False


cdef inline bint value(Text* text, double* result) noexcept nogil:
    """Read a value; NaN if it is neither a number nor a word of annotations."""
    if text.at >= text.end:
        return False
    cdef char first = text.at[0]
    if first == b"-" or b"0" <= first <= b"9":
        return number(text, result)
    result[0] = NAN
    cdef const char* start = text.at
    if not skip(text):
        return False
    cdef size_t size = text.at - start
    # Annotations of AutoTVM, as ``tunedb.features.steps.autotvm`` counts them.
    if (size == 6 and memcmp(start, b'"none"', 6) == 0) or first == b"f":
        result[0] = 0
    elif (size == 8 and memcmp(start, b'"unroll"', 8) == 0) or first == b"t":
        result[0] = 1
    elif size == 5 and memcmp(start, b'"vec"', 5) == 0:
        result[0] = 2
    return True


cdef inline bint number(Text* text, double* result) noexcept nogil:
    """Read a number, to the precision of a float32 at least."""
    cdef double mantissa = 0
    cdef int exponent = 0, written = 0, digits = 0
    cdef inline bint negative = take(text, b"-"), negative_exponent
    while text.at < text.end and b"0" <= text.at[0] <= b"9":
        mantissa = 10 * mantissa + (text.at[0] - 48)
        text.at += 1
        digits += 1
    if take(text, b"."):
        while text.at < text.end and b"0" <= text.at[0] <= b"9":
            mantissa = 10 * mantissa + (text.at[0] - 48)
            exponent -= 1
            text.at += 1
            digits += 1
    if digits == 0 or digits > 400:
        return False
    if take(text, b"e") or take(text, b"E"):
        negative_exponent = take(text, b"-")
        if not negative_exponent:
            take(text, b"+")
        while text.at < text.end and b"0" <= text.at[0] <= b"9":
            written = min(10_000, 10 * written + (text.at[0] - 48))
            text.at += 1
        exponent += -written if negative_exponent else written
    if exponent:
        mantissa *= pow(10.0, exponent)
    if isnan(mantissa):  # infinite times zero
        mantissa = 0
    result[0] = -mantissa if negative else mantissa
    return True


cdef inline bint skip(Text* text) noexcept nogil:
    """Skip one JSON value; only its brackets and quotes are checked."""
    cdef int depth = 0
    cdef char byte
    while text.at < text.end:
        byte = text.at[0]
        if byte == b'"':
            if not skip_string(text):
                return False
        elif byte == b"[" or byte == b"{":
            depth += 1
            if depth > MAX_DEPTH:
                return False
            text.at += 1
            continue
        elif byte == b"]" or byte == b"}":
            if depth == 0:
                return False
            depth -= 1
            text.at += 1
        elif depth and (byte == b"," or byte == b":"):
            text.at += 1
            continue
        elif not skip_word(text):
            return False
        if depth == 0:
            return True
    return False


cdef inline bint skip_string(Text* text) noexcept nogil:
    text.at += 1
    while text.at < text.end:
        if text.at[0] == b"\\":
            text.at += 1
        elif text.at[0] == b'"':
            text.at += 1
            return True
        text.at += 1
    text.at = text.end  # an escape may have led beyond it
    return False


cdef inline bint skip_word(Text* text) noexcept nogil:
    """Skip a number, ``true``, ``false`` or ``null``."""
    cdef const char* start = text.at
    cdef char byte
    while text.at < text.end:
        byte = text.at[0]
        if not (
            b"0" <= byte <= b"9" or b"a" <= byte <= b"z" or byte == b"E"
            or byte == b"-" or byte == b"+" or byte == b"."
        ):
            break
        text.at += 1
    return text.at > start
