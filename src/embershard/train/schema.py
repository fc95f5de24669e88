"""What a job file's `[data]` says: files or synthetic examples, which of their columns, and which evaluate."""

from __future__ import annotations

from collections import Counter
from dataclasses import field, fields
from datetime import date
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, PlainValidator
from pydantic.dataclasses import dataclass

from embershard.config.specs import CLOSED, MAX_ROWS, Name

Moment: TypeAlias = int | float | date
"""A point of time: a number, a date (its first moment) or a date-time; without a zone it is UTC."""

_Column = Annotated[str, Field(strict=True, min_length=1)]
_Count = Annotated[int, Field(strict=True, ge=1, le=MAX_ROWS)]


def _moment(value: Any) -> Moment | None:
    if value is None or isinstance(value, date):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:  # NaN isn't, either
        return value
    raise ValueError("must be a number, a date or a date-time, without quotes")


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FeatureSpec:
    """The column of one feature: an id an example, or a bag of them."""

    column: _Column | None = None
    """Its name; none given: the feature's."""
    separator: Annotated[str, Field(strict=True, min_length=1)] | None = None
    """Text is cut here into a bag of ids; nothing between two separators is no id. Columns of lists need none."""
    max_length: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Longer bags are cut to their last so many ids."""
    type: Literal["int64", "uint64", "string"] | None = None
    """What the ids become; none given: what they are in Parquet, and in text integers (int64) if all ids of the first
    megabytes of every file are such, else strings. Say string where ids have leading zeros, as zip codes do."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class SyntheticSpec:
    """Examples that are made up: ids by Zipf's law, labels by a hidden logistic model."""

    examples: _Count
    """To train on."""
    evaluate_examples: _Count = 10_000
    """To evaluate on."""
    exponent: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] = 1.05
    """s: the k-th most frequent id of a feature is as frequent as 1 / kˢ."""
    ids: Annotated[dict[Name, _Count], Field(min_length=1)]
    """Distinct ids of each feature, from 0 on."""
    lengths: dict[str, Annotated[int, Field(strict=True, ge=1, le=2**20)]] = field(default_factory=dict)
    """Mean length of the bags, which are from 1 to twice that long; other features have one id an example."""
    dense: Annotated[int, Field(strict=True, ge=0, le=2**16)] = 0
    """F: numbers of the dense vector."""

    def __post_init__(self) -> None:
        if unknown := sorted(self.lengths.keys() - self.ids):
            raise ValueError(f"lengths names the feature {unknown[0]!r}, which ids doesn't")


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class DataSpec:
    """The `[data]` table of a job file. Files are found from the job file's folder."""

    train: list[_Column] = field(default_factory=list)
    """Files or patterns, of one format: .parquet, .csv or .tsv (these two with a header, also as .csv.gz, .tsv.gz)."""
    evaluate: list[_Column] = field(default_factory=list)
    """Others to evaluate on, in their order; or"""
    evaluate_from: Annotated[Moment | None, PlainValidator(_moment)] = None
    """rows of `train` evaluate whose `time` is this or later, and only rows before it train."""
    time: _Column | None = None
    """Column of numbers, dates or timestamps."""
    label: _Column | None = None
    """Column of numbers or booleans."""
    dense: list[_Column] = field(default_factory=list)
    """Columns of numbers, which make one float32 vector an example."""
    features: dict[Name, FeatureSpec] = field(default_factory=dict)
    """The columns of ids, by feature."""
    shuffle_rows: Annotated[int, Field(strict=True, ge=0, le=MAX_ROWS)] = 2**20
    """Examples that are shuffled together, in memory at once; 0: the order of the files."""
    synthetic: SyntheticSpec | None = None
    """Examples that are made up, in place of files; only `shuffle_rows` may stand beside it."""

    def __post_init__(self) -> None:
        if self.synthetic is not None:
            self._check_nothing_of_files()
            return
        if not self.train:
            raise ValueError("train names no files, and there is no synthetic: give one of them")
        if not self.features:
            raise ValueError("features is empty: name one column of ids at least, as in user_id = {}")
        if self.evaluate and self.evaluate_from is not None:
            raise ValueError("evaluate and evaluate_from are both given: which examples evaluate? Leave one out")
        if self.evaluate_from is not None and self.time is None:
            raise ValueError("evaluate_from needs time, the column that it is compared with")
        repeated = [name for name, count in Counter(self.dense).items() if count > 1]
        if repeated:
            raise ValueError(f"dense names the column {repeated[0]!r} more than once")
        inputs = [*self.dense, *(spec.column or name for name, spec in self.features.items())]
        if self.label in inputs:
            raise ValueError(f"the column {self.label!r} is the label and an input, too: a model would only copy it")

    def _check_nothing_of_files(self) -> None:
        given = [item.name for item in fields(self) if getattr(self, item.name) not in (None, [], {})]
        if beside := [name for name in given if name not in ("synthetic", "shuffle_rows")]:
            raise ValueError(f"{beside[0]} is for files, and synthetic says already what there is: leave one out")

    @property
    def feature_names(self) -> list[str]:
        """The features of every example, in the order of the file."""
        return list(self.synthetic.ids if self.synthetic else self.features)

    @property
    def labelled(self) -> bool:
        """Whether examples have labels."""
        return self.synthetic is not None or self.label is not None

    @property
    def dense_width(self) -> int:
        """F: numbers of the dense vector; 0: there is none."""
        return self.synthetic.dense if self.synthetic else len(self.dense)


PLACES: Final[dict[str, type]] = {"data": DataSpec, "features": FeatureSpec, "synthetic": SyntheticSpec}
"""Where these stand in a job file, for `embershard.config.checking.checked`."""
