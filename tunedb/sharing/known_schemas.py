"""What the tables and indexes of each revision are, so that a foreign file can be compared."""

from __future__ import annotations

import re

from .. import identity, schema

#: Name → from which revision on it has which definition; None where it is gone.
#: ``python tests/sharing/test_foreign.py`` prints it; a test compares it with databases.
DEFINITIONS: dict[str, tuple[tuple[str, str | None], ...]] = {
    "account": (("0007", "b8af3b704836bd37e5e2c7ea5e69fa59"),),
    "alembic_version": (("0001", "f36ba38fdd826aac6646ff6d5b38503f"),),
    "args_info": (("0001", "f07f02fd416be3524eea77499ef27518"),),
    "context": (("0002", "331687f54859a2807144b759d3c2bda0"),),
    "counter_set": (("0005", "0cfbee5b91c0e44bc76af07ff9761fc2"),),
    "failure": (
        ("0001", "ac9e951c28d8d80a92fea4f22a87b65e"),
        ("0006", "c66083b38dbe7865e0cc87d02c0f7b79"),
    ),
    "feature": (("0001", "8b69ad0e86b8dd69d70e267a4d5c2a49"),),
    "feature_set": (("0001", "f9f836d6ddd5ecd5f606c10e7b6cdd42"),),
    "foreign_feature": (("0006", "0e4b89e97562fdc38a268546c24b1374"),),
    "ix_failure_measurement_id": (("0001", "0f478b3df7c25ca0856942e467526066"),),
    "ix_launch_measurement_id": (("0005", "32c4fd6bb73a13236ebf93b6d8375bd5"),),
    "ix_measurement_program_id": (
        ("0001", "4f91859bb76d4484bd8770a415e611b0"),
        ("0002", None),
    ),
    "ix_measurement_top_k": (("0001", "dae6e9566826f0dbb2ca4a2312b8dd21"),),
    "ix_prediction_program_id": (("0004", "872ac2118f23eb6daea1b4c780787b20"),),
    "ix_workload_alias_workload_id": (("0001", "ea947089aa222ad8d4d6094afd1e46cd"),),
    "launch": (
        ("0005", "f456d0b558f97bed864fbfbc794d86b3"),
        ("0006", "be480553e8d1838c1ca6f2e030a477c4"),
    ),
    "measurement": (
        ("0001", "a36d5b6a6935c8abcb475b21686f0960"),
        ("0002", "35c5d2c4f14d0c350be379a4c0657ea3"),
    ),
    "meta": (("0001", "0d475b60dac742e4bf825c06131ba857"),),
    "model": (("0001", "0a233962b50124e13afe824bc327b430"),),
    "prediction": (("0003", "eb7306a24469b434d62d06fcc5f6144b"),),
    "program": (
        ("0001", "6e9b9edd136f2642e2811d32cf3ff0be"),
        ("0002", "16e504ffaacba7b0fb3cdffefd3245e4"),
    ),
    "quarantine": (("0001", "157228f6b386d62129837708d3134e9d"),),
    "retraction": (
        ("0001", "f808bfdba646d7b0a928b72b09b578e1"),
        ("0004", "3d17551bc2af28a83e088e2938b614bf"),
        ("0006", "8e61a9e807be31a7a7101c03a2d35782"),
    ),
    "session": (("0001", "139595d56cfdfae0678fde7666817ff7"),),
    "session_factor": (("0003", "cac9e0c9543bd649538aa35987dbd76e"),),
    "sketch": (("0001", "81d6e6213587867e647a74e55064d052"),),
    "source": (("0001", "902779729b0e47bf258efb384fbd54bb"),),
    "tail": (("0001", "4c96aed491e7cde94752d854acdceeca"),),
    "target": (("0001", "102da0920d92d562722617df9ee0c094"),),
    "watermark": (
        ("0004", "8bfbe3ed08db0489c78d54e4abeb83c3"),
        ("0005", "441510190c8ed2b1f303c4df98389667"),
    ),
    "workload": (
        ("0001", "3fdc5a8dc592243d895188336a329efd"),
        ("0002", "887daa2a2c50e0c9afe6da17b70330df"),
    ),
    "workload_alias": (
        ("0001", "579c70ff4b16929bcdb5b32c90e20c04"),
        ("0006", "fc2433aa531364fd1379a86a77e7a41d"),
    ),
}

_SPACE = re.compile(r"[ \t\r\n]+")
_AROUND = re.compile(r" ?([(),]) ?")


def definition(kind: str, name: str, table: str, sql: str) -> str:
    """Return a digest, in hexadecimal, of one row of ``sqlite_schema``.

    Space counts only between words: that between them and brackets is SQLAlchemy's taste.
    """
    text = _AROUND.sub(r"\1", _SPACE.sub(" ", sql)).strip()
    fields = (kind, name, table, text)
    value = identity.digest("schema", *(f.encode(errors="surrogatepass") for f in fields))
    return value.hex()


def objects_of(revision: str) -> dict[str, str]:
    """Return the tables and indexes of a revision with the digests of their definitions."""
    reached = schema.REVISIONS[: schema.REVISIONS.index(revision) + 1]
    found: dict[str, str] = {}
    for name, steps in DEFINITIONS.items():
        digest = [digest for since, digest in steps if since in reached]
        if digest and digest[-1] is not None:
            found[name] = digest[-1]
    return found
