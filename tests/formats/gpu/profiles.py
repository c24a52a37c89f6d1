"""Files of GPU profilers, written by hand in the shape of real ones."""

ADD = "vectorAdd(float const *, float const *, float*, int)"

METRICS_HEADER = (
    '"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"'
)
EVENTS_HEADER = '"Device","Kernel","Invocations","Event Name","Min","Max","Avg","Total"'
TRACE_HEADER = (
    '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",'
    '"Registers Per Thread","Static SMem","Dynamic SMem","Size","Throughput","Device","Context",'
    '"Stream","Name"'
)
UNITS = "ms,us,,,,,,,,B,B,KB,GB/s,,,,"
DEVICE = "GeForce GTX 950 (0)"


def metric(name, value, kernel=ADD, calls=1, device=DEVICE):
    return f'"{device}","{kernel}",{calls},"{name}","What {name} is",{value},{value},{value}'


def event(name, value, kernel=ADD):
    return f'"{DEVICE}","{kernel}",1,"{name}",{value},{value},{value},{value}'


def metrics(*rows, command="./vectorAdd_bs64", process=7923):
    """Return nvprof's output for `--metrics`, with its messages."""
    lines = (
        f"NVPROF is profiling process {process}, command: {command}",
        "Some kernel(s) will be replayed on device 0 in order to collect all events/metrics.",
        *(f"Profiling application: {command}", "Profiling result:", "Metric result:"),
    )
    return "\n".join((*(f"=={process}== {line}" for line in lines), METRICS_HEADER, *rows, ""))


def launch(
    time="4.512000",
    grid=(782, 1, 1),
    block=(64, 1, 1),
    name=f"{ADD} [208]",
    registers=8,
    smem="0,0",
):
    extents = ",".join(map(str, (*grid, *block)))
    return f'514.6,{time},{extents},{registers},{smem},,,"{DEVICE}","1","7","{name}"'


COPY = f'514.5,34.144,,,,,,,,,,195.3125,5.455263,"{DEVICE}","1","7","[CUDA memcpy HtoD]"'


def trace(*rows, command="./vectorAdd_bs64", units=UNITS, process=7907):
    """Return nvprof's output for `--print-gpu-trace`."""
    head = f"=={process}== NVPROF is profiling process {process}, command: {command}"
    return "\n".join((head, f"=={process}== Profiling result:", TRACE_HEADER, units, *rows, ""))


NSYS_HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)


def nsys(*rows):
    """Return ``nsys stats --report cuda_gpu_trace --format csv``."""
    return "\n".join((NSYS_HEADER, *rows, ""))


def nsys_launch(name="vecAdd(const float *, float *)", time=5120, block=256, grid=128):
    return (
        f'812345,{time},118,{grid},1,1,{block},1,1,16,0.000,0.000,,,,,NVIDIA H200 (0),1,,7,"{name}"'
    )


DETAILS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


BLOCK, GRID = "(256, 1, 1)", "(128, 1, 1)"


def detail(name, value, unit="", *, number=0, block=BLOCK, grid=GRID, section="", kernel="k"):
    where = section or "Command line profiler metrics"
    return (
        f'"{number}","4711","app_bs256","127.0.0.1","{kernel}","1","7","{block}","{grid}","0","8.6",'
        f'"{where}","{name}","{unit}","{value}"'
    )


def ncu(*rows, header=DETAILS, before=""):
    """Return the output of ncu, with that of the program before the table."""
    lines = (
        "==PROF== Connected to process 4711 (/home/me/app_bs256)",
        "Result = 1,5; done",
        '==PROF== Profiling "k" - 0: 0%....50%....100% - 4 passes',
        *(before, "==PROF== Disconnected from process 4711", header),
    )
    return "\n".join((*lines, *rows, ""))


RAW = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC",'
)


def raw(columns, units, *launches):
    """Return the raw page: a column for each metric, a row of units, a row for each launch."""
    header = RAW + ",".join(f'"{name}"' for name in columns)
    unit_row = ",".join(['""'] * 11 + [f'"{unit}"' for unit in units])
    rows = [
        f'"{number}","4711","app","127.0.0.1","vecAdd(const float *, float *)","1","7",'
        f'"({block}, 1, 1)","({grid}, 1, 1)","0","9.0",' + ",".join(f'"{v}"' for v in values)
        for number, (block, grid, *values) in enumerate(launches)
    ]
    return "\n".join((header, unit_row, *rows, ""))
