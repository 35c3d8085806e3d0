"""Which rows of a store fit their measurements worse than the fleet file allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.config.bounds import number

if TYPE_CHECKING:
    from narwhal.config import Profiles
    from narwhal.profiles.store import ProfileStore


@attrs.frozen(kw_only=True)
class LimitBroken:
    """One error of one row that is beyond its limit, or is not known."""

    iid: str
    field: str
    """The row's field that has the error."""
    error: float | None
    """A fraction; `None` if the row does not have it."""
    setting: str
    """The fleet file's setting that has the limit."""
    limit: float

    def line(self, name: str) -> str:
        """The line for a person who works with the store `name`."""
        found = "is not known" if self.error is None else f"is {number(self.error)}"
        return (
            f"{name}: {self.iid}.{self.field} {found}, and {self.setting} allows "
            f"{number(self.limit)}: measure the engine again, or raise the limit"
        )


def check_limits(store: ProfileStore, limits: Profiles) -> tuple[LimitBroken, ...]:
    """Every decode error beyond `limits`, in the order of rows; empty if all rows may be used.

    An error that a row does not have breaks its limit too: nothing says that it is small.
    """
    broken = []
    for row in store.rows:
        decode = row.profile.decode
        for field, error, setting, limit in (
            ("decode_fit_mape", decode.fit_mape, "max_decode_fit_mape", limits.max_decode_fit_mape),
            ("decode_cv_mape", decode.cv_mape, "max_decode_cv_mape", limits.max_decode_cv_mape),
        ):
            if error is None or error > limit:
                broken.append(
                    LimitBroken(
                        iid=row.iid,
                        field=field,
                        error=error,
                        setting=f"profiles.{setting}",
                        limit=limit,
                    )
                )
    return tuple(broken)
