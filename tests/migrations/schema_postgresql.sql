-- columns
account.store: text NOT NULL
account.role: text NOT NULL
account.registered_at: bigint NOT NULL
alembic_version.version_num: character varying NOT NULL
args_info.id: bigint NOT NULL DEFAULT nextval('args_info_id_seq'::regclass)
args_info.digest: bytea NOT NULL
args_info.body: text NOT NULL
context.id: bigint NOT NULL DEFAULT nextval('context_id_seq'::regclass)
context.digest: bytea NOT NULL
context.body: text NOT NULL
counter_set.id: bigint NOT NULL DEFAULT nextval('counter_set_id_seq'::regclass)
counter_set.digest: bytea NOT NULL
counter_set.tool: text NOT NULL
counter_set.tool_version: text
counter_set.compute_capability: text
counter_set.counters: text NOT NULL
failure.id: bigint NOT NULL DEFAULT nextval('failure_id_seq'::regclass)
failure.digest: bytea NOT NULL
failure.measurement_id: bigint NOT NULL
failure.kind: text NOT NULL
failure.phase: text NOT NULL
failure.message: text NOT NULL
failure.seconds: double precision
failure.source_id: bigint NOT NULL
feature.program_id: bigint NOT NULL
feature.feature_set_id: bigint NOT NULL
feature.n_rows: bigint NOT NULL
feature.n_columns: bigint NOT NULL
feature.data: bytea NOT NULL
feature_set.id: bigint NOT NULL DEFAULT nextval('feature_set_id_seq'::regclass)
feature_set.name: text NOT NULL
feature_set.version: bigint NOT NULL
feature_set.columns: text NOT NULL
foreign_feature.program_id: bigint NOT NULL
foreign_feature.feature_set_id: bigint NOT NULL
foreign_feature.source_id: bigint NOT NULL
launch.id: bigint NOT NULL DEFAULT nextval('launch_id_seq'::regclass)
launch.digest: bytea NOT NULL
launch.measurement_id: bigint NOT NULL
launch.number: bigint NOT NULL
launch.kernel: text NOT NULL
launch.threads: bigint NOT NULL
launch.block_x: bigint
launch.block_y: bigint
launch.block_z: bigint
launch.grid_x: bigint
launch.grid_y: bigint
launch.grid_z: bigint
launch.registers: bigint
launch.static_shared: bigint
launch.dynamic_shared: bigint
launch.seconds: double precision
launch.counter_set_id: bigint
launch.counters: bytea
launch.source_id: bigint NOT NULL
measurement.id: bigint NOT NULL DEFAULT nextval('measurement_id_seq'::regclass)
measurement.digest: bytea NOT NULL
measurement.program_id: bigint NOT NULL
measurement.workload_id: bigint NOT NULL
measurement.target_id: bigint NOT NULL
measurement.status: bigint NOT NULL
measurement.run_secs: bytea
measurement.mean: double precision
measurement.measured_at: bigint NOT NULL
measurement.occurrence: bigint NOT NULL
measurement.session_id: bigint
measurement.source_id: bigint NOT NULL
measurement.args_info_id: bigint
measurement.origin: text
measurement.donor: bytea
measurement.served: bigint NOT NULL
measurement.all_cost: double precision
measurement.context_id: bigint
measurement.extra: text
meta.key: text NOT NULL
meta.value: text NOT NULL
model.id: bigint NOT NULL DEFAULT nextval('model_id_seq'::regclass)
model.digest: bytea NOT NULL
model.kind: text NOT NULL
model.parameters: text NOT NULL
model.training_digest: bytea NOT NULL
model.card: text NOT NULL
model.created_at: bigint NOT NULL
model.body: bytea
prediction.model_id: bigint NOT NULL
prediction.program_id: bigint NOT NULL
prediction.score: double precision NOT NULL
prediction.predicted_at: bigint NOT NULL
program.id: bigint NOT NULL DEFAULT nextval('program_id_seq'::regclass)
program.digest: bytea NOT NULL
program.workload_id: bigint NOT NULL
program.target_id: bigint NOT NULL
program.sketch_id: bigint NOT NULL
program.tail_id: bigint
program.decisions: bytea NOT NULL
quarantine.id: bigint NOT NULL DEFAULT nextval('quarantine_id_seq'::regclass)
quarantine.digest: bytea NOT NULL
quarantine.source_id: bigint NOT NULL
quarantine.file: text NOT NULL
quarantine.line: bigint NOT NULL
quarantine.reason: text NOT NULL
quarantine.data: bytea NOT NULL
quarantine.created_at: bigint NOT NULL
retraction.digest: bytea NOT NULL
retraction.store: text NOT NULL
retraction.subject: text NOT NULL
retraction.reason: text NOT NULL
retraction.created_at: bigint NOT NULL
session.id: bigint NOT NULL DEFAULT nextval('session_id_seq'::regclass)
session.digest: bytea NOT NULL
session.key: text NOT NULL
session.started_at: bigint NOT NULL
session.fingerprint: text NOT NULL
session_factor.target_id: bigint NOT NULL
session_factor.subject: text NOT NULL
session_factor.subject_id: bigint NOT NULL
session_factor.machine: bigint NOT NULL
session_factor.factor: double precision NOT NULL
session_factor.spread: double precision
session_factor.programs: bigint NOT NULL
session_factor.estimated_at: bigint NOT NULL
sketch.id: bigint NOT NULL DEFAULT nextval('sketch_id_seq'::regclass)
sketch.digest: bytea NOT NULL
sketch.body: bytea NOT NULL
source.id: bigint NOT NULL DEFAULT nextval('source_id_seq'::regclass)
source.digest: bytea NOT NULL
source.name: text NOT NULL
source.kind: text NOT NULL
source.trust: bigint NOT NULL
source.store: text NOT NULL
source.created_at: bigint NOT NULL
source.tunedb_version: text NOT NULL
source.note: text
tail.id: bigint NOT NULL DEFAULT nextval('tail_id_seq'::regclass)
tail.digest: bytea NOT NULL
tail.body: bytea NOT NULL
target.id: bigint NOT NULL DEFAULT nextval('target_id_seq'::regclass)
target.digest: bytea NOT NULL
target.kind: text NOT NULL
target.architecture: text NOT NULL
target.config: text NOT NULL
target.text: text
v_best.workload_id: bigint
v_best.workload: text
v_best.target_id: bigint
v_best.target: text
v_best.family: text
v_best.arguments: json
v_best.flops: double precision
v_best.record_id: bigint
v_best.mean_seconds: double precision
v_best.gflops: double precision
v_best.measured_at: timestamp with time zone
v_best.source: text
v_best.trust: text
v_best.decisions: json
v_failures.record_id: bigint
v_failures.workload_id: bigint
v_failures.workload: text
v_failures.target_id: bigint
v_failures.target: text
v_failures.kind: text
v_failures.phase: text
v_failures.message: text
v_failures.seconds: double precision
v_failures.measured_at: timestamp with time zone
v_failures.session_id: bigint
v_failures.source: text
v_failures.trust: text
v_failures.retracted: boolean
v_launches.launch_id: bigint
v_launches.record_id: bigint
v_launches.workload_id: bigint
v_launches.workload: text
v_launches.target_id: bigint
v_launches.target: text
v_launches.kernel: text
v_launches.number: bigint
v_launches.threads: bigint
v_launches.block: json
v_launches.grid: json
v_launches.registers: bigint
v_launches.static_shared_bytes: bigint
v_launches.dynamic_shared_bytes: bigint
v_launches.seconds: double precision
v_launches.tool: text
v_launches.counters: json
v_launches.source: text
v_launches.trust: text
v_launches.retracted: boolean
v_records.record_id: bigint
v_records.digest: text
v_records.workload_id: bigint
v_records.workload: text
v_records.target_id: bigint
v_records.target: text
v_records.status: text
v_records.mean_seconds: double precision
v_records.repeats: integer
v_records.trial_seconds: double precision
v_records.measured_at: timestamp with time zone
v_records.session_id: bigint
v_records.source: text
v_records.trust: text
v_records.served: boolean
v_records.retracted: boolean
v_records.origin: text
v_records.program_id: bigint
v_records.program: text
v_records.donor: text
v_records.decisions: json
v_sessions.session_id: bigint
v_sessions.session: text
v_sessions.started_at: timestamp with time zone
v_sessions.cpu: text
v_sessions.gpu: text
v_sessions.cores: bigint
v_sessions.threads: bigint
v_sessions.os: text
v_sessions.tvm_version: text
v_sessions.tunedb_version: text
v_sessions.records: bigint
v_sessions.failed: bigint
v_sessions.foreign_records: bigint
v_sessions.last_measured_at: timestamp with time zone
v_tasks.workload_id: bigint
v_tasks.workload: text
v_tasks.target_id: bigint
v_tasks.target: text
v_tasks.family: text
v_tasks.arguments: json
v_tasks.flops: double precision
v_tasks.records: bigint
v_tasks.failed: bigint
v_tasks.foreign_records: bigint
v_tasks.served: bigint
v_tasks.best_seconds: double precision
v_tasks.best_gflops: double precision
v_tasks.first_measured_at: timestamp with time zone
v_tasks.last_measured_at: timestamp with time zone
watermark.direction: text NOT NULL
watermark.peer: text NOT NULL
watermark.selection: text NOT NULL
watermark.measurement_id: bigint NOT NULL
watermark.measurement_digest: bytea
watermark.failure_id: bigint NOT NULL
watermark.launch_id: bigint NOT NULL
watermark.retractions: bigint NOT NULL
watermark.exchanged_at: bigint NOT NULL
workload.id: bigint NOT NULL DEFAULT nextval('workload_id_seq'::regclass)
workload.digest: bytea NOT NULL
workload.format: text NOT NULL
workload.body: bytea NOT NULL
workload.name: text NOT NULL
workload.tvm_version: text
workload.script: bytea
workload.created_at: bigint NOT NULL
workload.function: text
workload.arguments: text
workload.family: text
workload.flops: double precision
workload_alias.scheme: text NOT NULL
workload_alias.key: text NOT NULL
workload_alias.workload_id: bigint NOT NULL
workload_alias.source_id: bigint NOT NULL

-- constraints
account.pk_account: PRIMARY KEY (store)
alembic_version.alembic_version_pkc: PRIMARY KEY (version_num)
args_info.pk_args_info: PRIMARY KEY (id)
args_info.uq_args_info_digest: UNIQUE (digest)
context.pk_context: PRIMARY KEY (id)
context.uq_context_digest: UNIQUE (digest)
counter_set.pk_counter_set: PRIMARY KEY (id)
counter_set.uq_counter_set_digest: UNIQUE (digest)
failure.fk_failure_measurement_id_measurement: FOREIGN KEY (measurement_id) REFERENCES measurement(id)
failure.fk_failure_source_id_source: FOREIGN KEY (source_id) REFERENCES source(id)
failure.pk_failure: PRIMARY KEY (id)
failure.uq_failure_digest_source_id: UNIQUE (digest, source_id)
feature.fk_feature_feature_set_id_feature_set: FOREIGN KEY (feature_set_id) REFERENCES feature_set(id)
feature.fk_feature_program_id_program: FOREIGN KEY (program_id) REFERENCES program(id)
feature.pk_feature: PRIMARY KEY (program_id, feature_set_id)
feature_set.pk_feature_set: PRIMARY KEY (id)
feature_set.uq_feature_set_name_version: UNIQUE (name, version)
foreign_feature.fk_foreign_feature_feature_set_id_feature_set: FOREIGN KEY (feature_set_id) REFERENCES feature_set(id)
foreign_feature.fk_foreign_feature_program_id_program: FOREIGN KEY (program_id) REFERENCES program(id)
foreign_feature.fk_foreign_feature_source_id_source: FOREIGN KEY (source_id) REFERENCES source(id)
foreign_feature.pk_foreign_feature: PRIMARY KEY (program_id, feature_set_id)
launch.fk_launch_counter_set_id_counter_set: FOREIGN KEY (counter_set_id) REFERENCES counter_set(id)
launch.fk_launch_measurement_id_measurement: FOREIGN KEY (measurement_id) REFERENCES measurement(id)
launch.fk_launch_source_id_source: FOREIGN KEY (source_id) REFERENCES source(id)
launch.pk_launch: PRIMARY KEY (id)
launch.uq_launch_digest_source_id: UNIQUE (digest, source_id)
measurement.fk_measurement_args_info_id_args_info: FOREIGN KEY (args_info_id) REFERENCES args_info(id)
measurement.fk_measurement_context_id_context: FOREIGN KEY (context_id) REFERENCES context(id)
measurement.fk_measurement_program_id_program: FOREIGN KEY (program_id) REFERENCES program(id)
measurement.fk_measurement_session_id_session: FOREIGN KEY (session_id) REFERENCES session(id)
measurement.fk_measurement_source_id_source: FOREIGN KEY (source_id) REFERENCES source(id)
measurement.fk_measurement_target_id_target: FOREIGN KEY (target_id) REFERENCES target(id)
measurement.fk_measurement_workload_id_workload: FOREIGN KEY (workload_id) REFERENCES workload(id)
measurement.pk_measurement: PRIMARY KEY (id)
measurement.uq_measurement_program_id_digest: UNIQUE (program_id, digest)
meta.pk_meta: PRIMARY KEY (key)
model.pk_model: PRIMARY KEY (id)
model.uq_model_digest: UNIQUE (digest)
prediction.fk_prediction_model_id_model: FOREIGN KEY (model_id) REFERENCES model(id)
prediction.fk_prediction_program_id_program: FOREIGN KEY (program_id) REFERENCES program(id)
prediction.pk_prediction: PRIMARY KEY (model_id, program_id)
program.fk_program_sketch_id_sketch: FOREIGN KEY (sketch_id) REFERENCES sketch(id)
program.fk_program_tail_id_tail: FOREIGN KEY (tail_id) REFERENCES tail(id)
program.fk_program_target_id_target: FOREIGN KEY (target_id) REFERENCES target(id)
program.fk_program_workload_id_workload: FOREIGN KEY (workload_id) REFERENCES workload(id)
program.pk_program: PRIMARY KEY (id)
program.uq_program_digest: UNIQUE (digest)
quarantine.fk_quarantine_source_id_source: FOREIGN KEY (source_id) REFERENCES source(id)
quarantine.pk_quarantine: PRIMARY KEY (id)
quarantine.uq_quarantine_digest: UNIQUE (digest)
retraction.pk_retraction: PRIMARY KEY (digest, store, subject)
session.pk_session: PRIMARY KEY (id)
session.uq_session_digest: UNIQUE (digest)
session_factor.fk_session_factor_target_id_target: FOREIGN KEY (target_id) REFERENCES target(id)
session_factor.pk_session_factor: PRIMARY KEY (target_id, subject, subject_id)
sketch.pk_sketch: PRIMARY KEY (id)
sketch.uq_sketch_digest: UNIQUE (digest)
source.pk_source: PRIMARY KEY (id)
source.uq_source_digest: UNIQUE (digest)
tail.pk_tail: PRIMARY KEY (id)
tail.uq_tail_digest: UNIQUE (digest)
target.pk_target: PRIMARY KEY (id)
target.uq_target_digest: UNIQUE (digest)
watermark.pk_watermark: PRIMARY KEY (direction, peer, selection)
workload.pk_workload: PRIMARY KEY (id)
workload.uq_workload_digest: UNIQUE (digest)
workload_alias.fk_workload_alias_source_id_source: FOREIGN KEY (source_id) REFERENCES source(id)
workload_alias.fk_workload_alias_workload_id_workload: FOREIGN KEY (workload_id) REFERENCES workload(id)
workload_alias.pk_workload_alias: PRIMARY KEY (scheme, key, workload_id, source_id)

-- indexes
CREATE UNIQUE INDEX alembic_version_pkc ON public.alembic_version USING btree (version_num)
CREATE INDEX ix_failure_measurement_id ON public.failure USING btree (measurement_id)
CREATE INDEX ix_launch_measurement_id ON public.launch USING btree (measurement_id)
CREATE INDEX ix_measurement_lost ON public.measurement USING btree (workload_id, target_id) WHERE (substr(extra, 1, 15) = '{"final":"lost"'::text)
CREATE INDEX ix_measurement_top_k ON public.measurement USING btree (workload_id, target_id, mean, id, served) WHERE (served = 1)
CREATE INDEX ix_prediction_program_id ON public.prediction USING btree (program_id)
CREATE INDEX ix_workload_alias_workload_id ON public.workload_alias USING btree (workload_id)
CREATE UNIQUE INDEX pk_account ON public.account USING btree (store)
CREATE UNIQUE INDEX pk_args_info ON public.args_info USING btree (id)
CREATE UNIQUE INDEX pk_context ON public.context USING btree (id)
CREATE UNIQUE INDEX pk_counter_set ON public.counter_set USING btree (id)
CREATE UNIQUE INDEX pk_failure ON public.failure USING btree (id)
CREATE UNIQUE INDEX pk_feature ON public.feature USING btree (program_id, feature_set_id)
CREATE UNIQUE INDEX pk_feature_set ON public.feature_set USING btree (id)
CREATE UNIQUE INDEX pk_foreign_feature ON public.foreign_feature USING btree (program_id, feature_set_id)
CREATE UNIQUE INDEX pk_launch ON public.launch USING btree (id)
CREATE UNIQUE INDEX pk_measurement ON public.measurement USING btree (id)
CREATE UNIQUE INDEX pk_meta ON public.meta USING btree (key)
CREATE UNIQUE INDEX pk_model ON public.model USING btree (id)
CREATE UNIQUE INDEX pk_prediction ON public.prediction USING btree (model_id, program_id)
CREATE UNIQUE INDEX pk_program ON public.program USING btree (id)
CREATE UNIQUE INDEX pk_quarantine ON public.quarantine USING btree (id)
CREATE UNIQUE INDEX pk_retraction ON public.retraction USING btree (digest, store, subject)
CREATE UNIQUE INDEX pk_session ON public.session USING btree (id)
CREATE UNIQUE INDEX pk_session_factor ON public.session_factor USING btree (target_id, subject, subject_id)
CREATE UNIQUE INDEX pk_sketch ON public.sketch USING btree (id)
CREATE UNIQUE INDEX pk_source ON public.source USING btree (id)
CREATE UNIQUE INDEX pk_tail ON public.tail USING btree (id)
CREATE UNIQUE INDEX pk_target ON public.target USING btree (id)
CREATE UNIQUE INDEX pk_watermark ON public.watermark USING btree (direction, peer, selection)
CREATE UNIQUE INDEX pk_workload ON public.workload USING btree (id)
CREATE UNIQUE INDEX pk_workload_alias ON public.workload_alias USING btree (scheme, key, workload_id, source_id)
CREATE UNIQUE INDEX uq_args_info_digest ON public.args_info USING btree (digest)
CREATE UNIQUE INDEX uq_context_digest ON public.context USING btree (digest)
CREATE UNIQUE INDEX uq_counter_set_digest ON public.counter_set USING btree (digest)
CREATE UNIQUE INDEX uq_failure_digest_source_id ON public.failure USING btree (digest, source_id)
CREATE UNIQUE INDEX uq_feature_set_name_version ON public.feature_set USING btree (name, version)
CREATE UNIQUE INDEX uq_launch_digest_source_id ON public.launch USING btree (digest, source_id)
CREATE UNIQUE INDEX uq_measurement_program_id_digest ON public.measurement USING btree (program_id, digest)
CREATE UNIQUE INDEX uq_model_digest ON public.model USING btree (digest)
CREATE UNIQUE INDEX uq_program_digest ON public.program USING btree (digest)
CREATE UNIQUE INDEX uq_quarantine_digest ON public.quarantine USING btree (digest)
CREATE UNIQUE INDEX uq_session_digest ON public.session USING btree (digest)
CREATE UNIQUE INDEX uq_sketch_digest ON public.sketch USING btree (digest)
CREATE UNIQUE INDEX uq_source_digest ON public.source USING btree (digest)
CREATE UNIQUE INDEX uq_tail_digest ON public.tail USING btree (digest)
CREATE UNIQUE INDEX uq_target_digest ON public.target USING btree (digest)
CREATE UNIQUE INDEX uq_workload_digest ON public.workload USING btree (digest)

-- others
S args_info_id_seq
S context_id_seq
S counter_set_id_seq
S failure_id_seq
S feature_set_id_seq
S launch_id_seq
S measurement_id_seq
S model_id_seq
S program_id_seq
S quarantine_id_seq
S session_id_seq
S sketch_id_seq
S source_id_seq
S tail_id_seq
S target_id_seq
S workload_id_seq
v v_best
v v_failures
v v_launches
v v_records
v v_sessions
v v_tasks

-- triggers
CREATE TRIGGER tunedb_guard BEFORE INSERT OR UPDATE ON public.account FOR EACH ROW EXECUTE FUNCTION tunedb_guard_account()
CREATE TRIGGER tunedb_guard BEFORE INSERT ON public.failure FOR EACH ROW EXECUTE FUNCTION tunedb_guard_word()
CREATE TRIGGER tunedb_guard BEFORE DELETE ON public.feature FOR EACH ROW EXECUTE FUNCTION tunedb_guard_feature()
CREATE TRIGGER tunedb_guard BEFORE DELETE ON public.foreign_feature FOR EACH ROW EXECUTE FUNCTION tunedb_guard_mark()
CREATE TRIGGER tunedb_guard BEFORE INSERT ON public.launch FOR EACH ROW EXECUTE FUNCTION tunedb_guard_word()
CREATE TRIGGER tunedb_guard BEFORE INSERT OR UPDATE ON public.measurement FOR EACH ROW EXECUTE FUNCTION tunedb_guard_measurement()
CREATE TRIGGER tunedb_guard BEFORE INSERT OR UPDATE ON public.model FOR EACH ROW EXECUTE FUNCTION tunedb_guard_model()
CREATE TRIGGER tunedb_guard BEFORE INSERT ON public.retraction FOR EACH ROW EXECUTE FUNCTION tunedb_guard_retraction()
CREATE TRIGGER tunedb_guard BEFORE INSERT ON public.source FOR EACH ROW EXECUTE FUNCTION tunedb_guard_source()
CREATE TRIGGER tunedb_guard BEFORE INSERT OR UPDATE ON public.workload FOR EACH ROW EXECUTE FUNCTION tunedb_guard_workload()
CREATE TRIGGER tunedb_guard BEFORE INSERT ON public.workload_alias FOR EACH ROW EXECUTE FUNCTION tunedb_guard_word()

-- views
v_best:  SELECT w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    TRIM(BOTH FROM ((t.kind || ' '::text) || COALESCE(NULLIF((tunedb_json(convert_to(t.config, 'UTF8'::name)) ->> 'model'::text), ''::text), t.architecture))) AS target,
    w.family,
    tunedb_json(convert_to(w.arguments, 'UTF8'::name)) AS arguments,
    w.flops,
    m.id AS record_id,
    m.mean AS mean_seconds,
        CASE
            WHEN ((m.mean > (0.000000000001)::double precision) AND (w.flops < ('1000000000000000000000000000000'::numeric)::double precision)) THEN ((w.flops / m.mean) / ('1000000000'::numeric)::double precision)
            ELSE NULL::double precision
        END AS gflops,
        CASE
            WHEN ((m.measured_at > 0) AND (m.measured_at < '253402300799000000'::bigint)) THEN to_timestamp((((m.measured_at)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS measured_at,
    s.name AS source,
        CASE s.trust
            WHEN 2 THEN 'own'::text
            WHEN 1 THEN 'verified'::text
            ELSE 'foreign'::text
        END AS trust,
        CASE
            WHEN (w.format = 'ansor-key'::text) THEN tunedb_numbers(p.decisions)
            WHEN (w.format = ANY (ARRAY['tvm-graph'::text, 'tvm-nodes'::text, 'metaschedule-arguments'::text])) THEN (tunedb_json(p.decisions) -> 0)
            ELSE tunedb_json(p.decisions)
        END AS decisions
   FROM (((((( SELECT DISTINCT measurement.workload_id,
            measurement.target_id
           FROM measurement
          WHERE (measurement.served = 1)) g
     JOIN measurement m ON ((m.id = ( SELECT b.id
           FROM measurement b
          WHERE ((b.workload_id = g.workload_id) AND (b.target_id = g.target_id) AND (b.served = 1) AND ((NOT (EXISTS ( SELECT 1
                   FROM measurement
                  WHERE (substr(measurement.extra, 1, 15) = '{"final":"lost"'::text)))) OR (NOT (b.id IN ( SELECT r.id
                   FROM (((measurement f
                     JOIN measurement r ON ((r.program_id = f.program_id)))
                     JOIN session d ON ((d.id = f.session_id)))
                     JOIN session e ON ((e.id = r.session_id)))
                  WHERE ((substr(f.extra, 1, 15) = '{"final":"lost"'::text) AND (f.served = 1) AND (r.measured_at < f.measured_at) AND ((f.source_id = r.source_id) OR (f.source_id IN ( SELECT source.id
                           FROM source
                          WHERE (source.trust >= 2)))) AND ((d.id = e.id) OR (jsonb_exists_any((tunedb_json(convert_to(d.fingerprint, 'UTF8'::name)))::jsonb, ARRAY['cpu'::text, 'gpu'::text, 'remote'::text]) AND (((tunedb_json(convert_to(d.fingerprint, 'UTF8'::name)))::jsonb - ARRAY['evaluator'::text, 'os'::text, 'python'::text, 'run'::text, 'tunedb'::text, 'tvm_ffi'::text]) = ((tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)))::jsonb - ARRAY['evaluator'::text, 'os'::text, 'python'::text, 'run'::text, 'tunedb'::text, 'tvm_ffi'::text]))))))))))
          ORDER BY b.mean, b.id
         LIMIT 1))))
     JOIN program p ON ((p.id = m.program_id)))
     JOIN workload w ON ((w.id = m.workload_id)))
     JOIN target t ON ((t.id = m.target_id)))
     JOIN source s ON ((s.id = m.source_id)));
v_failures:  SELECT m.id AS record_id,
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    TRIM(BOTH FROM ((t.kind || ' '::text) || COALESCE(NULLIF((tunedb_json(convert_to(t.config, 'UTF8'::name)) ->> 'model'::text), ''::text), t.architecture))) AS target,
    COALESCE(f.kind, 'unknown'::text) AS kind,
    COALESCE(f.phase, 'unknown'::text) AS phase,
    f.message,
    f.seconds,
        CASE
            WHEN ((m.measured_at > 0) AND (m.measured_at < '253402300799000000'::bigint)) THEN to_timestamp((((m.measured_at)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS measured_at,
    m.session_id,
    s.name AS source,
        CASE s.trust
            WHEN 2 THEN 'own'::text
            WHEN 1 THEN 'verified'::text
            ELSE 'foreign'::text
        END AS trust,
    (EXISTS ( SELECT 1
           FROM retraction r
          WHERE ((r.digest = ANY (ARRAY[m.digest, s.digest, e.digest])) AND (r.subject <> 'aliases'::text) AND (r.store = ANY (ARRAY[s.store, ( SELECT meta.value
                   FROM meta
                  WHERE (meta.key = 'store'::text))]))))) AS retracted
   FROM ((((((measurement m
     JOIN program p ON ((p.id = m.program_id)))
     JOIN workload w ON ((w.id = m.workload_id)))
     JOIN target t ON ((t.id = m.target_id)))
     JOIN source s ON ((s.id = m.source_id)))
     LEFT JOIN session e ON ((e.id = m.session_id)))
     LEFT JOIN failure f ON ((f.id = COALESCE(( SELECT max(x.id) AS max
           FROM failure x
          WHERE ((x.measurement_id = m.id) AND (x.source_id = m.source_id))), ( SELECT max(x.id) AS max
           FROM failure x
          WHERE ((x.measurement_id = m.id) AND (EXISTS ( SELECT 1
                   FROM source o
                  WHERE ((o.id = x.source_id) AND (o.trust >= 1) AND (NOT (EXISTS ( SELECT 1
                           FROM retraction r
                          WHERE ((r.digest = o.digest) AND (r.subject <> 'aliases'::text) AND (r.store = ANY (ARRAY[o.store, ( SELECT meta.value
                                   FROM meta
                                  WHERE (meta.key = 'store'::text))])))))))))))))))
  WHERE ((f.id IS NOT NULL) OR (m.status = 1));
v_launches:  SELECT l.id AS launch_id,
    m.id AS record_id,
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    TRIM(BOTH FROM ((t.kind || ' '::text) || COALESCE(NULLIF((tunedb_json(convert_to(t.config, 'UTF8'::name)) ->> 'model'::text), ''::text), t.architecture))) AS target,
    l.kernel,
    l.number,
    l.threads,
    ((((((('['::text || l.block_x) || ','::text) || l.block_y) || ','::text) || l.block_z) || ']'::text))::json AS block,
    ((((((('['::text || l.grid_x) || ','::text) || l.grid_y) || ','::text) || l.grid_z) || ']'::text))::json AS grid,
    l.registers,
    l.static_shared AS static_shared_bytes,
    l.dynamic_shared AS dynamic_shared_bytes,
    l.seconds,
    c.tool,
    tunedb_json(convert_to(c.counters, 'UTF8'::name)) AS counters,
    s.name AS source,
        CASE s.trust
            WHEN 2 THEN 'own'::text
            WHEN 1 THEN 'verified'::text
            ELSE 'foreign'::text
        END AS trust,
    (EXISTS ( SELECT 1
           FROM retraction r
          WHERE ((r.digest = ANY (ARRAY[m.digest, s.digest, e.digest])) AND (r.subject <> 'aliases'::text) AND (r.store = ANY (ARRAY[s.store, ( SELECT meta.value
                   FROM meta
                  WHERE (meta.key = 'store'::text))]))))) AS retracted
   FROM ((((((launch l
     JOIN measurement m ON ((m.id = l.measurement_id)))
     JOIN workload w ON ((w.id = m.workload_id)))
     JOIN target t ON ((t.id = m.target_id)))
     JOIN source s ON ((s.id = l.source_id)))
     LEFT JOIN session e ON ((e.id = m.session_id)))
     LEFT JOIN counter_set c ON ((c.id = l.counter_set_id)))
  WHERE ((l.source_id = m.source_id) OR ((EXISTS ( SELECT 1
           FROM source o
          WHERE ((o.id = l.source_id) AND (o.trust >= 1) AND (NOT (EXISTS ( SELECT 1
                   FROM retraction r
                  WHERE ((r.digest = o.digest) AND (r.subject <> 'aliases'::text) AND (r.store = ANY (ARRAY[o.store, ( SELECT meta.value
                           FROM meta
                          WHERE (meta.key = 'store'::text))]))))))))) AND (NOT (EXISTS ( SELECT 1
           FROM launch x
          WHERE ((x.measurement_id = m.id) AND (x.source_id = m.source_id)))))));
v_records:  SELECT m.id AS record_id,
    encode(m.digest, 'hex'::text) AS digest,
    w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    TRIM(BOTH FROM ((t.kind || ' '::text) || COALESCE(NULLIF((tunedb_json(convert_to(t.config, 'UTF8'::name)) ->> 'model'::text), ''::text), t.architecture))) AS target,
        CASE m.status
            WHEN 0 THEN 'ok'::text
            WHEN 1 THEN 'failed'::text
            WHEN 2 THEN 'unmeasured'::text
            ELSE 'cut_short'::text
        END AS status,
        CASE
            WHEN (m.status = 0) THEN m.mean
            ELSE NULL::double precision
        END AS mean_seconds,
    (length(m.run_secs) / 8) AS repeats,
    m.all_cost AS trial_seconds,
        CASE
            WHEN ((m.measured_at > 0) AND (m.measured_at < '253402300799000000'::bigint)) THEN to_timestamp((((m.measured_at)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS measured_at,
    m.session_id,
    s.name AS source,
        CASE s.trust
            WHEN 2 THEN 'own'::text
            WHEN 1 THEN 'verified'::text
            ELSE 'foreign'::text
        END AS trust,
    (m.served = 1) AS served,
    (EXISTS ( SELECT 1
           FROM retraction r
          WHERE ((r.digest = ANY (ARRAY[m.digest, s.digest, e.digest])) AND (r.subject <> 'aliases'::text) AND (r.store = ANY (ARRAY[s.store, ( SELECT meta.value
                   FROM meta
                  WHERE (meta.key = 'store'::text))]))))) AS retracted,
    COALESCE(m.origin, 'unknown'::text) AS origin,
    p.id AS program_id,
    encode(p.digest, 'hex'::text) AS program,
    NULLIF(encode(m.donor, 'hex'::text), ''::text) AS donor,
        CASE
            WHEN (w.format = 'ansor-key'::text) THEN tunedb_numbers(p.decisions)
            WHEN (w.format = ANY (ARRAY['tvm-graph'::text, 'tvm-nodes'::text, 'metaschedule-arguments'::text])) THEN (tunedb_json(p.decisions) -> 0)
            ELSE tunedb_json(p.decisions)
        END AS decisions
   FROM (((((measurement m
     JOIN program p ON ((p.id = m.program_id)))
     JOIN workload w ON ((w.id = m.workload_id)))
     JOIN target t ON ((t.id = m.target_id)))
     JOIN source s ON ((s.id = m.source_id)))
     LEFT JOIN session e ON ((e.id = m.session_id)));
v_sessions:  SELECT e.id AS session_id,
    e.key AS session,
        CASE
            WHEN ((e.started_at > 0) AND (e.started_at < '253402300799000000'::bigint)) THEN to_timestamp((((e.started_at)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS started_at,
    (tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)) ->> 'cpu'::text) AS cpu,
    (tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)) ->> 'gpu'::text) AS gpu,
    ("substring"((tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)) ->> 'cores'::text), '^[0-9]{1,18}$'::text))::bigint AS cores,
    ("substring"((tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)) ->> 'threads'::text), '^[0-9]{1,18}$'::text))::bigint AS threads,
    (tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)) ->> 'os'::text) AS os,
    (tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)) ->> 'tvm'::text) AS tvm_version,
    (tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)) ->> 'tunedb'::text) AS tunedb_version,
    COALESCE(g.records, (0)::bigint) AS records,
    COALESCE(g.failed, (0)::bigint) AS failed,
    COALESCE(g.foreign_records, (0)::bigint) AS foreign_records,
        CASE
            WHEN ((g.last_at > 0) AND (g.last_at < '253402300799000000'::bigint)) THEN to_timestamp((((g.last_at)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS last_measured_at
   FROM (session e
     LEFT JOIN ( SELECT m.session_id,
            count(*) AS records,
            count(
                CASE
                    WHEN (m.status = 1) THEN 1
                    ELSE NULL::integer
                END) AS failed,
            count(
                CASE
                    WHEN (s.trust = 0) THEN 1
                    ELSE NULL::integer
                END) AS foreign_records,
            max(m.measured_at) AS last_at
           FROM (measurement m
             JOIN source s ON ((s.id = m.source_id)))
          GROUP BY m.session_id) g ON ((g.session_id = e.id)));
v_tasks:  SELECT w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    TRIM(BOTH FROM ((t.kind || ' '::text) || COALESCE(NULLIF((tunedb_json(convert_to(t.config, 'UTF8'::name)) ->> 'model'::text), ''::text), t.architecture))) AS target,
    w.family,
    tunedb_json(convert_to(w.arguments, 'UTF8'::name)) AS arguments,
    w.flops,
    g.records,
    g.failed,
    g.foreign_records,
    g.served,
    g.best AS best_seconds,
        CASE
            WHEN ((g.best > (0.000000000001)::double precision) AND (w.flops < ('1000000000000000000000000000000'::numeric)::double precision)) THEN ((w.flops / g.best) / ('1000000000'::numeric)::double precision)
            ELSE NULL::double precision
        END AS best_gflops,
        CASE
            WHEN ((g.first_at > 0) AND (g.first_at < '253402300799000000'::bigint)) THEN to_timestamp((((g.first_at)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS first_measured_at,
        CASE
            WHEN ((g.last_at > 0) AND (g.last_at < '253402300799000000'::bigint)) THEN to_timestamp((((g.last_at)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS last_measured_at
   FROM ((( SELECT m.workload_id,
            m.target_id,
            count(*) AS records,
            count(
                CASE
                    WHEN (m.status = 1) THEN 1
                    ELSE NULL::integer
                END) AS failed,
            count(
                CASE
                    WHEN (s.trust = 0) THEN 1
                    ELSE NULL::integer
                END) AS foreign_records,
            count(
                CASE
                    WHEN (m.served = 1) THEN 1
                    ELSE NULL::integer
                END) AS served,
            min(
                CASE
                    WHEN ((m.served = 1) AND ((NOT (EXISTS ( SELECT 1
                       FROM measurement
                      WHERE (substr(measurement.extra, 1, 15) = '{"final":"lost"'::text)))) OR (NOT (m.id IN ( SELECT r.id
                       FROM (((measurement f
                         JOIN measurement r ON ((r.program_id = f.program_id)))
                         JOIN session d ON ((d.id = f.session_id)))
                         JOIN session e ON ((e.id = r.session_id)))
                      WHERE ((substr(f.extra, 1, 15) = '{"final":"lost"'::text) AND (f.served = 1) AND (r.measured_at < f.measured_at) AND ((f.source_id = r.source_id) OR (f.source_id IN ( SELECT source.id
                               FROM source
                              WHERE (source.trust >= 2)))) AND ((d.id = e.id) OR (jsonb_exists_any((tunedb_json(convert_to(d.fingerprint, 'UTF8'::name)))::jsonb, ARRAY['cpu'::text, 'gpu'::text, 'remote'::text]) AND (((tunedb_json(convert_to(d.fingerprint, 'UTF8'::name)))::jsonb - ARRAY['evaluator'::text, 'os'::text, 'python'::text, 'run'::text, 'tunedb'::text, 'tvm_ffi'::text]) = ((tunedb_json(convert_to(e.fingerprint, 'UTF8'::name)))::jsonb - ARRAY['evaluator'::text, 'os'::text, 'python'::text, 'run'::text, 'tunedb'::text, 'tvm_ffi'::text])))))))))) THEN m.mean
                    ELSE NULL::double precision
                END) AS best,
            min(
                CASE
                    WHEN (m.measured_at > 0) THEN m.measured_at
                    ELSE NULL::bigint
                END) AS first_at,
            max(m.measured_at) AS last_at
           FROM (measurement m
             JOIN source s ON ((s.id = m.source_id)))
          GROUP BY m.workload_id, m.target_id) g
     JOIN workload w ON ((w.id = g.workload_id)))
     JOIN target t ON ((t.id = g.target_id)));

-- functions
CREATE OR REPLACE FUNCTION public.tunedb_guard_account()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF NEW.store = (SELECT value FROM public.meta WHERE key = 'store') THEN
    RAISE 'tunedb guard: the server''s own key belongs to its owner' USING ERRCODE = '42501';
  END IF;
  IF NOT public.tunedb_is_owner() THEN
    NEW.role := session_user;
    NEW.registered_at := NULL;
  END IF;
  NEW.registered_at := coalesce(
    NEW.registered_at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
  RETURN NEW;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_feature()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF NOT EXISTS (SELECT FROM public.foreign_feature f
      WHERE f.program_id = OLD.program_id AND f.feature_set_id = OLD.feature_set_id)
    AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: features that were computed here are the owner''s to remove'
      USING ERRCODE = '42501';
  END IF;
  RETURN OLD;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_mark()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF EXISTS (SELECT FROM public.feature f
      WHERE f.program_id = OLD.program_id AND f.feature_set_id = OLD.feature_set_id)
    AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: features that came with a merge keep their mark'
      USING ERRCODE = '42501';
  END IF;
  RETURN OLD;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_measurement()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  sketch bigint;
  trust bigint;
  store text;
BEGIN
  SELECT p.workload_id, p.target_id, p.sketch_id, s.trust, s.store
    INTO NEW.workload_id, NEW.target_id, sketch, trust, store
    FROM public.program p, public.source s WHERE p.id = NEW.program_id AND s.id = NEW.source_id;
  NEW.mean := public.tunedb_mean(NEW.run_secs, NEW.mean);
  NEW.served := 0;
  IF trust > 0 AND NEW.status = 0 AND NEW.mean IS NOT NULL
    AND NOT EXISTS (SELECT FROM public.sketch k WHERE k.id = sketch
      AND k.digest = '\xaeaf974d9e2b45930828388de3b244c4')
    AND NOT (EXISTS (SELECT FROM public.retraction)
      AND public.tunedb_is_retracted(NEW.digest, NEW.source_id, NEW.session_id)) THEN
    NEW.served := 1;
  END IF;
  IF TG_OP = 'UPDATE' THEN
    IF NEW.source_id = OLD.source_id OR public.tunedb_is_owner() THEN
      RETURN NEW;
    ELSIF NOT EXISTS (SELECT FROM public.source n, public.source o
      WHERE n.id = NEW.source_id AND o.id = OLD.source_id
        AND (n.trust > o.trust OR n.trust = o.trust AND n.digest < o.digest)) THEN
      RAISE 'tunedb guard: record % belongs to a source that is trusted more', OLD.id
        USING ERRCODE = '42501';
    END IF;
  END IF;
  IF trust > 0 AND NOT public.tunedb_may_speak(store) THEN
    RAISE 'tunedb guard: source % is not of this account''s databases', NEW.source_id
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_model()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF NEW.body IS NOT NULL AND NOT public.tunedb_is_owner() THEN
    NEW.body := NULL;
  END IF;
  RETURN NEW;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_retraction()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF NOT public.tunedb_is_owner() AND NOT EXISTS (SELECT FROM public.account a
    WHERE a.store = NEW.store AND a.role = session_user) THEN
    RAISE 'tunedb guard: database % is not registered with this account', NEW.store
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_source()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF NEW.trust > 0 AND NEW.store <> (SELECT value FROM public.meta WHERE key = 'store')
    AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: only the owner trusts a source of another database'
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_word()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  trust bigint;
  store text;
BEGIN
  SELECT s.trust, s.store INTO trust, store FROM public.source s WHERE s.id = NEW.source_id;
  IF trust > 0 AND NOT public.tunedb_may_speak(store) THEN
    RAISE 'tunedb guard: source % is not of this account''s databases', NEW.source_id
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_guard_workload()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF NEW.script IS NOT NULL AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: only the owner gives a workload its script' USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_is_owner()
 RETURNS boolean
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  RETURN pg_has_role(session_user,
    (SELECT relowner FROM pg_class WHERE oid = 'public.measurement'::regclass), 'MEMBER');
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_is_retracted(record bytea, source bigint, session bigint)
 RETURNS boolean
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  digests bytea[];
  stores text[];
BEGIN
  SELECT ARRAY[record, s.digest, (SELECT e.digest FROM public.session e WHERE e.id = session)],
      ARRAY[s.store, (SELECT value FROM public.meta WHERE key = 'store')]
    INTO digests, stores FROM public.source s WHERE s.id = source;
  RETURN EXISTS (SELECT FROM public.retraction t WHERE t.digest = ANY (digests)
    AND t.store = ANY (stores) AND t.subject <> 'aliases');
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_json(value bytea)
 RETURNS json
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  PERFORM convert_from(value, 'UTF8')::jsonb;
  RETURN convert_from(value, 'UTF8')::json;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
  RETURN NULL;
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_may_speak(key text)
 RETURNS boolean
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  RETURN key = (SELECT value FROM public.meta WHERE meta.key = 'store')
    OR EXISTS (SELECT FROM public.account a
      WHERE a.store = tunedb_may_speak.key AND a.role = session_user)
    OR public.tunedb_is_owner();
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_mean(run_secs bytea, given double precision)
 RETURNS double precision
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  size integer := length(run_secs);
  place integer := 0;
  total float8 := 0;
  high integer;
  exponent integer;
  fraction bigint;
  value float8;
BEGIN
  IF size % 8 <> 0 OR size > 800000 THEN
    RAISE 'tunedb guard: run times of % bytes', size USING ERRCODE = '22023';
  END IF;
  WHILE place < size LOOP
    high := get_byte(run_secs, place + 7) << 8 | get_byte(run_secs, place + 6);
    exponent := high >> 4 & 2047;
    -- These operators bind equally, from left to right.
    fraction := (high & 15)::bigint << 8 | get_byte(run_secs, place + 5)
      << 8 | get_byte(run_secs, place + 4) << 8 | get_byte(run_secs, place + 3)
      << 8 | get_byte(run_secs, place + 2) << 8 | get_byte(run_secs, place + 1)
      << 8 | get_byte(run_secs, place);
    IF exponent = 2047 THEN
      RAISE 'tunedb guard: a run time is not finite' USING ERRCODE = '22023';
    ELSIF exponent = 0 THEN
      value := fraction * power(2::float8, -1074);
    ELSE
      value := (fraction + 4503599627370496) * power(2::float8, exponent - 1075);
    END IF;
    IF high >= 32768 THEN
      value := -value;
    END IF;
    total := total + value;
    place := place + 8;
  END LOOP;
  IF size = 0 THEN
    RETURN NULL;
  ELSIF total <> 0 AND abs(total) < 1e-290 THEN
    RETURN CASE WHEN abs(given) <= abs(total) THEN given ELSE 0 END;
  END IF;
  RETURN total / (size / 8);
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_numbers(value bytea)
 RETURNS json
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  numbers bigint[] := ARRAY[]::bigint[];
  number bigint := 0;
  shift integer := 0;
  byte integer;
BEGIN
  FOR place IN 0 .. length(value) - 1 LOOP
    byte := get_byte(value, place);
    number := number | ((byte & 127)::bigint << shift);
    IF byte < 128 THEN
      numbers := numbers || number;
      number := 0;
      shift := 0;
    ELSE
      shift := shift + 7;
    END IF;
  END LOOP;
  RETURN to_json(numbers);
END $function$

CREATE OR REPLACE FUNCTION public.tunedb_stop_serving()
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  stopped bigint;
BEGIN
  UPDATE public.measurement m SET served = 0
    WHERE m.served = 1 AND EXISTS (SELECT FROM public.retraction)
      AND (m.digest IN (SELECT t.digest FROM public.retraction t)
        OR m.source_id IN (SELECT s.id FROM public.source s
          WHERE s.digest IN (SELECT t.digest FROM public.retraction t))
        OR m.session_id IN (SELECT e.id FROM public.session e
          WHERE e.digest IN (SELECT t.digest FROM public.retraction t)))
      AND public.tunedb_is_retracted(m.digest, m.source_id, m.session_id);
  GET DIAGNOSTICS stopped = ROW_COUNT;
  RETURN stopped;
END $function$

