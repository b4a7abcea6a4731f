"""What every object of a request's body has in common: its fields are known, its types strict, its refusals clear."""

import difflib
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from foredraft.serving.protocol.field_errors import OWN, brief


class RequestPart(BaseModel):
    """An object of a request. A field that is null is as if absent; one that is not known is refused by name.

    Ranges of numbers and lengths of lists are stated in the OpenAPI document and checked where they are defined: in
    `SamplingParams`, `SpeculationConfig` and `Limits`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def of_known_fields(cls, values: Any) -> Any:
        """Refuse the first unknown field: a body may hold a million of them, and pydantic would list them all."""
        if isinstance(values, dict):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            name = next((name for name in values if name not in known), None)
            if name is not None:
                near = difflib.get_close_matches(str(name)[:64], known, n=1)
                raise refused("is not known" + (f"; did you mean {near[0]}?" if near else ""), field=str(name)[:64])
        return values


def refused(problem: str, *, field: str | None = None) -> PydanticCustomError:
    """An error for a validator to raise: `problem` goes on from the field's name, `field` is one inside of it."""
    name = field and field.encode("utf-8", "backslashreplace").decode()  # pydantic takes whole characters only
    return PydanticCustomError(OWN, "{problem}", {"problem": problem, "field": name})


def require_kind(values: Any, kind: str, reason: str) -> Any:
    """Refuse an object of another `type` than `kind` by that name, before the fields it brings are."""
    given = values.get("type") if isinstance(values, dict) else None
    if isinstance(given, str) and given != kind:
        raise refused(f"is {brief(given)}; {reason}", field="type")
    return values


def unsupported(reason: str, *off: Any) -> Any:
    """The type of a known field that is not served: null or one of the values `off` that ask for nothing."""

    def check(value: Any) -> Any:
        if value is None or any(value == each and type(value) is type(each) for each in off):
            return value
        raise refused(f"is {brief(value)}; {reason}")

    schema = {"enum": [*off, None]} if off else {"type": "null"}
    return Annotated[Any, BeforeValidator(check), WithJsonSchema({**schema, "description": f"Not served: {reason}."})]


def number(low: float, high: float, *, open_low: bool = False) -> Any:
    """The type of a number whose range is stated here and checked elsewhere."""
    schema = {"type": "number", "exclusiveMinimum" if open_low else "minimum": low, "maximum": high}
    return Annotated[float, WithJsonSchema(schema)]


def count(low: int, high: int | None = None) -> Any:
    """The type of a whole number whose range is stated here and checked elsewhere."""
    schema = {"type": "integer", "minimum": low}
    return Annotated[int, WithJsonSchema(schema if high is None else {**schema, "maximum": high})]


@dataclass(frozen=True, slots=True)
class Several:
    """Marks a list: its first wrong item is refused, and so are fewer than `least`; `most` is checked elsewhere."""

    least: int
    most: int | None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return {**handler(source), "fail_fast": True, "min_length": self.least}

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        most = {} if self.most is None else {"maxItems": self.most}
        return {**handler(schema), "minItems": self.least, **most}


def several(item: Any, most: int | None = None, *, least: int = 0) -> Any:
    """The type of a list of `least` to `most` items; none bounds it only by the size of the body."""
    return Annotated[list[item], Several(least, most)]


def encodable(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can spell and no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refused("holds half a surrogate pair; send whole characters") from None
    return text


Text = Annotated[str, AfterValidator(encodable)]
NonEmpty = Annotated[str, AfterValidator(encodable), WithJsonSchema({"type": "string", "minLength": 1})]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
