"""Files of KTT written by hand: the same results as JSON and as XML."""

import json
from xml.etree import ElementTree

METADATA = {
    "ComputeApi": "CUDA",
    "Device": "NVIDIA GeForce RTX 2080 Ti",
    "GlobalSizeType": "CUDA",
    "KttVersion": "2.1.0",
    "Platform": "NVIDIA CUDA",
    "TimeUnit": "Microseconds",
    "Timestamp": "2022-06-01 13:55:7 UTC",
}
OVERHEADS = {
    "DataMovementOverhead": 293.5,
    "ExtraDuration": 0.0,
    "SearcherOverhead": 11.7,
    "TotalOverhead": 72581.25,
    "ValidationOverhead": 2.75,
}
COUNTERS = (
    ("dram__sectors_read.sum", "Double", 2100194.0),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "Double", 84.5),
)


def sizes(x, y=1, z=1):
    return {"X": x, "Y": y, "Z": z}


def computation(duration=16.5, block=(16, 4, 1), grid=(8, 4, 2), counters=(), **fields):
    memory = {"ConstantMemorySize": 0, "LocalMemorySize": 2048, "PrivateMemorySize": 0}
    made = {
        **{"KernelFunction": "sum", "Duration": duration, "Overhead": 5.5},
        **{"GlobalSize": sizes(*grid), "LocalSize": sizes(*block)},
        "CompilationData": {**memory, "MaxWorkGroupSize": 896, "RegistersCount": 66},
    }
    if counters:
        rows = [dict(zip(("Name", "Type", "Value"), row, strict=True)) for row in counters]
        made["ProfilingData"] = {"Counters": rows, "RemainingProfilingRuns": 0}
    return made | fields


def pair(name, value, kind="UnsignedInt"):
    return {"Name": name, "Value": value, "ValueType": kind}


def result(*computations, duration=None, parameters=None, status="Ok", **fields):
    """Return a result that lasted as long as its computations together."""
    if parameters is None:
        parameters = [pair("WORK_GROUP_SIZE_X", 16), pair("UNROLL", 4)]
    total = sum(one["Duration"] for one in computations) if duration is None else duration
    return {
        "KernelName": "sum_kernel",
        "Status": status,
        "TotalDuration": total,
        "Configuration": parameters,
        "ComputationResults": list(computations),
        **OVERHEADS,
    } | fields


def failed(status="ComputationFailed", **fields):
    return result(duration=0.0, status=status, **fields)


def write_json(path, *results, **metadata):
    document = {"Metadata": METADATA | metadata, "Results": list(results)}
    path.write_text(json.dumps(document, indent=2))
    return path


def _text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return "nan" if value is None else str(value)


def _add(parent, tag, fields):
    plain = {k: _text(v) for k, v in fields.items() if not isinstance(v, dict | list)}
    element = ElementTree.SubElement(parent, tag, plain)
    inner = {"Configuration": "Pair", "ComputationResults": "ComputationResult"}
    inner["Counters"] = "Counter"
    for name, value in fields.items():
        if isinstance(value, dict):
            _add(element, name, value)
        elif isinstance(value, list):
            several = ElementTree.SubElement(element, name)
            for item in value:
                _add(several, inner[name], item)


def write_xml(path, *results, **metadata):
    """Write what KTT's ``XmlSerializer`` writes of the same results."""
    root = ElementTree.Element("TuningData")
    _add(root, "Metadata", METADATA | metadata)
    holder = ElementTree.SubElement(root, "Results")
    for item in results:
        _add(holder, "KernelResult", item)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    return path
