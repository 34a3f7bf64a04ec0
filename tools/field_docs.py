"""Descriptions in JSON schemas, from the docstrings under the fields of pydantic models.

Only the tools that write schemas read the source. pydantic's `use_attribute_docstrings` would read it at every cold
start of a function.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from evenkeel.runtime.api import Body


class DescribedSchema(GenerateJsonSchema):
    """Generates JSON schemas with the docstrings under the fields as descriptions."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a model, with the descriptions of its fields."""
        document = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        for name, field in model.model_fields.items():
            text = field_doc(model, name)
            for alias in {name, field.alias, field.serialization_alias} & document.get("properties", {}).keys():
                if text:
                    document["properties"][alias]["description"] = text
        return document


def field_doc(model: type[BaseModel], name: str) -> str:
    """Return the docstring under a field on one line, from the class that declares the field; empty without one."""
    if issubclass(model, Body) and name in model.sources:
        model, name = model.sources[name]
    for kind in model.__mro__:
        if name in inspect.get_annotations(kind):
            return _docs_of_module(kind.__module__).get((kind.__qualname__, name), "")
    return ""


@cache
def _docs_of_module(module: str) -> dict[tuple[str, str], str]:
    return dict(_docs(ast.parse(inspect.getsource(sys.modules[module])), ""))


def _docs(parent: ast.AST, outer: str) -> Iterator[tuple[tuple[str, str], str]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            name = f"{outer}{node.name}"
            for field, below in zip(node.body, node.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=field_name)), ast.Expr(value=ast.Constant(value=str(text))):
                        yield (name, field_name), " ".join(text.split())
            yield from _docs(node, f"{name}.")
