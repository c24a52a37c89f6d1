"""One small log of each format, with every feature of real ones.

Each has 24 records; number 3 and number 20 are equal lines; numbers 5, 11, 17 and 23 failed. Two
more lines are bad, and the last one is cut off, as a killed tuner leaves it (where a format has
lines). Two workloads and two targets take turns.
"""

import base64
import json
import sqlite3
import struct

from by_hand import contraction

RECORDS, FAILED = 24, 4

TILES = [(first, second) for first in (1, 2, 4, 8) for second in (1, 2, 4, 8, 16, 32)]


def numbers():
    """Yield what differs from record to record: its number, whether it failed, a tile."""
    for number in range(RECORDS):
        original = 3 if number == 20 else number
        yield original, original % 6 == 5, TILES[original]


def as_log(lines, *bad, head=()):
    """Return the bytes of a log: bad lines among the others, and a last one that is cut off."""
    lines = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    lines[9:9], lines[15:15] = bad[:1], bad[1:]
    return "\n".join([*head, *lines, lines[0][: len(lines[0]) // 2]]).encode()


# ------------------------------------------------------------------ AutoTVM


def autotvm(version):
    lines = []
    for number, failed, (first, second) in numbers():
        n = 64 * (1 + number % 2)
        target = "cuda -model=1080ti" if number % 3 else "opencl -device=mali"
        args = [["TENSOR", [n, 64], "float32"], ["TENSOR", [64, 64], "float32"], None, "float32"]
        entity = [
            ["tile_x", "sp", [-1, first, second]],
            ["order", "re", [0, 2, 1]],
            ["ann", "an", ["unroll", "vec"]],
            ["auto_unroll_max_step", "ot", 512 * (number % 2)],
        ]
        costs = [1e9] if failed else [0.001 * (number + 1), 0.0011 * (number + 1)]
        result = [costs, number % 4 + 1 if failed else 0, 1.25 + number, 1546300800.5 + number]
        if version == "v0.1":
            workload = ["dense", [n, 64, "float32"], [64, 64, "float32"], 0, "float32"]
            config = {"i": number, "t": "direct", "c": None, "e": entity}
            task = [target, "topi_nn_dense", args, {}, workload, config]
            lines.append({"i": task, "r": result, "v": 0.1})
        else:
            config = {"index": number, "code_hash": None, "entity": entity}
            lines.append(
                {
                    "input": [target, "dense_small_batch.cuda", args, {}],
                    "config": config,
                    "result": result,
                    "version": 0.2,
                    "tvm_version": "0.8.dev0",
                }
            )
    unknown_error = json.dumps(lines[4]).replace("], 0, ", "], 99, ")
    negative = json.dumps(lines[4]).replace("0.0", "-0.0")
    head = ["# a licence", "", "# another one"]
    return {"tuned.log": as_log(lines, unknown_error, negative, head=head)}


# ------------------------------------------------------------------ auto_scheduler


def ansor(version):
    items = {"v0.2": 2, "v0.3": 3, "v0.4": 4, "v0.5": 5, "v0.6": 6}[version]
    keys = {
        "v0.2": ['["matmul", 64, 64, 64]', '["0123456789abcdef0123456789abcdef"]'],
        "v0.5": ['["0123456789abcdef0123456789abcdef", 1, 64, 64]', '["demo.relu_layer", 2, 3]'],
    }.get(version, ['["f19692ed81d032b1697c08adee62f9a5", [64, 64], []]', '["add", [1, "x"]]'])
    lines = []
    for number, failed, (first, second) in numbers():
        task = [
            keys[number % 2],
            "llvm -keys=cpu -mcpu=core-avx2" if number % 3 else "cuda -arch=sm_70",
            [8, 64, 64, 0, 0, 0, 0, 0],
            "llvm",
            number % 2,
            ["weight"],
        ]
        steps = [
            ["CHW", 2, "local"],
            ["SP", 2, 0, 64, [first, second, 1], 1],
            ["SP", 2, 4, 64, [second], 0],
            ["RE", 2, [0, 4, 1, 5, 2, 3]],
            ["FSP", 3, 0, 1, 2],
            ["FFSP", 3, 2, [1], 1, 1],
            ["CA", 2, 3, 1],
            ["CHR", 0, "shared", [2]],
            ["RF", 2, 5, 1],
            ["FU", 3, [0, 1]],
            ["FU", 4, []],
            ["CI", 1],
            ["CR", 0],
            ["SA", 0, 1, 8, 4],
            ["AN", 3, 0, 3],
            ["PR", 2, 0, "auto_unroll_max_step$512"],
        ]
        costs = [1e10] if failed else [0.00155708 * (number + 1)] * 2
        result = [costs, number % 4 + 4 if failed else 0, 2.5, 1609459200 + number]
        lines.append({"i": [task[:items], [[], steps]], "r": result, "v": version})
    unknown_step = json.dumps(lines[4]).replace('"CHW"', '"XYZ"')
    infinite = json.dumps(lines[4]).replace("[[0.0", "[[1e999, 0.0")
    return {"records.json": as_log(lines, unknown_step, infinite, head=["# Provide schedules."])}


# ------------------------------------------------------------------ MetaSchedule


#: Dialects of graphs: before TVM 0.22, and of 0.27.
OLD, NEW = "nodes", "boxed"


def matmul(dialect, extent):
    """Return a module that multiplies two matrices of `extent`."""
    spatial = {"i": extent, "j": extent}
    workload = contraction(dialect, spatial, {"k": extent}, ["i", "k"], ["k", "j"], "matmul")
    graph = json.loads(workload.body)
    if dialect == OLD:
        return graph | {"b64ndarrays": [], "attrs": {"tvm_version": "0.9.dev0"}}
    return graph | {"metadata": {"tvm_version": "0.27.0"}}


def workload_line(graph):
    text = graph if isinstance(graph, bytes) else json.dumps(graph).encode()
    body = base64.b64encode(struct.pack("<q", len(text)) + text).decode()
    return ["12345678901234567890", body]


def workloads(dialect):
    return [workload_line(matmul(dialect, extent)) for extent in (64, 128)]


def metaschedule_records(dialect):
    """Return records with the instructions of TVM 0.9 (arities of before 0.17) or of 0.27."""
    is_old = dialect == OLD
    lines = []
    for number, failed, (first, second) in numbers():
        n = 64 * (1 + number % 2)
        trace = [
            [
                ["GetBlock" if is_old else "GetSBlock", [], ["matmul", "main"], ["b0"]],
                ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
                ["SamplePerfectTile", ["l1"], [3, 64], ["v4", "v5", "v6"]],
                ["Split", ["l1", "v4", "v5", "v6"], [1] if is_old else [1, 0], ["l7", "l8", "l9"]],
                ["Reorder", ["l7", "l2", "l8", "l3", "l9"], [], []],
                ["SampleCategorical", [], [[0, 16, 64], [0.25, 0.25, 0.5]], ["v10"]],
                ["Annotate", ["b0", "v10"], ["meta_schedule.unroll_explicit"], []],
                ["SampleComputeLocation", ["b0"], [], ["l11"]],
                ["EnterPostproc", [], [], []],
                ["Unannotate", ["b0"], ["meta_schedule.unroll_explicit"], []],
            ],
            [[2, [n // first // second, first, second]], [5, number % 3], [7, -1]],
        ]
        run_secs = [10000000000] if failed else [0.00174036412499999981 * (number + 1)]
        if number == 7:
            run_secs = None
        kind, key = ("cuda", "gpu") if number % 3 else ("llvm", "cpu")
        target = {"kind": kind, "keys": [key], "tag": "", "num-cores": 4}
        args = [["TENSOR", "float32", [n, n]]] * 3
        lines.append([number % 2, [trace, run_secs, target, args]])
    return lines


def metaschedule(dialect):
    lines = metaschedule_records(dialect)
    missing = json.dumps([7, lines[4][1]])
    negative = json.dumps(lines[4]).replace("[0.0", "[-0.0")
    text = "".join(json.dumps(line) + "\n" for line in workloads(dialect))
    return {
        "database_tuning_record.json": as_log(lines, missing, negative),
        "database_workload.json": text.encode(),
    }


def metaschedule_stream():
    """Workload lines before the records, as ``cat`` makes of the two files."""
    files = metaschedule(NEW)
    return {"both.json": files["database_workload.json"] + files["database_tuning_record.json"]}


def metaschedule_sqlite():
    """Both tables of mshr-h's layout in one file, of small pages so that it has many."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA page_size=512")
    connection.execute("CREATE TABLE workload (shash text, mod text)")
    connection.execute(
        "CREATE TABLE tuning_record "
        "(workload_index int, trace text, run_secs text, target text, args_info text)"
    )
    connection.executemany("INSERT INTO workload VALUES (?, ?)", workloads(OLD))
    rows = [
        (index, *("None" if field is None else json.dumps(field) for field in fields))
        for index, fields in metaschedule_records(OLD)
    ]
    rows[9:9] = [(7, *rows[4][1:]), (0, "not JSON", *rows[4][2:]), (0, b"blob", *rows[4][2:])]
    connection.executemany("INSERT INTO tuning_record VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    data = connection.serialize()
    connection.close()
    return {"database.sqlite": data}


#: Name → files of a log by name; the first one is what is imported.
LOGS = {
    "autotvm v0.1": autotvm("v0.1"),
    "autotvm v0.2": autotvm("v0.2"),
    **{f"ansor v0.{n}": ansor(f"v0.{n}") for n in (2, 3, 4, 5, 6)},
    "metaschedule old": metaschedule(OLD),
    "metaschedule new": metaschedule(NEW),
    "metaschedule stream": metaschedule_stream(),
    "metaschedule sqlite": metaschedule_sqlite(),
}


def write(folder, files):
    """Write the files of a log; return the path of the one to be imported."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / next(iter(files))
