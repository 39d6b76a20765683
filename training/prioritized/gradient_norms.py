"""Norms of single examples' gradients, from factors of large ones."""

from __future__ import annotations

from typing import Any, NamedTuple


class OuterProduct(NamedTuple):
    """Gradients of a matrix as sums of outer products over t positions."""

    rows: Any
    """(n, t, rows); or (n, t) of whole numbers, the one row of each position."""
    columns: Any
    """(n, t, columns)"""
    number_of_rows: int = 0
    """Of the matrix, where `rows` are whole numbers."""

    def squares(self) -> Any:
        """Return the squared norms (n,), by the cheaper of two ways."""
        t, columns = self.columns.shape[1:]
        rows = self.rows.shape[2] if self.rows.ndim == 3 else columns
        if t == 1 and self.rows.ndim == 3:
            return self.rows.float().square().sum((1, 2)) * self.columns.float().square().sum((1, 2))
        if self.rows.ndim == 2 or t * (rows + columns) <= rows * columns:
            return self.dot(self)
        return self.gradients().flatten(1).square().sum(1)

    def dot(self, other: OuterProduct) -> Any:
        """Return the inner products (n,) with another one of the same matrix.

        Takes t x t numbers an example.
        """
        columns = self.columns.float() @ other.columns.float().transpose(1, 2)
        if self.rows.ndim == 3 and other.rows.ndim == 3:
            rows = self.rows.float() @ other.rows.float().transpose(1, 2)
        elif self.rows.ndim == 3:
            rows = self.rows.float().gather(2, other.rows.unsqueeze(1).expand(-1, self.rows.shape[1], -1))
        elif other.rows.ndim == 3:
            rows = other.rows.float().gather(2, self.rows.unsqueeze(1).expand(-1, other.rows.shape[1], -1))
            rows = rows.transpose(1, 2)
        else:
            rows = self.rows.unsqueeze(2) == other.rows.unsqueeze(1)
        return (rows * columns).sum((1, 2))

    def gradients(self) -> Any:
        """Return the gradients (n, rows, columns)."""
        if self.rows.ndim == 3:
            return self.rows.float().transpose(1, 2) @ self.columns.float()
        n, _, columns = self.columns.shape
        index = self.rows.unsqueeze(2).expand(-1, -1, columns)
        zeros = self.columns.new_zeros((n, self.number_of_rows, columns)).float()
        return zeros.scatter_add_(1, index, self.columns.float())


def squares_of(uses: list[Any]) -> Any:
    """Return the squared norms (n,) of the sum of a parameter's several gradients."""
    if all(isinstance(one, OuterProduct) for one in uses):
        total = sum(one.squares() for one in uses)
        for place, one in enumerate(uses):
            for other in uses[:place]:
                total = total + 2 * one.dot(other)
        return total.clamp_(min=0)
    found = sum((one.gradients() if isinstance(one, OuterProduct) else one).float().flatten(1) for one in uses)
    return found.square().sum(1)
