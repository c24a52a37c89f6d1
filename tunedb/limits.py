"""Bounds on all input from outside, each with its reason."""

from __future__ import annotations

#: Longest line of a tuning log in bytes. The longest of the public logs has 2.1 MB (a workload
#: with constants); a longer line is quarantined by its first bytes. Parsing a line takes memory of
#: up to fifteen times its length.
MAX_LINE_BYTES = 16 * 2**20

#: Most instructions in one trace. Real ones stay below 300.
MAX_INSTRUCTIONS = 100_000

#: Most values in one JSON text. An empty list takes 2 bytes as text and 64 as an object, so a line
#: of the longest allowed length could take 2 GB. The largest public module has 150,000.
MAX_VALUES = 1_000_000

#: Bytes of a file of a GPU tuner that is one JSON document, unpacked. The largest public one has
#: 12 MB; parsed it takes up to ten times as much.
MAX_DOCUMENT_BYTES = 64 * 2**20

#: Values in such a document. The largest public one has 600,000; a float of ten digits takes 24
#: bytes as an object and eight in its list.
MAX_DOCUMENT_VALUES = 8_000_000

#: Bytes of a file beside such a document that may name its kernel and its device. T1 inputs have
#: 8 KB.
MAX_NEIGHBOUR_BYTES = 2**20

#: Warps of a thread block that a file of Triton may name. No GPU has a block of more than 32.
MAX_WARPS = 64

#: Characters of an expression in a T1 input. Those of the public ones stay below 200.
MAX_EXPRESSION_CHARS = 4_096

#: Values in a list that an expression of a T1 input returns. Those of the public ones stay below
#: 40.
MAX_EXPRESSION_VALUES = 100_000

#: Operations that evaluating one such expression may take: a list of the longest, three each.
MAX_EXPRESSION_STEPS = 1_000_000

#: Deepest nesting of such an expression, which is walked recursively: a sum of n terms nests n
#: deep.
MAX_EXPRESSION_DEPTH = 64

#: Bytes of a tuning space that the records of its file keep. Those of the public ones stay below
#: 2 KB.
MAX_SPACE_BYTES = 32 * 2**10

#: Deepest nesting of a JSON value. Real ones nest five deep, and every walk over them is recursive.
MAX_DEPTH = 32

#: Bytes of one workload file's modules in memory, compressed to about a tenth, while its records
#: are read. Those of the largest public database take 0.2 MB.
MAX_WORKLOADS_BYTES = 128 * 2**20

#: Bytes of a body whose digest is cached; a longer one is hashed again.
MAX_REMEMBERED_BYTES = 2**14

#: Longest target text. Real ones stay below 300.
MAX_TARGET_CHARS = 16_384

#: Longest label of a function or task; the workload has the whole name.
MAX_NAME_CHARS = 200

#: Longest version text of a log.
MAX_VERSION_CHARS = 64

#: Most repeats in one measurement.
MAX_RUN_SECS = 100_000

#: Longest stored failure message; the middle of a longer one is cut out.
MAX_MESSAGE_CHARS = 16_384

#: Bytes of an unreadable line that quarantine keeps.
MAX_QUARANTINE_BYTES = 2**20

#: Largest body (workload graph, script) after decompression.
MAX_BODY_BYTES = 256 * 2**20

#: Factor by which a compressed log may grow, once :data:`MIN_EXPANDED_BYTES` are unpacked. Logs
#: reach 60; gzip itself ends at 1,032.
MAX_EXPANSION = 1_000

#: Unpacked bytes from which the expansion counts: a small file of equal lines is no attack.
MIN_EXPANDED_BYTES = 64 * 2**20

#: Memory that unpacking a stream may take. ``xz -9`` takes 65 MiB, ``zstd --ultra -22`` 128 MiB;
#: a frame may ask for gigabytes.
MAX_WINDOW_BYTES = 128 * 2**20

#: Lines before the first one that a format recognises; beyond them the file is no log.
MAX_LEADING_LINES = 1_000

#: Lines that an import names at its end; it counts the others, and all are in quarantine.
MAX_NAMED_LINES = 5

#: Quarantined lines of one file, after which the rest is not read. A byte of junk takes 85 in
#: quarantine.
MAX_QUARANTINED_LINES = 100_000

#: Formats and targets of one file that an import counts separately.
MAX_GROUPS = 1_000

#: Reasons that an import counts separately; a reason may name a column, so each line may have its
#: own.
MAX_REASONS = 50

#: Lines between two reports of progress.
PROGRESS_LINES = 256

#: Lines over which equal lines of a file are counted, and twice as many at most: 25 MB. Records
#: with a time of measurement are equal only if a line was copied.
EQUAL_LINES = 250_000

#: Rows in one write transaction of a live store: 5,000 keep a writer below 0.2 s, so that others
#: get their turn.
BATCH_ROWS = 5_000

#: Rows in one write transaction of an import: larger batches change each page of an index less
#: often (18 instead of 33 us per record in a database of a million), and hold a writer 0.6 s.
IMPORT_ROWS = 20_000

#: Bytes of lines in one write transaction of an import: 20,000 lines may be long ones. Lines of
#: auto_scheduler (1.2 KB) stay below it.
IMPORT_BYTES = 32 * 2**20

#: Bytes of one program's rows of features, unpacked. A row of 164 columns takes 656, and a program
#: has a row for each of its stores: tens.
MAX_FEATURE_BYTES = 16 * 2**20

#: Programs whose features are read, computed and stored in one transaction: 0.1 s at 20,000 a
#: second, so that a kill loses little, and little memory is used.
FEATURE_PROGRAMS = 2_000

#: Programs whose features are computed again before an exchange takes rows of a set: with 5 of 100
#: rows forged, the check detects 998 of 1,000 exchanges. They take 0.1 s, half a second if each has
#: a sketch of its own.
FEATURE_SAMPLE = 128

#: Seconds that a server may take to accept a connection; across the world it takes one.
CONNECT_S = 10

#: Seconds that one statement may take on a server, by default (``TUNEDB_TIMEOUT``). Reads go page
#: by page: the longest, a count of ten million records, takes ten. tunedb gives up on a silent
#: server after half as much again.
STATEMENT_S = 60

#: Seconds that a statement waits on a server for another process's locks: a batch of an import
#: takes 0.6. SQLite waits as long.
LOCK_S = 30

#: Seconds for statements that read, or change, all of a large database: upgrades, the trust of a
#: source, vacuum, training records. Ten million records take minutes.
LONG_STATEMENT_S = 3_600

#: Seconds that a tuning run waits for a lost server: PostgreSQL restarts in some, and recovers from
#: a crash in up to a minute.
RECONNECT_S = 120

#: Seconds before the first attempt to reach a server again; each wait is twice the one before.
FIRST_WAIT_S = 0.1

#: Seconds between two attempts at most, so that a server is used soon after its return.
LONGEST_WAIT_S = 5

#: Seconds between two attempts of an outbox at most: hours without a server cost nothing.
OUTBOX_WAIT_S = 60

#: Seconds that a run waits at its end for its outbox; unpushed records stay in the file.
OUTBOX_CLOSE_S = 15

#: Bytes of the sketch or the tail of a foreign program, checked before anything is parsed. Those of
#: the public logs stay below 40 KB.
MAX_FOREIGN_PART_BYTES = 256 * 2**10

#: Bytes of a foreign program's decisions. Those of the public logs stay below 1 KB.
MAX_FOREIGN_DECISION_BYTES = 64 * 2**10

#: Instructions or steps of a foreign program. Real ones stay below 300, and the time that TVM takes
#: to apply them grows faster than their number.
MAX_FOREIGN_STEPS = 4_096

#: Longest name of a block, a knob or an intrinsic in a foreign program. TVM's stay below 100.
MAX_FOREIGN_NAME_CHARS = 256

#: Longest text of an index map in a foreign program. One of six dimensions takes 5 KB.
MAX_INDEX_MAP_CHARS = 64 * 2**10

#: Bytes of the rows in a block of a bundle, before compression: memory, not speed.
BLOCK_BYTES = 8 * 2**20

#: Largest block of a bundle, for a row larger than :data:`BLOCK_BYTES`. The longest line of a log
#: becomes a workload of 16 MiB.
MAX_BLOCK_BYTES = 64 * 2**20

#: Bytes of a bundle's manifest: a selection may name hundreds of workloads.
MAX_MANIFEST_BYTES = 2**18

#: Rows of a bundle for each of its bytes, from :data:`MIN_BUNDLE_ROWS` on: equal values of a column
#: take no bytes, so a few bytes could claim billions of rows. Real records take ten and more.
MAX_ROWS_PER_BYTE = 8

#: Rows from which that bound applies: a log of equal lines is no attack.
MIN_BUNDLE_ROWS = 1_000_000

#: Largest value in a row of a foreign database, and largest unpacked body. No line of a log can
#: hold a longer one.
MAX_FOREIGN_BYTES = 16 * 2**20

#: Seconds that one statement on a foreign file may take: a page takes 0.1, a scan of a million
#: records 3.
FOREIGN_STATEMENT_S = 60

#: Least bytes in a second for the check of a foreign file: a slow disk has ten times as many.
FOREIGN_CHECK_RATE = 4 * 2**20

#: Steps of SQLite's machine, in thousands, to read the list of tables in a foreign file. Forty
#: take one; a file with a million would take a gigabyte of memory.
FOREIGN_OPEN_STEPS = 50

#: Tables, indexes and so on in a foreign file. A database has 50.
FOREIGN_OBJECTS = 500

#: Bytes of values in one chunk of an exchange: 5,000 measurements have 2 MB.
CHUNK_BYTES = 8 * 2**20

#: Rows that others refer to (workloads, sketches, sessions, …) in one exchange: their numbers and
#: digests stay in memory, 180 bytes each. A million records of the public data have 60,000.
MAX_SHARED_ROWS = 1_000_000

#: Bytes of the targets, sessions and sources of one exchange, which stay in memory.
MAX_SHARED_BYTES = 64 * 2**20

#: Bytes of a foreign record beside its times: arguments, context, extra, fingerprint of its
#: session. They are hashed with each record; real ones stay below 4 KB.
MAX_FOREIGN_EXTRA_BYTES = 64 * 2**10

#: Longest name of a source, a session or a workload, and longest key of an alias, in a foreign
#: database. Paths have up to 4,096.
MAX_FOREIGN_LABEL_CHARS = 4_096

#: Counters of one launch. Nsight Compute's full set has 200, all that it knows for a GPU 3,000.
MAX_COUNTERS = 4_096

#: Longest name of a counter, its unit, a profiler or its version. Names of Nsight Compute stay
#: below 100.
MAX_COUNTER_CHARS = 256

#: Longest name of a kernel: nested templates take some thousand characters.
MAX_KERNEL_CHARS = 16_384

#: Threads of a block. CUDA and ROCm end at 1,024; OpenCL on processors at 8,192.
MAX_BLOCK_THREADS = 65_536

#: Thread blocks that a FAIR T1 input may state by its values, each of which is checked. The largest
#: space of the public inputs has 1,066.
MAX_STATED_BLOCKS = 16_384

#: Launches of one measurement: programs of several kernels have tens.
MAX_LAUNCHES = 4_096

#: Bytes of a configuration of programs to profile. A hundred programs take 50 KB.
MAX_CONFIGURATION_BYTES = 2**20

#: Largest extent of a thread block that a configuration may name. CUDA's limit is 1,024, OpenCL
#: devices go up to 8,192.
MAX_BLOCK_EXTENT = 16_384

#: Variants of one plan. Each runs a dozen times under a profiler: so many take days.
MAX_VARIANTS = 20_000

#: Bytes of a program's output that are compared number by number; a larger output must be equal
#: byte by byte. The comparison takes about fifty times as many bytes of memory.
MAX_COMPARED_BYTES = 32 * 2**20

#: Bytes of a program's output that are searched for its printed time.
MAX_PRINTED_BYTES = 2**20

#: Last bytes of a failed program's output that are stored with the failure.
MAX_TAIL_BYTES = 2_000

#: Seconds that a program may print as its time, which cannot exceed its time limit of a month.
MAX_PRINTED_SECONDS = 30 * 86_400

#: Kernels with their geometries in one file of a profiler, held in memory together. The longest of
#: the public traces has 190; a file with 100,000 different ones is damaged.
MAX_PROFILED_KERNELS = 100_000

#: Launches in one trace, whose times are in memory together: 32 bytes each. A program that launches
#: a thousand kernels in a second for an hour makes 3.6 million.
MAX_TRACE_ROWS = 5_000_000

#: Launches in the analysis of the advisor's page (kinds, components and a tree); of more a random
#: sample is used. Ten rounds of k-means take 3 s on 10,000 with 30 inputs, the tree 1.
MAX_ANALYSED_LAUNCHES = 20_000

#: Launches in one plot of the page, each 60 bytes of it and 150 in its table.
MAX_DRAWN_LAUNCHES = 2_000

#: Kernels in the plots of the page, those with most launches first; 25 are 100 KB.
MAX_DRAWN_KERNELS = 24

#: Bytes of the names and units of one set of counters: 3,000 of Nsight Compute's take 180 KB.
MAX_COUNTER_SET_BYTES = 512 * 2**10

#: Seconds for the removal of dead processes' folders at the creation of a temporary folder; the
#: next creation continues. Reading 100,000 names takes 0.13 s, removing 1,000 artifacts 3 s on a
#: slow disk.
SWEEP_S = 2.0
