"""Answers about models."""

from typing import Literal

from onyx.api.schemas.common import Answer


class ModelObject(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelPage(Answer):
    object: Literal["list"] = "list"
    data: list[ModelObject]


class ModelDeleted(Answer):
    id: str
    object: Literal["model"] = "model"
    deleted: bool
