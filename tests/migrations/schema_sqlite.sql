CREATE VIEW v_best AS
SELECT
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    trim(t.kind || ' ' || coalesce(nullif((SELECT value FROM json_each(t.config) WHERE key = 'model'), ''), t.architecture)) AS target,
    w.family AS family,
    w.arguments AS arguments,
    w.flops AS flops,
    m.id AS record_id,
    m.mean AS mean_seconds,
    CASE WHEN m.mean > 1e-12 AND w.flops < 1e30 THEN w.flops / m.mean / 1e9 END AS gflops,
    CASE WHEN m.measured_at > 0 THEN strftime('%Y-%m-%d %H:%M:%S', m.measured_at / 1000000, 'unixepoch') || printf('.%06d', m.measured_at % 1000000) END AS measured_at,
    s.name AS source,
    CASE s.trust WHEN 2 THEN 'own' WHEN 1 THEN 'verified' ELSE 'foreign' END AS trust,
    CASE
        WHEN w.format = 'ansor-key' THEN (
        WITH RECURSIVE number(place, byte, low, shift) AS (
            SELECT 1, (instr('0123456789ABCDEF', substr(hex(substr(p.decisions, 1, 1)), 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(hex(substr(p.decisions, 1, 1)), 2, 1)) - 1, 0, 0 WHERE length(p.decisions) > 0
            UNION ALL
            SELECT place + 1, (instr('0123456789ABCDEF', substr(hex(substr(p.decisions, place + 1, 1)), 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(hex(substr(p.decisions, place + 1, 1)), 2, 1)) - 1,
                CASE WHEN byte < 128 THEN 0 ELSE low + ((byte & 127) << shift) END,
                CASE WHEN byte < 128 THEN 0 ELSE shift + 7 END
            FROM number WHERE place < length(p.decisions)
        )
        SELECT '[' || coalesce(group_concat(value), '') || ']' FROM (
            SELECT low + (byte << shift) AS value FROM number WHERE byte < 128 ORDER BY place
        )
    )
        WHEN w.format IN ('tvm-graph', 'tvm-nodes', 'metaschedule-arguments')
            THEN (SELECT value FROM json_each(CAST(p.decisions AS TEXT)) WHERE key = 0)
        ELSE CAST(p.decisions AS TEXT) END AS decisions
FROM (SELECT DISTINCT workload_id, target_id FROM measurement WHERE served = 1) AS g
JOIN measurement AS m ON m.id = (
    SELECT b.id FROM measurement AS b
    WHERE b.workload_id = g.workload_id AND b.target_id = g.target_id AND b.served = 1
    AND (NOT EXISTS (SELECT 1 FROM measurement WHERE substr(extra, 1, 15) = '{"final":"lost"') OR b.id NOT IN (
        SELECT r.id
        FROM measurement AS f
        JOIN measurement AS r ON r.program_id = f.program_id
        JOIN session AS d ON d.id = f.session_id
        JOIN session AS e ON e.id = r.session_id
        WHERE substr(f.extra, 1, 15) = '{"final":"lost"'
            AND f.served = 1 AND r.measured_at < f.measured_at
            AND (f.source_id = r.source_id
                OR f.source_id IN (SELECT id FROM source WHERE trust >= 2))
            AND (d.id = e.id OR EXISTS (SELECT 1 FROM json_each(d.fingerprint) WHERE key IN ('cpu', 'gpu', 'remote'))
                AND NOT EXISTS (SELECT key, type, value FROM json_each(d.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi') EXCEPT SELECT key, type, value FROM json_each(e.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi'))
                AND NOT EXISTS (SELECT key, type, value FROM json_each(e.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi') EXCEPT SELECT key, type, value FROM json_each(d.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi')))
    ))
    ORDER BY b.mean, b.id LIMIT 1
)
JOIN program AS p ON p.id = m.program_id
JOIN workload AS w ON w.id = m.workload_id
JOIN target AS t ON t.id = m.target_id
JOIN source AS s ON s.id = m.source_id;

CREATE VIEW v_failures AS
SELECT
    m.id AS record_id,
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    trim(t.kind || ' ' || coalesce(nullif((SELECT value FROM json_each(t.config) WHERE key = 'model'), ''), t.architecture)) AS target,
    coalesce(f.kind, 'unknown') AS kind,
    coalesce(f.phase, 'unknown') AS phase,
    f.message AS message,
    f.seconds AS seconds,
    CASE WHEN m.measured_at > 0 THEN strftime('%Y-%m-%d %H:%M:%S', m.measured_at / 1000000, 'unixepoch') || printf('.%06d', m.measured_at % 1000000) END AS measured_at,
    m.session_id AS session_id,
    s.name AS source,
    CASE s.trust WHEN 2 THEN 'own' WHEN 1 THEN 'verified' ELSE 'foreign' END AS trust,
    EXISTS (
        SELECT 1 FROM retraction AS r
        WHERE r.digest IN (m.digest, s.digest, e.digest) AND r.subject <> 'aliases'
            AND r.store IN (s.store, (SELECT value FROM meta WHERE key = 'store'))
    ) AS retracted
FROM measurement AS m
JOIN program AS p ON p.id = m.program_id
JOIN workload AS w ON w.id = m.workload_id
JOIN target AS t ON t.id = m.target_id
JOIN source AS s ON s.id = m.source_id
LEFT JOIN session AS e ON e.id = m.session_id
LEFT JOIN failure AS f ON f.id = coalesce(
        (SELECT max(x.id) FROM failure AS x
        WHERE x.measurement_id = m.id AND x.source_id = m.source_id),
        (SELECT max(x.id) FROM failure AS x
        WHERE x.measurement_id = m.id AND EXISTS (
            SELECT 1 FROM source AS o WHERE o.id = x.source_id AND o.trust >= 1
                AND NOT EXISTS (
                    SELECT 1 FROM retraction AS r
                    WHERE r.digest = o.digest AND r.subject <> 'aliases'
                        AND r.store IN (o.store, (SELECT value FROM meta WHERE key = 'store'))
                )
        ))
    )
WHERE f.id IS NOT NULL OR m.status = 1;

CREATE VIEW v_launches AS
SELECT
    l.id AS launch_id,
    m.id AS record_id,
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    trim(t.kind || ' ' || coalesce(nullif((SELECT value FROM json_each(t.config) WHERE key = 'model'), ''), t.architecture)) AS target,
    l.kernel AS kernel,
    l.number AS number,
    l.threads AS threads,
    '[' || l.block_x || ',' || l.block_y || ',' || l.block_z || ']' AS block,
    '[' || l.grid_x || ',' || l.grid_y || ',' || l.grid_z || ']' AS grid,
    l.registers AS registers,
    l.static_shared AS static_shared_bytes,
    l.dynamic_shared AS dynamic_shared_bytes,
    l.seconds AS seconds,
    c.tool AS tool,
    c.counters AS counters,
    s.name AS source,
    CASE s.trust WHEN 2 THEN 'own' WHEN 1 THEN 'verified' ELSE 'foreign' END AS trust,
    EXISTS (
        SELECT 1 FROM retraction AS r
        WHERE r.digest IN (m.digest, s.digest, e.digest) AND r.subject <> 'aliases'
            AND r.store IN (s.store, (SELECT value FROM meta WHERE key = 'store'))
    ) AS retracted
FROM launch AS l
JOIN measurement AS m ON m.id = l.measurement_id
JOIN workload AS w ON w.id = m.workload_id
JOIN target AS t ON t.id = m.target_id
JOIN source AS s ON s.id = l.source_id
LEFT JOIN session AS e ON e.id = m.session_id
LEFT JOIN counter_set AS c ON c.id = l.counter_set_id
WHERE (
        l.source_id = m.source_id
        OR EXISTS (
            SELECT 1 FROM source AS o WHERE o.id = l.source_id AND o.trust >= 1
                AND NOT EXISTS (
                    SELECT 1 FROM retraction AS r
                    WHERE r.digest = o.digest AND r.subject <> 'aliases'
                        AND r.store IN (o.store, (SELECT value FROM meta WHERE key = 'store'))
                )
        )
        AND NOT EXISTS (
            SELECT 1 FROM launch AS x
            WHERE x.measurement_id = m.id AND x.source_id = m.source_id
        )
    );

CREATE VIEW v_records AS
SELECT
    m.id AS record_id,
    lower(hex(m.digest)) AS digest,
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    trim(t.kind || ' ' || coalesce(nullif((SELECT value FROM json_each(t.config) WHERE key = 'model'), ''), t.architecture)) AS target,
    CASE m.status WHEN 0 THEN 'ok' WHEN 1 THEN 'failed' WHEN 2 THEN 'unmeasured' ELSE 'cut_short' END AS status,
    CASE WHEN m.status = 0 THEN m.mean END AS mean_seconds,
    length(m.run_secs) / 8 AS repeats,
    m.all_cost AS trial_seconds,
    CASE WHEN m.measured_at > 0 THEN strftime('%Y-%m-%d %H:%M:%S', m.measured_at / 1000000, 'unixepoch') || printf('.%06d', m.measured_at % 1000000) END AS measured_at,
    m.session_id AS session_id,
    s.name AS source,
    CASE s.trust WHEN 2 THEN 'own' WHEN 1 THEN 'verified' ELSE 'foreign' END AS trust,
    m.served = 1 AS served,
    EXISTS (
        SELECT 1 FROM retraction AS r
        WHERE r.digest IN (m.digest, s.digest, e.digest) AND r.subject <> 'aliases'
            AND r.store IN (s.store, (SELECT value FROM meta WHERE key = 'store'))
    ) AS retracted,
    coalesce(m.origin, 'unknown') AS origin,
    p.id AS program_id,
    lower(hex(p.digest)) AS program,
    nullif(lower(hex(m.donor)), '') AS donor,
    CASE
        WHEN w.format = 'ansor-key' THEN (
        WITH RECURSIVE number(place, byte, low, shift) AS (
            SELECT 1, (instr('0123456789ABCDEF', substr(hex(substr(p.decisions, 1, 1)), 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(hex(substr(p.decisions, 1, 1)), 2, 1)) - 1, 0, 0 WHERE length(p.decisions) > 0
            UNION ALL
            SELECT place + 1, (instr('0123456789ABCDEF', substr(hex(substr(p.decisions, place + 1, 1)), 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(hex(substr(p.decisions, place + 1, 1)), 2, 1)) - 1,
                CASE WHEN byte < 128 THEN 0 ELSE low + ((byte & 127) << shift) END,
                CASE WHEN byte < 128 THEN 0 ELSE shift + 7 END
            FROM number WHERE place < length(p.decisions)
        )
        SELECT '[' || coalesce(group_concat(value), '') || ']' FROM (
            SELECT low + (byte << shift) AS value FROM number WHERE byte < 128 ORDER BY place
        )
    )
        WHEN w.format IN ('tvm-graph', 'tvm-nodes', 'metaschedule-arguments')
            THEN (SELECT value FROM json_each(CAST(p.decisions AS TEXT)) WHERE key = 0)
        ELSE CAST(p.decisions AS TEXT) END AS decisions
FROM measurement AS m
JOIN program AS p ON p.id = m.program_id
JOIN workload AS w ON w.id = m.workload_id
JOIN target AS t ON t.id = m.target_id
JOIN source AS s ON s.id = m.source_id
LEFT JOIN session AS e ON e.id = m.session_id;

CREATE VIEW v_sessions AS
SELECT
    e.id AS session_id,
    e.key AS session,
    CASE WHEN e.started_at > 0 THEN strftime('%Y-%m-%d %H:%M:%S', e.started_at / 1000000, 'unixepoch') || printf('.%06d', e.started_at % 1000000) END AS started_at,
    (SELECT value FROM json_each(e.fingerprint) WHERE key = 'cpu') AS cpu,
    (SELECT value FROM json_each(e.fingerprint) WHERE key = 'gpu') AS gpu,
    (SELECT value FROM json_each(e.fingerprint) WHERE key = 'cores' AND type = 'integer') AS cores,
    (SELECT value FROM json_each(e.fingerprint) WHERE key = 'threads' AND type = 'integer') AS threads,
    (SELECT value FROM json_each(e.fingerprint) WHERE key = 'os') AS os,
    (SELECT value FROM json_each(e.fingerprint) WHERE key = 'tvm') AS tvm_version,
    (SELECT value FROM json_each(e.fingerprint) WHERE key = 'tunedb') AS tunedb_version,
    coalesce(g.records, 0) AS records,
    coalesce(g.failed, 0) AS failed,
    coalesce(g.foreign_records, 0) AS foreign_records,
    CASE WHEN g.last_at > 0 THEN strftime('%Y-%m-%d %H:%M:%S', g.last_at / 1000000, 'unixepoch') || printf('.%06d', g.last_at % 1000000) END AS last_measured_at
FROM session AS e
LEFT JOIN (
    SELECT m.session_id,
        count(*) AS records,
        count(CASE WHEN m.status = 1 THEN 1 END) AS failed,
        count(CASE WHEN s.trust = 0 THEN 1 END) AS foreign_records,
        max(m.measured_at) AS last_at
    FROM measurement AS m JOIN source AS s ON s.id = m.source_id
    GROUP BY m.session_id
) AS g ON g.session_id = e.id;

CREATE VIEW v_tasks AS
SELECT
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    trim(t.kind || ' ' || coalesce(nullif((SELECT value FROM json_each(t.config) WHERE key = 'model'), ''), t.architecture)) AS target,
    w.family AS family,
    w.arguments AS arguments,
    w.flops AS flops,
    g.records AS records,
    g.failed AS failed,
    g.foreign_records AS foreign_records,
    g.served AS served,
    g.best AS best_seconds,
    CASE WHEN g.best > 1e-12 AND w.flops < 1e30 THEN w.flops / g.best / 1e9 END AS best_gflops,
    CASE WHEN g.first_at > 0 THEN strftime('%Y-%m-%d %H:%M:%S', g.first_at / 1000000, 'unixepoch') || printf('.%06d', g.first_at % 1000000) END AS first_measured_at,
    CASE WHEN g.last_at > 0 THEN strftime('%Y-%m-%d %H:%M:%S', g.last_at / 1000000, 'unixepoch') || printf('.%06d', g.last_at % 1000000) END AS last_measured_at
FROM (
    SELECT m.workload_id, m.target_id,
        count(*) AS records,
        count(CASE WHEN m.status = 1 THEN 1 END) AS failed,
        count(CASE WHEN s.trust = 0 THEN 1 END) AS foreign_records,
        count(CASE WHEN m.served = 1 THEN 1 END) AS served,
        min(CASE WHEN m.served = 1 AND (NOT EXISTS (SELECT 1 FROM measurement WHERE substr(extra, 1, 15) = '{"final":"lost"') OR m.id NOT IN (
        SELECT r.id
        FROM measurement AS f
        JOIN measurement AS r ON r.program_id = f.program_id
        JOIN session AS d ON d.id = f.session_id
        JOIN session AS e ON e.id = r.session_id
        WHERE substr(f.extra, 1, 15) = '{"final":"lost"'
            AND f.served = 1 AND r.measured_at < f.measured_at
            AND (f.source_id = r.source_id
                OR f.source_id IN (SELECT id FROM source WHERE trust >= 2))
            AND (d.id = e.id OR EXISTS (SELECT 1 FROM json_each(d.fingerprint) WHERE key IN ('cpu', 'gpu', 'remote'))
                AND NOT EXISTS (SELECT key, type, value FROM json_each(d.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi') EXCEPT SELECT key, type, value FROM json_each(e.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi'))
                AND NOT EXISTS (SELECT key, type, value FROM json_each(e.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi') EXCEPT SELECT key, type, value FROM json_each(d.fingerprint) WHERE key NOT IN ('evaluator', 'os', 'python', 'run', 'tunedb', 'tvm_ffi')))
    )) THEN m.mean END) AS best,
        min(CASE WHEN m.measured_at > 0 THEN m.measured_at END) AS first_at,
        max(m.measured_at) AS last_at
    FROM measurement AS m JOIN source AS s ON s.id = m.source_id
    GROUP BY m.workload_id, m.target_id
) AS g
JOIN workload AS w ON w.id = g.workload_id
JOIN target AS t ON t.id = g.target_id;

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

CREATE INDEX ix_measurement_lost ON measurement (workload_id, target_id) WHERE substr(extra, 1, 15) = '{"final":"lost"';

CREATE INDEX ix_measurement_top_k ON measurement (workload_id, target_id, mean, id, served) WHERE served = 1;

CREATE INDEX ix_prediction_program_id ON prediction (program_id);

CREATE INDEX ix_workload_alias_workload_id ON workload_alias (workload_id);
