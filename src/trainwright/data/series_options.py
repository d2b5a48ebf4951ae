"""The section `data:` of a forecaster: which columns of a file are what, and how they are cut into windows."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Calendar: TypeAlias = Literal["minute", "hour_of_day", "day_of_week", "day_of_month", "day_of_year", "month"]
Part: TypeAlias = Literal["training", "validation", "test"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
TIME_INDEX: Final = "time_index"
SERIES: Final = "series"
TARGET: Final = "target"  # the name of a target that stands in several columns


class Split(BaseModel):
    """The rows of each part in each series, in this order: whole numbers, or shares of it. What is over is left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: Count | Annotated[float, Field(gt=0, lt=1)] = 0.7
    validation: Count | Annotated[float, Field(gt=0, lt=1)] = 0.1
    test: Count | Annotated[float, Field(gt=0, lt=1)] = 0.2

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        sizes = (self.train, self.validation, self.test)
        if len({type(size) for size in sizes}) > 1:
            raise ValueError(f"train, validation, test are {sizes}; give rows (whole numbers) or shares, not both")
        if isinstance(self.train, float) and sum(sizes) > 1 + 1e-9:
            raise ValueError(f"the shares {sizes} add up to {sum(sizes):g}; give at most 1 in all")
        return self

    def ends(self, rows: int) -> tuple[int, int, int]:
        """Give the row at which each part of a series ends; the next begins there. They may exceed `rows`."""
        train, validation, test = self.train, self.validation, self.test
        if isinstance(train, float):
            ends = (train, train + validation, train + validation + test)
            return tuple(round(rows * end) for end in ends)  # type: ignore[return-value]  # three
        return train, int(train + validation), int(train + validation + test)


class SeriesOptions(BaseModel):
    """The section `data:` of a forecaster."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path  # .parquet, or anything else: CSV
    columns: list[str] | None = None  # the names of a CSV that has none in its first line
    time: str | None = None  # None: the rows follow each other evenly
    id: str | None = None  # tells the series apart; None: one series
    target: str | Annotated[list[str], Field(min_length=1)]  # several: each column is a series of its own
    known: list[str] = []  # ahead of time, as promotions
    observed: list[str] = []  # up to the present only
    static: list[str] = []  # one value a series
    categorical: list[str] = []  # which of all these, and of `calendar`, are no numbers
    calendar: list[Calendar] = []  # known inputs that follow from the time
    time_index: bool = False  # a known input: the row's place in time
    static_series: bool = False  # a static categorical input: which series it is
    frequency: str | None = None  # 15min, 1h, 1d, 1mo …; None: as the data have it
    season: Count | None = None  # steps after which the target repeats itself; None: by the frequency
    context: Count = 96
    horizon: Count = 24
    split: Split = Split()
    missing: Literal["refuse", "carry_forward"] = "refuse"
    gaps: Literal["refuse", "fill"] = "refuse"
    window_scaling: Literal["none", "last", "standard"] = "none"
    exhaustion: Literal["cycle", "halt"] = "cycle"
    validation_stride: Count = 1  # every how many windows one is validated on

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else self.target

    @property
    def named(self) -> list[str]:
        """Give every column that is named, in the order of the options."""
        ends = [name for name in (self.time, self.id) if name is not None]
        return [*ends, *self.targets, *self.known, *self.observed, *self.static]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problem = next(filter(None, (self._twice(), self._uncategorical(), self._unclear())), None)
        if problem:
            raise ValueError(problem)
        return self

    def _twice(self) -> str | None:
        """Tell of a column that has two roles. The id may be a static input."""
        named = [name for name in self.named if name != self.id or name not in self.static]
        twice = sorted({name for name in named if named.count(name) > 1})
        derived = sorted(self._derived & {*self.targets, *self.known, *self.observed, *self.static})
        if not isinstance(self.target, str) and TARGET in {*self.known, *self.observed, *self.static}:
            return f"several targets are one input {TARGET!r}, and so is a column of that name; rename the column"
        if twice:
            return f"column {twice[0]!r} is named more than once; a column has one role"
        return f"{derived[0]!r} is the name of an input that is derived; rename the column" if derived else None

    @property
    def _derived(self) -> set[str]:
        """Give the inputs that are no columns."""
        switched = {TIME_INDEX: self.time_index, SERIES: self.static_series}
        return {*self.calendar, *(name for name, on in switched.items() if on)}

    def _uncategorical(self) -> str | None:
        may = {*self.known, *self.observed, *self.static, *self.calendar}
        wrong = [name for name in self.categorical if name not in may]
        if wrong:
            return f"categorical names {wrong[0]!r}, which is not among known, observed, static and calendar"
        if self.id in self.static and self.id not in self.categorical:
            return f"the id {self.id!r} is a static input and no number; name it under categorical too"
        return None

    def _unclear(self) -> str | None:
        if not isinstance(self.target, str) and self.id is not None:
            return f"several targets are series of their own, and so is each {self.id!r}; give one target, or no id"
        if self.calendar and self.time is None:
            return "calendar needs a column of times; name it as time"
        if self.frequency is not None and self.time is None:
            return "frequency is that of a column of times; name it as time"
        if self.gaps == "fill" and self.missing == "refuse":
            return "gaps: fill makes rows whose values are missing; set missing: carry_forward too"
        return None
