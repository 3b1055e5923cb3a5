"""Nsight Compute: its pages as CSV (raw or details) and as text, and what it wrote around them."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from stepscope.errors import StepscopeError
from stepscope.schema.kernel_names import function_of
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._ncu_numbers import ENGLISH, notation_of
from stepscope.sources._ncu_text import Launch, Measured, TextPage

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["ncu"]

RECORD = "ncu --set full --csv --page raw python train.py > kernels.csv"
EXPORT = "ncu --import {} --csv --page raw > kernels.csv"
_BINARY = b"NVR\x00"
# A summary of each kernel has no launches, and so no IDs.
_CSV_HEAD = re.compile(
    rb'^(?:\xef\xbb\xbf)?"?(?:ID"?([,;\t])(?:"?[\w ]{1,40}"?\1){0,4}"?Process ID"?\1'
    rb'|Process ID"?([,;\t])"?Process Name"?\2)',
    re.MULTILINE,
)
_SECTION = re.compile(
    rb"^\s+Section: |^==PROF== (Connected|Profiling|Disconnected)|^==ERROR== ", re.MULTILINE
)
_ABOUT = {
    "ID": "launch",
    "Process ID": "process",
    "Kernel Name": "kernel",
    "Function Name": "kernel",
    "Context": "context",
    "Stream": "stream",
    "Block Size": "block",
    "Grid Size": "grid",
    "Device": "device",
    "CC": "capability",
    "Invocations": "launches",
}
_ALSO_ABOUT = ("Process Name", "Host Name", "Kernel Time", "Context ID", "Stream ID", "ID")
_DETAILS = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
_SUMMARY = (*_DETAILS[:3], "Average")
_ONE_KERNEL = ("process", "kernel", "block", "grid", "device")
"""What tells the kernels of a summary apart."""
_BLOCK = 8 << 20
_LONGEST = 1 << 22
"""Bytes of the line that heads a page; a raw page of all metrics has some 100 KB."""
_ROWS = 1 << 16
_LOOKED_AT = 20_000
"""Values by which the notation of numbers is told."""
_FORBIDDEN = re.compile(rb"ERR_NVGPUCTRPERM|does not have permission to (?:access NVIDIA GPU|profile)")
_MOST_EMPTY = 0.1
"""Some metrics of a full set have no value on any device; of a launch that failed, all."""
_EMPTY = ("", "n/a", "nan", "(!) nan", "(!) n/a", "inf", "-nan", "no data")
_NOTE = (
    "Nsight Compute runs each kernel alone, several times, and by default at a fixed clock: its times are "
    "not those of the program, and there are no steps."
)


def _is_ncu(given: Input) -> bool:
    if given.is_folder:
        return False
    head = given.head
    return head.startswith(_BINARY) or bool(_CSV_HEAD.search(head) or _SECTION.search(head))


@source(sniff=_is_ncu, beside=True)
def ncu(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads counters of kernels from Nsight Compute: pages as CSV or text."""
    if given.head.startswith(_BINARY):
        raise StepscopeError(
            f"{given.name} is a binary report of Nsight Compute",
            hint=f"export it: {EXPORT.format(Path(given.word).name)}",
        )
    path = given.as_file()
    begins = _csv_begins(path)
    rows = _Rows(writer)
    damage = _read_csv(path, begins, rows) if begins is not None else _read_text(path, rows)
    rows.write()
    if not rows.launches:
        _refuse(given.name, path)
    if rows.empty > _MOST_EMPTY * (rows.empty + rows.kept):
        damage.append(Damage("a metric of Nsight Compute without a value", rows.empty))
    return SourceMeta(damage=tuple(damage), notes=(_NOTE,), joined="by kernel and launch shape")


def _refuse(name: str, path: Path) -> NoReturn:
    """Says why there is nothing in it."""
    with path.open("rb") as file:
        forbidden = _FORBIDDEN.search(file.read(_LONGEST))
    if forbidden:
        raise StepscopeError(
            f"{name} has no metrics: Nsight Compute was not allowed to read the GPU's counters "
            "(ERR_NVGPUCTRPERM)",
            hint="run ncu as root, in a container started with --cap-add SYS_ADMIN; or let every user: put "
            "'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d/ncu.conf, reboot",
        )
    raise StepscopeError(
        f"{name} is of Nsight Compute, but has no metrics of kernels", hint=f"record it: {RECORD}"
    )


def _csv_begins(path: Path) -> int | None:
    """Where the line with the names of columns begins; None if the page is text."""
    at = 0
    with path.open("rb") as file:
        for line in file:
            if _CSV_HEAD.match(line):
                return at
            at += len(line)
            if at > _LONGEST:
                return None
    return None


class _Rows:
    """Rows of `kernel_counters`, written in batches of columns."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._columns: dict[str, list[Any]] = {}
        self.launches: set[int] = set()
        self.empty = 0
        """Metrics that have no value: the launch failed, or the device lacks the counter."""
        self.kept = 0
        self.notation = ENGLISH
        self._numbers: dict[str, int] = {}

    def numbered(self, told: dict[str, pa.Array]) -> pa.Array:
        """Numbers for the kernels of a summary, as texts, in the order in which they come."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = [told[name] for name in _ONE_KERNEL if name in told]
        encoded = pc.binary_join_element_wise(*parts, "\n").dictionary_encode()
        known = self._numbers
        numbers = [known.setdefault(one, len(known)) for one in encoded.dictionary.to_pylist()]
        return pa.array(map(str, numbers), pa.string()).take(encoded.indices)

    def add(self, about: dict[str, Any], section: str | None, metric: str, unit: str, value: str) -> None:
        """One metric of one launch."""
        number = self.notation.number(value)
        self.launches.add(about["launch"])
        if number is None:
            self.empty += value.strip().lower() in _EMPTY[2:]
            return
        self.kept += 1
        row = {
            **about,
            "section": section,
            "metric": metric[:300],
            "unit": unit[:60] or None,
            "value": number,
        }
        for name, one in row.items():
            self._columns.setdefault(name, []).append(one)
        if len(self._columns["value"]) >= _ROWS:
            self.write()

    def add_arrays(
        self,
        told: dict[str, pa.Array],
        section: pa.Array | None,
        metric: pa.Array,
        unit: pa.Array,
        value: pa.Array,
    ) -> None:
        """Metrics of many launches: texts as they are in the file."""
        import pyarrow as pa
        import pyarrow.compute as pc

        plain = self.notation.plain(value)
        launch = self._whole_numbers(told["launch"])
        there = pc.and_(pc.is_valid(launch), self.notation.are_numbers(plain))
        self.launches.update(launch.drop_null().unique().to_pylist())
        none = pc.is_in(pc.utf8_lower(value), value_set=pa.array(_EMPTY[2:]))
        self.empty += pc.sum(pc.and_(none, pc.is_valid(launch))).as_py() or 0
        self.kept += pc.sum(there).as_py() or 0
        kept = {name: column.filter(there) for name, column in told.items()}
        columns = {name: self._whole_numbers(kept[name]) for name in _WHOLE if name in kept}
        columns |= {name: _shape(kept[name]) for name in ("grid", "block") if name in kept}
        if "capability" in kept:
            columns["capability"] = kept["capability"]
        encoded = kept["kernel"].dictionary_encode()
        functions = pa.array([function_of(name) for name in encoded.dictionary.to_pylist()], pa.string())
        numbers = pc.cast(plain.filter(there), pa.float64())
        once = pa.repeat(pa.scalar(1, pa.int64()), len(numbers))
        columns |= {
            "kernel": kept["kernel"],
            "function": functions.take(encoded.indices),
            "launches": pc.coalesce(columns["launches"], once) if "launches" in columns else once,
            "metric": metric.filter(there),
            "unit": _or_null(unit.filter(there)),
            "value": numbers,
        }
        if section is not None:
            columns["section"] = _or_null(section.filter(there))
        self._writer.add_rows("kernel_counters", pa.table(columns).filter(pc.is_finite(numbers)))

    def _whole_numbers(self, texts: pa.Array) -> pa.Array:
        """Texts as whole numbers; what is none is NULL."""
        import pyarrow as pa
        import pyarrow.compute as pc

        plain = self.notation.plain(texts)
        fits = pc.match_substring_regex(plain, r"^\d{1,18}$")
        return pc.cast(pc.if_else(fits, plain, pa.scalar(None, pa.string())), pa.int64())

    def write(self) -> None:
        """Writes what waits."""
        import pyarrow as pa

        if self._columns:
            kinds = {"value": pa.float64()} | dict.fromkeys(_WHOLE, pa.int64())
            table = {name: pa.array(of, kinds.get(name, pa.string())) for name, of in self._columns.items()}
            self._writer.add_rows("kernel_counters", pa.table(table))
            self._columns = {}


def _shape(texts: pa.Array) -> pa.Array:
    """Sizes as the profile has them: [8, 1, 1]; what is none is NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fits = pc.match_substring_regex(texts, r"^\(\d{1,10}, *\d{1,10}, *\d{1,10}\)$")
    inner = pc.utf8_trim(texts, "()")
    told = pc.binary_join_element_wise("[", inner, "]", "")
    return pc.if_else(fits, told, pa.scalar(None, pa.string()))


def _or_null(texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


_WHOLE = ("launch", "launches", "process", "device", "context", "stream")


# ---------------------------------------------------------------- pages as CSV


def _read_csv(path: Path, begins: int, rows: _Rows) -> list[Damage]:
    with path.open("rb") as file:
        file.seek(begins)
        head = file.readline(_LONGEST)
    found = _CSV_HEAD.match(head)
    between = ((found[1] or found[2]) if found else b",").decode()
    text = head.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
    names = next(csv.reader([text], delimiter=between))
    odd = [0]
    page = next((page for page in (_DETAILS, _SUMMARY) if set(page[1:]) <= set(names)), None)
    units: list[str] = []
    for nth, batch in enumerate(_batches(path, begins + len(head), (len(names), between), odd)):
        if not nth:
            rows.notation = notation_of(_values(batch, names, page), semicolons=between == ";")
        if page:
            told, *columns = _details(batch, names, page)
            rows.add_arrays(told if "launch" in told else told | {"launch": rows.numbered(told)}, *columns)
        else:
            units = units or _units(batch, names)
            rows.add_arrays(*_raw(batch, names, units))
    return [Damage("a line that is no row of the page, left out", odd[0])] if odd[0] else []


def _values(batch: pa.RecordBatch, names: list[str], page: tuple[str, ...] | None) -> list[str]:
    """Some of the values of a page."""
    of = [names.index(page[-1])] if page else _metrics(names)
    each = max(1, _LOOKED_AT // max(1, len(of)))
    return [text for nth in of for text in batch.column(nth)[:each].to_pylist()]


def _batches(path: Path, begins: int, layout: tuple[int, str], odd: list[int]) -> Iterator[pa.RecordBatch]:
    """The rows below the names, as texts; lines with another number of columns are counted and left out."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    width, between = layout
    names = [str(number) for number in range(width)]

    def skip(_: Any) -> str:
        odd[0] += 1
        return "skip"

    with path.open("rb") as file:
        file.seek(begins)
        try:
            reader = arrow_csv.open_csv(
                _Plain(file),
                read_options=arrow_csv.ReadOptions(
                    column_names=names, block_size=_BLOCK, encoding="utf8", use_threads=False
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=between, invalid_row_handler=skip),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
            yield from reader
        except pa.ArrowInvalid as error:
            if "Empty CSV" not in str(error):
                odd[0] += 1


class _Plain(io.RawIOBase):
    """A file without bytes that are no UTF-8, for the reader of CSV would stop there."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Never more than was asked for: up to three bytes may have been kept back before."""
        while piece := self._file.read(size - 4 if size > 8 else size):
            if text := self._decoder.decode(piece):
                return text.encode()
        return b""


def _about(cells: dict[str, str], launch: int) -> dict[str, Any]:
    """What a row says of its launch."""
    kernel = (cells.get("kernel") or "?")[:4000].encode("utf-8", "replace").decode()
    return {
        "launch": launch,
        "launches": 1,
        "kernel": kernel,
        "function": function_of(kernel),
        "grid": _sizes(cells.get("grid")),
        "block": _sizes(cells.get("block")),
        "capability": cells.get("capability") or None,
        **{name: _whole(cells.get(name)) for name in ("process", "device", "context", "stream")},
    }


def _whole(text: str | None) -> int | None:
    number = ENGLISH.number(text or "")
    return int(number) if number is not None and 0 <= number < 1 << 62 else None


def _sizes(text: str | None) -> str | None:
    """Sizes as the profile has them: [8, 1, 1]."""
    found = re.findall(r"\d{1,10}", text or "")
    return f"[{', '.join(found)}]" if len(found) == 3 else None


def _told(batch: pa.RecordBatch, names: list[str]) -> dict[str, pa.Array]:
    """The columns that say which launch a row is about."""
    return {_ABOUT[name]: batch.column(nth) for nth, name in enumerate(names) if name in _ABOUT}


def _details(batch: pa.RecordBatch, names: list[str], page: tuple[str, ...]) -> tuple[Any, ...]:
    """Of a page with one row for each metric: what each is about, section, metric, unit and value."""
    at = {name: nth for nth, name in enumerate(names)}
    columns = [batch.column(at[name]) if name in at else None for name in page]
    return _told(batch, names), *columns


def _units(batch: pa.RecordBatch, names: list[str]) -> list[str]:
    """The first row of a raw page: the units."""
    return [column[0].as_py() for column in batch.columns] if batch.num_rows else [""] * len(names)


def _metrics(names: list[str]) -> list[int]:
    """The columns of a raw page that are metrics."""
    return [nth for nth, name in enumerate(names) if name not in _ABOUT and name not in _ALSO_ABOUT]


def _raw(batch: pa.RecordBatch, names: list[str], units: list[str]) -> tuple[Any, ...]:
    """Of a page with one row for each launch and one column for each metric, the same with a row for each."""
    import pyarrow as pa

    chosen = _metrics(names)
    count = batch.num_rows
    again = pa.concat_arrays([pa.array(range(count), pa.int64())] * len(chosen))
    told = {name: column.take(again) for name, column in _told(batch, names).items()}
    metrics = pa.concat_arrays([pa.repeat(names[nth], count) for nth in chosen])
    of = pa.concat_arrays([pa.repeat(units[nth], count) for nth in chosen])
    return told, None, metrics, of, pa.concat_arrays([batch.column(nth) for nth in chosen])


# ---------------------------------------------------------------- pages as text


def _read_text(path: Path, rows: _Rows) -> list[Damage]:
    page = TextPage()
    about: dict[str, Any] | None = None
    number = -1
    with path.open(encoding="utf-8", errors="replace") as file:
        found = (one.value for one in TextPage().read(_short_lines(file)) if isinstance(one, Measured))
        rows.notation = notation_of(islice(found, _LOOKED_AT))
        file.seek(0)
        for one in page.read(_short_lines(file)):
            if isinstance(one, Launch):
                number += 1
                about = _about_text(one, number)
            elif about is not None:
                rows.add(about, one.section, one.metric, one.unit, one.value)
    return [Damage(f"Nsight Compute says: {said}") for said in dict.fromkeys(page.errors)]


def _short_lines(file: Iterable[str]) -> Iterator[str]:
    return (line.rstrip("\n")[:5000] for line in file)


def _about_text(launch: Launch, number: int) -> dict[str, Any]:
    told = launch.told
    cells = {"kernel": launch.kernel, "capability": told.get("CC", ""), "device": told.get("Device", "")}
    cells |= {"context": told.get("Context", ""), "stream": told.get("Stream", "")}
    about = _about(cells, number)
    about["process"] = launch.process
    about["launches"] = _whole(told.get("Invocations")) or 1
    for name in ("grid", "block"):
        sizes = getattr(launch, name)
        about[name] = f"[{', '.join(map(str, sizes))}]" if sizes and any(sizes) else None
    return about
