CREATE TABLE account (
    store TEXT NOT NULL,
    role TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    CONSTRAINT pk_account PRIMARY KEY (store)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE args_info (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body TEXT NOT NULL,
    CONSTRAINT pk_args_info PRIMARY KEY (id),
    CONSTRAINT uq_args_info_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE context (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body TEXT NOT NULL,
    CONSTRAINT pk_context PRIMARY KEY (id),
    CONSTRAINT uq_context_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE counter_set (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    tool TEXT NOT NULL,
    tool_version TEXT,
    compute_capability TEXT,
    counters TEXT NOT NULL,
    CONSTRAINT pk_counter_set PRIMARY KEY (id),
    CONSTRAINT uq_counter_set_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE failure (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    measurement_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    phase TEXT NOT NULL,
    message TEXT NOT NULL,
    seconds REAL,
    source_id INTEGER NOT NULL,
    CONSTRAINT pk_failure PRIMARY KEY (id),
    CONSTRAINT fk_failure_measurement_id_measurement FOREIGN KEY(measurement_id) REFERENCES measurement (id),
    CONSTRAINT fk_failure_source_id_source FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT uq_failure_digest_source_id UNIQUE (digest, source_id)
)
 STRICT;

CREATE TABLE feature (
    program_id INTEGER NOT NULL,
    feature_set_id INTEGER NOT NULL,
    n_rows INTEGER NOT NULL,
    n_columns INTEGER NOT NULL,
    data BLOB NOT NULL,
    CONSTRAINT pk_feature PRIMARY KEY (program_id, feature_set_id),
    CONSTRAINT fk_feature_feature_set_id_feature_set FOREIGN KEY(feature_set_id) REFERENCES feature_set (id),
    CONSTRAINT fk_feature_program_id_program FOREIGN KEY(program_id) REFERENCES program (id)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE feature_set (
    id INTEGER NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    columns TEXT NOT NULL,
    CONSTRAINT pk_feature_set PRIMARY KEY (id),
    CONSTRAINT uq_feature_set_name_version UNIQUE (name, version)
)
 STRICT;

CREATE TABLE foreign_feature (
    program_id INTEGER NOT NULL,
    feature_set_id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    CONSTRAINT pk_foreign_feature PRIMARY KEY (program_id, feature_set_id),
    CONSTRAINT fk_foreign_feature_feature_set_id_feature_set FOREIGN KEY(feature_set_id) REFERENCES feature_set (id),
    CONSTRAINT fk_foreign_feature_program_id_program FOREIGN KEY(program_id) REFERENCES program (id),
    CONSTRAINT fk_foreign_feature_source_id_source FOREIGN KEY(source_id) REFERENCES source (id)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE launch (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    measurement_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    kernel TEXT NOT NULL,
    threads INTEGER NOT NULL,
    block_x INTEGER,
    block_y INTEGER,
    block_z INTEGER,
    grid_x INTEGER,
    grid_y INTEGER,
    grid_z INTEGER,
    registers INTEGER,
    static_shared INTEGER,
    dynamic_shared INTEGER,
    seconds REAL,
    counter_set_id INTEGER,
    counters BLOB,
    source_id INTEGER NOT NULL,
    CONSTRAINT pk_launch PRIMARY KEY (id),
    CONSTRAINT fk_launch_counter_set_id_counter_set FOREIGN KEY(counter_set_id) REFERENCES counter_set (id),
    CONSTRAINT fk_launch_measurement_id_measurement FOREIGN KEY(measurement_id) REFERENCES measurement (id),
    CONSTRAINT fk_launch_source_id_source FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT uq_launch_digest_source_id UNIQUE (digest, source_id)
)
 STRICT;

CREATE TABLE measurement (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    program_id INTEGER NOT NULL,
    workload_id INTEGER NOT NULL,
    target_id INTEGER NOT NULL,
    status INTEGER NOT NULL,
    run_secs BLOB,
    mean REAL,
    measured_at INTEGER NOT NULL,
    occurrence INTEGER NOT NULL,
    session_id INTEGER,
    source_id INTEGER NOT NULL,
    args_info_id INTEGER,
    origin TEXT,
    donor BLOB,
    served INTEGER NOT NULL,
    all_cost REAL,
    context_id INTEGER,
    extra TEXT,
    CONSTRAINT pk_measurement PRIMARY KEY (id),
    CONSTRAINT fk_measurement_args_info_id_args_info FOREIGN KEY(args_info_id) REFERENCES args_info (id),
    CONSTRAINT fk_measurement_program_id_program FOREIGN KEY(program_id) REFERENCES program (id),
    CONSTRAINT fk_measurement_session_id_session FOREIGN KEY(session_id) REFERENCES session (id),
    CONSTRAINT fk_measurement_source_id_source FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT fk_measurement_target_id_target FOREIGN KEY(target_id) REFERENCES target (id),
    CONSTRAINT fk_measurement_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id),
    CONSTRAINT fk_measurement_context_id_context FOREIGN KEY(context_id) REFERENCES context (id),
    CONSTRAINT uq_measurement_program_id_digest UNIQUE (program_id, digest)
)
 STRICT;

CREATE TABLE meta (
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_meta PRIMARY KEY ("key")
)
 STRICT;

CREATE TABLE model (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    kind TEXT NOT NULL,
    parameters TEXT NOT NULL,
    training_digest BLOB NOT NULL,
    card TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    body BLOB,
    CONSTRAINT pk_model PRIMARY KEY (id),
    CONSTRAINT uq_model_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE prediction (
    model_id INTEGER NOT NULL,
    program_id INTEGER NOT NULL,
    score REAL NOT NULL,
    predicted_at INTEGER NOT NULL,
    CONSTRAINT pk_prediction PRIMARY KEY (model_id, program_id),
    CONSTRAINT fk_prediction_model_id_model FOREIGN KEY(model_id) REFERENCES model (id),
    CONSTRAINT fk_prediction_program_id_program FOREIGN KEY(program_id) REFERENCES program (id)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE program (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    workload_id INTEGER NOT NULL,
    target_id INTEGER NOT NULL,
    sketch_id INTEGER NOT NULL,
    tail_id INTEGER,
    decisions BLOB NOT NULL,
    CONSTRAINT pk_program PRIMARY KEY (id),
    CONSTRAINT fk_program_sketch_id_sketch FOREIGN KEY(sketch_id) REFERENCES sketch (id),
    CONSTRAINT fk_program_tail_id_tail FOREIGN KEY(tail_id) REFERENCES tail (id),
    CONSTRAINT fk_program_target_id_target FOREIGN KEY(target_id) REFERENCES target (id),
    CONSTRAINT fk_program_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id),
    CONSTRAINT uq_program_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE quarantine (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    source_id INTEGER NOT NULL,
    file TEXT NOT NULL,
    line INTEGER NOT NULL,
    reason TEXT NOT NULL,
    data BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    CONSTRAINT pk_quarantine PRIMARY KEY (id),
    CONSTRAINT fk_quarantine_source_id_source FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT uq_quarantine_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE retraction (
    digest BLOB NOT NULL,
    store TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    CONSTRAINT pk_retraction PRIMARY KEY (digest, store, subject)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE session (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    "key" TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    CONSTRAINT pk_session PRIMARY KEY (id),
    CONSTRAINT uq_session_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE session_factor (
    target_id INTEGER NOT NULL,
    subject TEXT NOT NULL,
    subject_id INTEGER NOT NULL,
    machine INTEGER NOT NULL,
    factor REAL NOT NULL,
    spread REAL,
    programs INTEGER NOT NULL,
    estimated_at INTEGER NOT NULL,
    CONSTRAINT pk_session_factor PRIMARY KEY (target_id, subject, subject_id),
    CONSTRAINT fk_session_factor_target_id_target FOREIGN KEY(target_id) REFERENCES target (id)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE sketch (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_sketch PRIMARY KEY (id),
    CONSTRAINT uq_sketch_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE source (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    trust INTEGER NOT NULL,
    store TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    tunedb_version TEXT NOT NULL,
    note TEXT,
    CONSTRAINT pk_source PRIMARY KEY (id),
    CONSTRAINT uq_source_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE tail (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_tail PRIMARY KEY (id),
    CONSTRAINT uq_tail_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE target (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    kind TEXT NOT NULL,
    architecture TEXT NOT NULL,
    config TEXT NOT NULL,
    text TEXT,
    CONSTRAINT pk_target PRIMARY KEY (id),
    CONSTRAINT uq_target_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE watermark (
    direction TEXT NOT NULL,
    peer TEXT NOT NULL,
    selection TEXT NOT NULL,
    measurement_id INTEGER NOT NULL,
    measurement_digest BLOB,
    failure_id INTEGER NOT NULL,
    launch_id INTEGER NOT NULL,
    retractions INTEGER NOT NULL,
    exchanged_at INTEGER NOT NULL,
    CONSTRAINT pk_watermark PRIMARY KEY (direction, peer, selection)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE workload (
    id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    format TEXT NOT NULL,
    body BLOB NOT NULL,
    name TEXT NOT NULL,
    tvm_version TEXT,
    script BLOB,
    function TEXT,
    arguments TEXT,
    family TEXT,
    flops REAL,
    created_at INTEGER NOT NULL,
    CONSTRAINT pk_workload PRIMARY KEY (id),
    CONSTRAINT uq_workload_digest UNIQUE (digest)
)
 STRICT;

CREATE TABLE workload_alias (
    scheme TEXT NOT NULL,
    "key" TEXT NOT NULL,
    workload_id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    CONSTRAINT pk_workload_alias PRIMARY KEY (scheme, "key", workload_id, source_id),
    CONSTRAINT fk_workload_alias_source_id_source FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT fk_workload_alias_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id)
)
 WITHOUT ROWID,
 STRICT;

CREATE INDEX ix_failure_measurement_id ON failure (measurement_id);

CREATE INDEX ix_launch_measurement_id ON launch (measurement_id);

CREATE INDEX ix_measurement_top_k ON measurement (workload_id, target_id, mean, id, served) WHERE served = 1;

CREATE INDEX ix_prediction_program_id ON prediction (program_id);

CREATE INDEX ix_workload_alias_workload_id ON workload_alias (workload_id);
