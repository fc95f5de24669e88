from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    D_TYPE_UNSPECIFIED: _ClassVar[DType]
    D_TYPE_FLOAT32: _ClassVar[DType]
    D_TYPE_FLOAT16: _ClassVar[DType]
    D_TYPE_INT8: _ClassVar[DType]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_NONE: _ClassVar[Pooling]
    POOLING_SUM: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]

class Provenance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVENANCE_UNSPECIFIED: _ClassVar[Provenance]
    PROVENANCE_OWN_ROW: _ClassVar[Provenance]
    PROVENANCE_FALLBACK: _ClassVar[Provenance]
    PROVENANCE_PADDING: _ClassVar[Provenance]
    PROVENANCE_UNTRAINED: _ClassVar[Provenance]

class VersionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERSION_STATE_UNSPECIFIED: _ClassVar[VersionState]
    VERSION_STATE_SERVED: _ClassVar[VersionState]
    VERSION_STATE_LOADED: _ClassVar[VersionState]
    VERSION_STATE_ON_DISK: _ClassVar[VersionState]
D_TYPE_UNSPECIFIED: DType
D_TYPE_FLOAT32: DType
D_TYPE_FLOAT16: DType
D_TYPE_INT8: DType
POOLING_UNSPECIFIED: Pooling
POOLING_NONE: Pooling
POOLING_SUM: Pooling
POOLING_MEAN: Pooling
PROVENANCE_UNSPECIFIED: Provenance
PROVENANCE_OWN_ROW: Provenance
PROVENANCE_FALLBACK: Provenance
PROVENANCE_PADDING: Provenance
PROVENANCE_UNTRAINED: Provenance
VERSION_STATE_UNSPECIFIED: VersionState
VERSION_STATE_SERVED: VersionState
VERSION_STATE_LOADED: VersionState
VERSION_STATE_ON_DISK: VersionState

class FeatureIds(_message.Message):
    __slots__ = ("feature", "ids", "keys", "lengths", "weights")
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    feature: str
    ids: bytes
    keys: _containers.RepeatedScalarFieldContainer[str]
    lengths: bytes
    weights: bytes
    def __init__(self, feature: _Optional[str] = ..., ids: _Optional[bytes] = ..., keys: _Optional[_Iterable[str]] = ..., lengths: _Optional[bytes] = ..., weights: _Optional[bytes] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("features", "dtype", "min_version", "fingerprint", "with_provenance", "with_counts", "pinned_version")
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    WITH_PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    WITH_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    features: _containers.RepeatedCompositeFieldContainer[FeatureIds]
    dtype: DType
    min_version: int
    fingerprint: str
    with_provenance: bool
    with_counts: bool
    pinned_version: int
    def __init__(self, features: _Optional[_Iterable[_Union[FeatureIds, _Mapping]]] = ..., dtype: _Optional[_Union[DType, str]] = ..., min_version: _Optional[int] = ..., fingerprint: _Optional[str] = ..., with_provenance: _Optional[bool] = ..., with_counts: _Optional[bool] = ..., pinned_version: _Optional[int] = ...) -> None: ...

class FeatureRows(_message.Message):
    __slots__ = ("feature", "rows", "dim", "provenance", "updates", "sightings", "padding", "values")
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    SIGHTINGS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    feature: str
    rows: int
    dim: int
    provenance: bytes
    updates: bytes
    sightings: bytes
    padding: bytes
    values: bytes
    def __init__(self, feature: _Optional[str] = ..., rows: _Optional[int] = ..., dim: _Optional[int] = ..., provenance: _Optional[bytes] = ..., updates: _Optional[bytes] = ..., sightings: _Optional[bytes] = ..., padding: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("features", "version")
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    features: _containers.RepeatedCompositeFieldContainer[FeatureRows]
    version: int
    def __init__(self, features: _Optional[_Iterable[_Union[FeatureRows, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class FeatureUpdate(_message.Message):
    __slots__ = ("batch", "gradients", "values", "parents", "dim")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    batch: FeatureIds
    gradients: bytes
    values: bytes
    parents: FeatureIds
    dim: int
    def __init__(self, batch: _Optional[_Union[FeatureIds, _Mapping]] = ..., gradients: _Optional[bytes] = ..., values: _Optional[bytes] = ..., parents: _Optional[_Union[FeatureIds, _Mapping]] = ..., dim: _Optional[int] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("updates", "client_id", "sequence", "fingerprint")
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[FeatureUpdate]
    client_id: str
    sequence: int
    fingerprint: str
    def __init__(self, updates: _Optional[_Iterable[_Union[FeatureUpdate, _Mapping]]] = ..., client_id: _Optional[str] = ..., sequence: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ("version", "duplicate")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    version: int
    duplicate: bool
    def __init__(self, version: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Table(_message.Message):
    __slots__ = ("name", "rows", "dim", "features", "pooling", "id_kind", "dtype", "optimizer", "learning_rate", "bytes", "factor", "scale", "normalise", "frozen", "counts", "rank", "remainders", "numbers_per_id", "parameters", "vocabulary")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    ID_KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    NORMALISE_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REMAINDERS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_PER_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    dim: int
    features: _containers.RepeatedScalarFieldContainer[str]
    pooling: Pooling
    id_kind: str
    dtype: str
    optimizer: str
    learning_rate: float
    bytes: int
    factor: str
    scale: str
    normalise: str
    frozen: bool
    counts: bool
    rank: int
    remainders: int
    numbers_per_id: int
    parameters: int
    vocabulary: Vocabulary
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., dim: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., id_kind: _Optional[str] = ..., dtype: _Optional[str] = ..., optimizer: _Optional[str] = ..., learning_rate: _Optional[float] = ..., bytes: _Optional[int] = ..., factor: _Optional[str] = ..., scale: _Optional[str] = ..., normalise: _Optional[str] = ..., frozen: _Optional[bool] = ..., counts: _Optional[bool] = ..., rank: _Optional[int] = ..., remainders: _Optional[int] = ..., numbers_per_id: _Optional[int] = ..., parameters: _Optional[int] = ..., vocabulary: _Optional[_Union[Vocabulary, _Mapping]] = ...) -> None: ...

class Vocabulary(_message.Message):
    __slots__ = ("capacity", "ids", "admitted", "evicted", "expired", "rejected", "own", "fallback", "bytes")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    ids: int
    admitted: int
    evicted: int
    expired: int
    rejected: int
    own: int
    fallback: int
    bytes: int
    def __init__(self, capacity: _Optional[int] = ..., ids: _Optional[int] = ..., admitted: _Optional[int] = ..., evicted: _Optional[int] = ..., expired: _Optional[int] = ..., rejected: _Optional[int] = ..., own: _Optional[int] = ..., fallback: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("message_bytes", "ids_per_request", "numbers_per_request")
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    message_bytes: int
    ids_per_request: int
    numbers_per_request: int
    def __init__(self, message_bytes: _Optional[int] = ..., ids_per_request: _Optional[int] = ..., numbers_per_request: _Optional[int] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("name", "fingerprint", "version", "engine", "world_size", "rank", "tables", "limits", "server_version", "published")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    version: int
    engine: str
    world_size: int
    rank: int
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    limits: Limits
    server_version: str
    published: Publication
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., version: _Optional[int] = ..., engine: _Optional[str] = ..., world_size: _Optional[int] = ..., rank: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., server_version: _Optional[str] = ..., published: _Optional[_Union[Publication, _Mapping]] = ...) -> None: ...

class Publication(_message.Message):
    __slots__ = ("publisher", "number")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    number: int
    def __init__(self, publisher: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class GrowRequest(_message.Message):
    __slots__ = ("table", "rows", "capacity", "mean", "mean_of", "fingerprint")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MEAN_OF_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    table: str
    rows: int
    capacity: int
    mean: bool
    mean_of: FeatureIds
    fingerprint: str
    def __init__(self, table: _Optional[str] = ..., rows: _Optional[int] = ..., capacity: _Optional[int] = ..., mean: _Optional[bool] = ..., mean_of: _Optional[_Union[FeatureIds, _Mapping]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class GrowResponse(_message.Message):
    __slots__ = ("version", "rows", "pause_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    rows: int
    pause_ms: float
    def __init__(self, version: _Optional[int] = ..., rows: _Optional[int] = ..., pause_ms: _Optional[float] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("batch", "thaw", "fingerprint")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    THAW_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    batch: FeatureIds
    thaw: bool
    fingerprint: str
    def __init__(self, batch: _Optional[_Union[FeatureIds, _Mapping]] = ..., thaw: _Optional[bool] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class FreezeResponse(_message.Message):
    __slots__ = ("version", "rows")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    version: int
    rows: int
    def __init__(self, version: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("version", "path", "bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    path: str
    bytes: int
    def __init__(self, version: _Optional[int] = ..., path: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version", "state", "bytes", "rollback")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: VersionState
    bytes: int
    rollback: bool
    def __init__(self, version: _Optional[int] = ..., state: _Optional[_Union[VersionState, str]] = ..., bytes: _Optional[int] = ..., rollback: _Optional[bool] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("version", "unload")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_FIELD_NUMBER: _ClassVar[int]
    version: int
    unload: bool
    def __init__(self, version: _Optional[int] = ..., unload: _Optional[bool] = ...) -> None: ...

class LoadResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class ActivateRequest(_message.Message):
    __slots__ = ("version", "fingerprint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    version: int
    fingerprint: str
    def __init__(self, version: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    def __init__(self, fingerprint: _Optional[str] = ...) -> None: ...

class ActivateResponse(_message.Message):
    __slots__ = ("version", "activated", "before")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVATED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    version: int
    activated: int
    before: int
    def __init__(self, version: _Optional[int] = ..., activated: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("publisher", "number", "file", "offset", "data")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    number: int
    file: str
    offset: int
    data: bytes
    def __init__(self, publisher: _Optional[str] = ..., number: _Optional[int] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class StagedFile(_message.Message):
    __slots__ = ("name", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("publisher", "number", "delta", "files", "layout", "fingerprint")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    number: int
    delta: bool
    files: _containers.RepeatedCompositeFieldContainer[StagedFile]
    layout: str
    fingerprint: str
    def __init__(self, publisher: _Optional[str] = ..., number: _Optional[int] = ..., delta: _Optional[bool] = ..., files: _Optional[_Iterable[_Union[StagedFile, _Mapping]]] = ..., layout: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("version", "duplicate", "rows", "frozen", "before")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    version: int
    duplicate: bool
    rows: int
    frozen: int
    before: int
    def __init__(self, version: _Optional[int] = ..., duplicate: _Optional[bool] = ..., rows: _Optional[int] = ..., frozen: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...
