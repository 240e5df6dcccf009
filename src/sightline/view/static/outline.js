// The edges between marked cells and all others: [column, row, dx, dy] each.
export function outline(marked, rows, columns) {
  const isMarked = (row, column) => Boolean(row >= 0 && row < rows && column >= 0 && column < columns && marked[row * columns + column]);
  const edges = [];
  for (let row = 0; row <= rows; row++)
    for (let column = 0; column <= columns; column++) {
      if (isMarked(row, column) !== isMarked(row - 1, column)) edges.push([column, row, 1, 0]);
      if (isMarked(row, column) !== isMarked(row, column - 1)) edges.push([column, row, 0, 1]);
    }
  return edges;
}
